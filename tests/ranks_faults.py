"""Under mpiexec: one rank fails in the way that the argument names; the job has to end."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import numpy as np
from mpi4py import MPI

from headway.distributed import CountingComm, _ring, ring_attention

fault = sys.argv[1]
world = MPI.COMM_WORLD
odd = world.rank == 1


class Dies(CountingComm):
    """A rank that is killed, or stops, when it hands over its second block."""

    def Isend(self, buffer: Any, dest: int, tag: int = 0) -> Any:
        if self.sent >= 2 * np.asarray(buffer).nbytes:  # a block is two messages
            if fault == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(100)
        return super().Isend(buffer, dest, tag)


def no_memory(*_: Any) -> Any:
    raise MemoryError("result: expected a size that fits in memory,\n got more")


comm: Any = Dies(world) if odd and fault in ("killed", "stopped") else world
if odd and fault == "no memory":
    _ring.target_of = no_memory
x = np.zeros((2, 64, 16), np.float32)
world.Barrier()
if world.rank == 0:
    print(time.time(), flush=True)
if odd and fault == "outside":
    raise RuntimeError("a fault outside of the call")
ring_attention(x, x, x, comm)
if world.rank == 2:  # rank 0 may have all that it needs before the others end
    print("not reached", flush=True)
