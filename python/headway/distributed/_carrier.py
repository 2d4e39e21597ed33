"""Messages on their way while the kernel works."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from ..arrays import Array
from ._waiting import wait

BLOCK, GRADIENT, HOME, SHARE = 26_701, 26_702, 26_703, 26_704
"""Tags: keys and values, their gradients to the next rank, their gradients to the owner; rows."""


class Message(NamedTuple):
    """One array to or from a rank."""

    array: Array  # C-contiguous
    rank: int
    tag: int


class Carrier:
    """Sends and receives in a thread of its own, which looks after the messages all the time.

    MPI moves large messages on only while somebody calls it, and the kernel does not. Where MPI was
    started for one thread alone, the calling thread does it before and after the kernel.
    """

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self._pool: ThreadPoolExecutor | None = None
        self._finish: Callable[[], None] | None = None
        if comm.size > 1:
            from mpi4py import MPI

            if MPI.Query_thread() >= MPI.THREAD_SERIALIZED:
                self._pool = ThreadPoolExecutor(1, "headway-ring")

    def __enter__(self) -> Carrier:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=kind is None)

    def start(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """Begin with these messages; the arrays belong to them until `finish`."""
        sends = [each for each in sends if each.array.nbytes]
        receives = [each for each in receives if each.array.nbytes]
        if not sends and not receives:
            self._finish = None
        elif self._pool is None:
            requests = self._post(sends, receives)
            self._finish = lambda: wait(requests)
        else:
            future: Future[None] = self._pool.submit(lambda: wait(self._post(sends, receives)))
            self._finish = future.result

    def finish(self) -> None:
        """Return when all messages of the last `start` have arrived."""
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()

    def _post(self, sends: Sequence[Message], receives: Sequence[Message]) -> list[Any]:
        requests = [
            self._comm.Irecv(octets(each.array), source=each.rank, tag=each.tag)
            for each in receives
        ]
        requests += [
            self._comm.Isend(octets(each.array), dest=each.rank, tag=each.tag) for each in sends
        ]
        return requests


def octets(x: Array) -> Array:
    """The bytes of an array: MPI knows no bfloat16."""
    return x.reshape(-1).view(np.uint8)
