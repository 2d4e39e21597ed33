"""A communicator that counts what passes through it."""

from __future__ import annotations

from typing import Any

import numpy as np


class CountingComm:
    """A communicator that counts the bytes of the messages that it sends and receives.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        The communicator that does the work.

    Attributes
    ----------
    sent, received : int
        Bytes of the messages between two ranks so far, as :func:`ring_traffic` counts them.
    collective : int
        Bytes that this rank gave to collective calls so far.

    Notes
    -----
    Everything else is that of `comm`. Counted are ``Isend``, ``Irecv``, ``Iallreduce`` and
    ``Iallgather``, which are all that a ring call uses unless the ranks disagree.

    Examples
    --------
    >>> from mpi4py import MPI
    >>> from headway.distributed import CountingComm
    >>> comm = CountingComm(MPI.COMM_WORLD)
    >>> comm.sent, comm.received, comm.collective
    (0, 0, 0)
    """

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self.sent = self.received = self.collective = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.comm, name)

    def Isend(self, buffer: Any, dest: int, tag: int = 0) -> Any:
        """Count and send."""
        self.sent += np.asarray(buffer).nbytes
        return self.comm.Isend(buffer, dest=dest, tag=tag)

    def Irecv(self, buffer: Any, source: int, tag: int) -> Any:
        """Count and receive."""
        self.received += np.asarray(buffer).nbytes
        return self.comm.Irecv(buffer, source=source, tag=tag)

    def Iallreduce(self, given: Any, result: Any) -> Any:
        """Count and add up over the ranks."""
        self.collective += np.asarray(given).nbytes
        return self.comm.Iallreduce(given, result)

    def Iallgather(self, given: Any, result: Any) -> Any:
        """Count and collect from all ranks."""
        self.collective += np.asarray(given).nbytes
        return self.comm.Iallgather(given, result)
