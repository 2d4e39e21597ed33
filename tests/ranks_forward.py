"""Under mpiexec: every case and sharding against the call on one machine, with bytes counted.

The argument, if any, is the instruction set.
"""

from __future__ import annotations

import sys

import numpy as np
from helpers import LSE_TOLERANCE, TOLERANCE, assert_close, assert_same_bits, multiplies_pairs
from mpi4py import MPI
from ring_cases import SHARDINGS, Case, cases

import headway
from headway.distributed import CountingComm, positions, ring_attention, shard

world = MPI.COMM_WORLD
if len(sys.argv) > 1:
    headway.set_isa(sys.argv[1])


def check(case: Case, sharding: str) -> None:
    comm = CountingComm(world)
    q, k, v, _ = case.arrays()
    wanted, wanted_lse = headway.attention(q, k, v, return_lse=True, **case.single)
    own = [shard(x, comm.rank, comm.size, sharding=sharding, axis=case.axis) for x in (q, k, v)]
    given = [x.copy() for x in own]
    results = []
    for threads in (1, 2):
        headway.set_num_threads(threads)
        results.append(
            ring_attention(*own, comm, sharding=sharding, return_lse=True, **case.options)
        )
    (got, lse), (other, other_lse) = results
    assert_same_bits(other, got, "out with two threads")
    assert_same_bits(other_lse, lse, "lse with two threads")
    for x, before in zip(own, given, strict=True):
        assert_same_bits(x, before, "an input")
    assert got.dtype == q.dtype
    assert got.flags.c_contiguous
    slack = 2 if multiplies_pairs(case.dtype) else 1
    cut = shard(wanted, comm.rank, comm.size, sharding=sharding, axis=case.axis)
    assert_close(got, cut, slack * TOLERANCE[case.dtype], "out")
    assert lse.dtype == wanted_lse.dtype
    cut = shard(wanted_lse, comm.rank, comm.size, sharding=sharding, axis=-1)
    assert_close(lse, cut, LSE_TOLERANCE[case.dtype], "lse")

    traffic = case.traffic(comm.size, sharding)
    calls = len(results)
    assert comm.sent == calls * traffic.sent[comm.rank], "bytes sent"
    assert comm.received == calls * traffic.received[comm.rank], "bytes received"
    agreement = 0 if comm.size == 1 else 8 * (65 + comm.size)
    assert comm.collective == calls * agreement, "bytes of the agreement"


def check_causality(sharding: str) -> None:
    """What a query may not see leaves its bits alone, NaN included, on whichever rank it is."""
    q, k, v, _ = Case("", {}, tokens=32).arrays()
    own = positions(world.rank, world.size, 32, sharding=sharding)
    results = []
    for hidden in (0.0, np.nan):
        changed = [x.copy() for x in (k, v)]
        for x in changed:
            x[:, :, 13:] += hidden
        cut = [shard(x, world.rank, world.size, sharding=sharding) for x in (q, *changed)]
        results.append(ring_attention(*cut, world, sharding=sharding))
    before = own < 13
    assert_same_bits(results[1][:, :, before], results[0][:, :, before], "rows that see no NaN")
    assert np.isnan(results[1][:, :, ~before]).all()


for name in SHARDINGS:
    check_causality(name)
for each in cases():
    for name in SHARDINGS:
        try:
            check(each, name)
        except BaseException as error:
            print(f"rank {world.rank}: {each.name}, {name}: {error!r}", file=sys.stderr)
            raise
print(f"rank {world.rank}: all agree")
