"""How the memory of a call is measured: the start of a program, to be run in a fresh interpreter.

Its function ``peak_of`` says by how many bytes a call's peak lies above what was there before it.
"""

from __future__ import annotations

MIB = 2**20

START = """
import json, sys
import numpy as np
import headway

def dtype_of(name):
    if name == "bfloat16":
        import ml_dtypes
        return ml_dtypes.bfloat16
    return name

def resident(which):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(which)) * 1024

def peak_of(call):
    with open("/proc/self/clear_refs", "w") as peak:
        peak.write("5")  # the highest mark starts again
    before = resident("VmRSS")
    call()
    return resident("VmHWM") - before
"""
