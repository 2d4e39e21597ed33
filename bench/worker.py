"""A family of contestants in a process of its own, which does what it reads from its input.

One JSON object a line, in and out. It is started by ``processes.py``.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from inputs import error_of, make_inputs
from rivals import MODULES, Prepared, Unsupported
from rows import Row

Message = dict[str, Any]


class Worker:
    """The contestants of one module, and the calls that are prepared."""

    def __init__(self, family: str) -> None:
        self.module: Any = importlib.import_module(MODULES[family])
        self.prepared: dict[str, Prepared] = {}

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
        """Wall seconds of a few calls (of `inner` calls each) and CPU seconds per call."""
        made = self.prepared[message["contestant"]]
        if made.timed is not None:
            wall, calls = made.timed(message["length"])
            return {"wall": wall, "cpu": None, "calls": calls}
        call, inner = made.call, message["inner"]
        clock = time.perf_counter
        for _ in range(message["wake"]):
            call()
        wall = []
        cpu = time.process_time()
        for _ in range(message["count"]):
            start = clock()
            for _ in range(inner):
                call()
            wall.append((clock() - start) / inner)
        calls = message["count"] * inner
        return {"wall": wall, "cpu": (time.process_time() - cpu) / calls, "calls": calls}

    def drop(self, _: Message) -> Message:
        """Forget all calls and their arrays."""
        self.prepared.clear()
        gc.collect()
        return {}

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


def answer(worker: Worker, line: str) -> Message:
    message = json.loads(line)
    try:
        said: Message = getattr(worker, message["do"])(message)
    except Unsupported as refusal:
        return {"unsupported": str(refusal)}
    except Exception as error:
        text = " ".join(str(error).split())
        return {"failed": f"{type(error).__name__}: {text}"[:200]}
    return said


def limit(threads: int) -> None:
    """Take as many CPUs as threads, and at most 60 % of the memory."""
    if hasattr(os, "sched_setaffinity"):
        usable = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, usable[-threads:])
    if sys.platform == "linux":
        import resource

        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        most = pages * size * 6 // 10
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def serve(family: str, source: TextIO, target: TextIO) -> None:
    def say(message: Message) -> None:
        target.write(json.dumps(message) + "\n")
        target.flush()

    try:
        worker = Worker(family)
        say(worker.hello({}))
    except ImportError as error:
        say({"unsupported": f"not installed: {error.name or error}"})
        return
    except Exception as error:
        say({"failed": f"{type(error).__name__}: {error}"[:200]})
        return
    for line in source:
        say(answer(worker, line))


def main() -> None:
    limit(int(os.environ["OMP_NUM_THREADS"]))
    # What libraries print goes to the log, not between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(sys.argv[1], sys.stdin, answers)


if __name__ == "__main__":
    main()
