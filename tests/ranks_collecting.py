"""Under mpiexec: rows of one rank's array to all, and back; and a record of the steps."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from helpers import assert_same_bits
from mpi4py import MPI

from headway.distributed import RingStep, gather, ring_attention, scatter, shard

comm = MPI.COMM_WORLD
root = comm.size - 1
for tokens in (0, 1, 11):
    for dtype in (np.float32, ml_dtypes.bfloat16, np.int64):
        for sharding in ("zigzag", "contiguous", "striped"):
            whole = np.random.default_rng(0).standard_normal((2, tokens, 3)).astype(dtype)
            given = whole if comm.rank == root else None
            rows = scatter(given, comm, root=root, sharding=sharding)
            assert_same_bits(rows, shard(whole, comm.rank, comm.size, sharding=sharding))
            joined = gather(rows, comm, root=root, sharding=sharding)
            assert (joined is None) == (comm.rank != root)
            if joined is not None:
                assert_same_bits(joined, whole)

x = np.random.default_rng(1).standard_normal((2, 42, 8)).astype(np.float32)
own = shard(x, comm.rank, comm.size, sharding="contiguous")
record: list[RingStep] = []
ring_attention(own, own, own, comm, sharding="contiguous", record=record)
assert [each.step for each in record] == list(range(comm.size))
owners = [each.owner for each in record]
assert owners == [comm.rank - t if t <= comm.rank else None for t in range(comm.size)]
for each in record:
    assert each.started <= each.computed <= each.arrived
    assert each.kernel_cpu >= 0
    assert each.join_cpu >= 0
assert sum(each.received for each in record) == comm.rank * 2 * own.nbytes
print(f"rank {comm.rank}: done")
