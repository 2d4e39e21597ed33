"""A family of contestants in a process of its own, which does what it reads from its input.

One JSON object a line, in and out. It is started by ``processes.py``.
"""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path
from typing import Any

import coreless  # noqa: F401
import numpy as np
from inputs import error_of, make_inputs
from rivals import MODULES
from rows import Row

from headway.timing import worker
from headway.timing.worker import Message


class Contestants(worker.Worker):
    """The contestants of one module, and the calls that are prepared."""

    def __init__(self, family: str) -> None:
        super().__init__()
        self.module: Any = importlib.import_module(MODULES[family])

    def hello(self, _: Message) -> Message:
        """Versions, threads and, where there is one, the BLAS."""
        said: Message = {"versions": self.module.versions(), "threads": self.module.threads()}
        if hasattr(self.module, "default_isa"):
            said |= {"isa": self.module.default_isa(), "build": build_digest()}
        if "numpy" in said["versions"]:
            from machine import blas_kernels

            said["blas"] = blas_kernels()
        return said

    def prepare(self, message: Message) -> Message:
        """Make a contestant's call, and compare what it returns with the reference."""
        row = Row.from_json(message["row"])
        start = time.perf_counter()
        made = self.module.PREPARE[message["contestant"]](row, make_inputs(row))
        before = time.perf_counter()
        result = made.call()
        after = time.perf_counter()
        error = None
        if made.timed is None:
            with np.load(message["reference"]) as reference:
                error = error_of(made.result(result), reference["rows"], reference["wanted"])
        del result
        self.prepared[message["contestant"]] = made
        times = {"first": after - before, "setup": before - start}
        return {"error": error, "note": made.note, "facts": made.facts, **times}

    def burst(self, message: Message) -> Message:
        """As every worker; a program with a clock of its own times itself."""
        made = self.prepared[message["contestant"]]
        if made.timed is None:
            return super().burst(message)
        wall, calls = made.timed(message["length"])
        return {"wall": wall, "cpu": None, "calls": calls}

    def peak(self, message: Message) -> Message:
        kind, isa = message["kind"], message["isa"]
        return {"gflops": self.module.peak(kind, message["length"], isa)}

    def bandwidth(self, message: Message) -> Message:
        return {"gbytes": self.module.read_bandwidth(message["length"], message["bytes"])}


def build_digest() -> str:
    """A short name of the installed headway: of its sources and its extension."""
    import hashlib

    import headway

    digest = hashlib.sha256()
    for path in sorted(Path(headway.__file__).parent.glob("*")):
        if path.suffix in (".py", ".so", ".pyd"):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def main() -> None:
    worker.main(lambda: Contestants(sys.argv[1]))


if __name__ == "__main__":
    main()
