"""The timing of headway without headway: to be imported first in a rival's process.

`import headway` loads the extension and its runtime of threads, which a rival is to be timed
without. So the package is empty while ``headway.timing`` is imported; a family that needs headway
itself imports it afterwards.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType


def import_timing() -> None:
    """Import what a worker needs of ``headway.timing``, and nothing else of headway.

    Where headway is there already, it stays.
    """
    spec = None if "headway" in sys.modules else find_spec("headway")
    if spec is None:
        return
    bare = ModuleType("headway")
    bare.__path__ = list(spec.submodule_search_locations or ())
    sys.modules["headway"] = bare
    try:
        for module in ("worker", "machine"):
            import_module(f"headway.timing.{module}")
    finally:
        del sys.modules["headway"]


import_timing()
