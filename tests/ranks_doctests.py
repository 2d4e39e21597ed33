"""Under mpiexec: the examples of the documentation, on each rank, print what they say."""

from __future__ import annotations

import doctest
import importlib
import sys

for name in ("collecting", "counting", "ring", "ring_backward"):
    module = importlib.import_module(f"headway.distributed._{name}")
    failed, tried = doctest.testmod(module)
    if failed or not tried:
        sys.exit(f"{name}: {failed} of {tried} examples failed")
print("examples hold")
