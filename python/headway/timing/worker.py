"""The worker's side: a process that does what it reads from its input, one JSON object a line."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

Message = dict[str, Any]


class Unsupported(Exception):
    """The contestant has no such thing, or would not fit into memory; the text says which."""


def burst(call: Callable[[], Any], count: int, inner: int, wake: int) -> Message:
    """Wall seconds of `count` samples of `inner` calls each, after `wake` untimed ones.

    And CPU seconds of all threads, per call.
    """
    clock = time.perf_counter
    for _ in range(wake):
        call()
    wall = []
    cpu = time.process_time()
    for _ in range(count):
        start = clock()
        for _ in range(inner):
            call()
        wall.append((clock() - start) / inner)
    calls = count * inner
    return {"wall": wall, "cpu": (time.process_time() - cpu) / calls, "calls": calls}


class Worker:
    """Prepared calls by the name of the contestant; a method for each message."""

    def __init__(self) -> None:
        self.prepared: dict[str, Any] = {}

    def hello(self, _: Message) -> Message:
        """What it is."""
        return {}

    def burst(self, message: Message) -> Message:
        """Times the prepared ``call`` of a contestant."""
        call = self.prepared[message["contestant"]].call
        return burst(call, message["count"], message["inner"], message["wake"])

    def drop(self, _: Message) -> Message:
        """Forget all calls and their arrays."""
        self.prepared.clear()
        gc.collect()
        return {}


def answer(worker: Worker, line: str) -> Message:
    """What the worker says to a message; why it does not, where it fails."""
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


def serve(make: Callable[[], Worker], source: TextIO, target: TextIO) -> None:
    """Say hello, then answer line after line."""

    def say(message: Message) -> None:
        target.write(json.dumps(message) + "\n")
        target.flush()

    try:
        worker = make()
        say(worker.hello({}))
    except ImportError as error:
        say({"unsupported": f"not installed: {error.name or error}"})
        return
    except Exception as error:
        say({"failed": f"{type(error).__name__}: {error}"[:200]})
        return
    for line in source:
        say(answer(worker, line))


def main(make: Callable[[], Worker]) -> None:
    """Serve this process's input on as many CPUs as ``OMP_NUM_THREADS`` says."""
    limit(int(os.environ["OMP_NUM_THREADS"]))
    # What libraries print goes to the log, not between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(make, sys.stdin, answers)
