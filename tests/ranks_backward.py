"""Under mpiexec: the gradients of every case and sharding, and those of one machine.

The argument, if any, is the instruction set.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from helpers import TOLERANCE, Array, assert_close, assert_same_bits, make, multiplies_pairs
from mpi4py import MPI
from ring_cases import SHARDINGS, Case, cases

import headway
from headway.distributed import (
    CountingComm,
    ring_attention,
    ring_attention_backward,
    shard,
)

world = MPI.COMM_WORLD
if len(sys.argv) > 1:
    headway.set_isa(sys.argv[1])


def check(case: Case, sharding: str) -> None:
    comm = CountingComm(world)

    def cut(x: Array, axis: int = case.axis) -> Array:
        return shard(x, comm.rank, comm.size, sharding=sharding, axis=axis)

    q, k, v, grad_out = case.arrays()
    out, lse = headway.attention(q, k, v, return_lse=True, **case.single)
    grad_lse = make(9, lse.shape, lse.dtype.name)
    more: dict[str, Any] = {"sinks_grad": True} if "sinks" in case.options else {}
    wanted = headway.attention_backward(
        grad_out, q, k, v, out, lse, grad_lse=grad_lse, **more, **case.single
    )
    own = [cut(x) for x in (q, k, v)]
    own_out, own_lse = ring_attention(
        *own, comm, sharding=sharding, return_lse=True, **case.options
    )
    before = comm.sent, comm.received
    results = []
    for threads in (1, 2):
        headway.set_num_threads(threads)
        results.append(
            ring_attention_backward(
                cut(grad_out),
                *own,
                own_out,
                own_lse,
                comm,
                grad_lse=cut(grad_lse, -1),
                sharding=sharding,
                **more,
                **case.options,
            )
        )
    names = ("dq", "dk", "dv", "dsinks")[: len(wanted)]
    slack = 4 if multiplies_pairs(case.dtype) else 2
    for name, got, other, whole in zip(names, *results, wanted, strict=True):
        assert_same_bits(other, got, f"{name} with two threads")
        assert got.dtype == whole.dtype
        expected = whole if name == "dsinks" else cut(whole)
        scale = float(np.abs(whole.astype(np.float64)).max(initial=1.0))  # of the whole gradient
        near = float(np.abs(expected.astype(np.float64)).max(initial=0.0)) or scale
        assert_close(got, expected, slack * TOLERANCE[case.dtype] * max(1.0, scale / near), name)
    traffic = case.traffic(comm.size, sharding, backward=True)
    assert comm.sent - before[0] == 2 * traffic.sent[comm.rank], "bytes sent"
    assert comm.received - before[1] == 2 * traffic.received[comm.rank], "bytes received"


for each in cases():
    for name in SHARDINGS:
        try:
            check(each, name)
        except BaseException as error:
            print(f"rank {world.rank}: {each.name}, {name}: {error!r}", file=sys.stderr)
            raise
print(f"rank {world.rank}: all agree")
