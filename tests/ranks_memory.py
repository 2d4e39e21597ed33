"""Under mpiexec: what a call holds at its highest, against what its documentation says."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

from helpers import dtype_of, make
from mpi4py import MPI

from headway.distributed import ring_attention, ring_attention_backward

comm = MPI.COMM_WORLD
ROWS, HEADS, KV_HEADS, WIDTH = 512, 4, 2, 64
SLACK = 200_000  # Python's own objects


def peak(function: Callable[..., Any], *arrays: Any, **options: Any) -> int:
    """Bytes that NumPy and Python hold at the highest, beyond those before the call."""
    function(*arrays, comm, **options)  # imports and caches
    tracemalloc.start()
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    kept = function(*arrays, comm, **options)
    highest = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    return highest - sum(x.nbytes for x in kept)


for dtype in ("float32", "bfloat16"):
    item = dtype_of(dtype).itemsize
    q = make((1, comm.rank), (1, HEADS, ROWS, WIDTH), dtype)
    k = make((2, comm.rank), (1, KV_HEADS, ROWS, WIDTH), dtype)
    block = 2 * k.nbytes
    wide, half = 4 * q.size, item == 2
    for sharding in ("zigzag", "striped", "contiguous"):
        options: dict[str, Any] = {"sharding": sharding, "alibi_slopes": [0.1] * HEADS}
        found = peak(ring_attention, q, k, k, return_lse=True, **options)
        stated = 2 * block + wide * (1 + half) + 64 * ROWS * HEADS
        if found > stated + SLACK:
            print(f"{dtype}, {sharding}: {found:,} bytes, stated {stated:,}", file=sys.stderr)
            comm.Abort(3)
        out, lse = ring_attention(q, k, k, comm, return_lse=True, **options)
        found = peak(ring_attention_backward, q, q, k, k, out, lse, **options)
        gradient = 2 * 4 * k.size
        stated = 2 * block + 6 * gradient + 2 * wide + 64 * ROWS * HEADS
        stated += half * (3 * wide + gradient)
        if found > stated + SLACK:
            print(f"{dtype}, {sharding}: back {found:,}, stated {stated:,}", file=sys.stderr)
            comm.Abort(3)
        print(f"rank {comm.rank}: {dtype}, {sharding}: within what is stated")
