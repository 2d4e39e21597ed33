"""What a figure was measured on: machine and versions."""

from __future__ import annotations

import datetime
import os
import platform
from pathlib import Path
from typing import Any

OVERRIDES = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
"""Settings that make a current OpenBLAS slower than it is by itself; the two belong together."""


def cpu_name() -> str:
    """The processor's name for itself."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def usable_cpus() -> int:
    """CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def now() -> str:
    """The moment, in UTC."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def describe(versions: dict[str, str]) -> dict[str, Any]:
    """The machine, and the versions of Python and of what is named."""
    return {
        "machine": {
            "cpu": cpu_name(),
            "architecture": platform.machine(),
            "usable_cpus": usable_cpus(),
            "system": f"{platform.system()} {platform.release()}",
        },
        "versions": {"python": platform.python_version(), **versions},
    }
