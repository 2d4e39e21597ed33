"""Waiting for messages without burning a core, and the end of a job that cannot go on."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

_SHORTEST, _LONGEST = 20e-6, 1e-3  # seconds between two looks


def wait(requests: Sequence[Any]) -> None:
    """Return when every request is complete.

    A blocking MPI call may spin, which takes the core from the kernels of a rank beside it; this
    looks at growing intervals, 1 ms at most. Looking is also what moves large messages on.
    """
    pending = list(requests)
    pause = _SHORTEST
    while True:
        pending = [request for request in pending if not request.Test()]
        if not pending:
            return
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
        comm.Abort(1)
        raise  # where a communicator does not know how to abort
