"""Waiting for messages without burning a core, and the end of a job that cannot go on."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

_SHORTEST, _LONGEST = 20e-6, 1e-3  # seconds between two looks
_AT_ONCE = 200e-6  # seconds in which one look follows the other
_SETTING = "HEADWAY_RING_TIMEOUT"
_PASSED_ON = 0.5  # seconds in which mpiexec passes a line on, before all end


def patience() -> float:
    """Seconds that a rank waits for messages: no limit unless ``HEADWAY_RING_TIMEOUT`` is set.

    Raises
    ------
    ValueError
        If it is set to anything but a positive number.
    """
    text = os.environ.get(_SETTING, "")
    if not text:
        return math.inf
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise ValueError(
            f"{_SETTING}: expected a number of seconds above 0, got {text!r}; unset it for no limit"
        )
    return seconds


def wait(requests: Sequence[Any]) -> None:
    """Return when every request is complete.

    A blocking MPI call may spin, which takes the core from the kernels of a rank beside it; this
    looks without a rest for 0.2 ms, and then at growing intervals, 1 ms at most. Looking is also
    what moves large messages on.

    Raises
    ------
    TimeoutError
        If that takes longer than `patience`.
    """
    pending = list(requests)
    limit = patience()
    began = time.monotonic()
    pause = _SHORTEST
    while True:
        pending = [request for request in pending if not request.Test()]
        if not pending:
            return
        if time.monotonic() - began > limit:
            raise TimeoutError(
                f"no message for {limit:g} s ({_SETTING}): another rank has stopped, or is slower"
            )
        if time.monotonic() - began < _AT_ONCE:  # small messages are there sooner than a sleep ends
            time.sleep(0)
            continue
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST)


@contextmanager
def ends_the_job(comm: Any, name: str) -> Iterator[None]:
    """End the whole job where a rank fails alone: the others would wait for it forever.

    One line on stderr names the call, the rank and the cause. A communicator of one raises as
    usual.
    """
    try:
        yield
    except BaseException as cause:
        if comm.size == 1:
            raise
        text = " ".join(str(cause).split())
        print(
            f"headway: {name}: rank {comm.rank} of {comm.size} failed, so the job ends: "
            f"{type(cause).__name__}: {text}",
            file=sys.stderr,
            flush=True,
        )
        time.sleep(_PASSED_ON)
        comm.Abort(1)
        raise  # where a communicator does not know how to abort
