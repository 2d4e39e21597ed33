"""Under mpiexec: what differs on the last rank is refused on all, in the same words."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
from mpi4py import MPI

from headway.distributed import ring_attention, ring_attention_backward, scatter, shard

comm = MPI.COMM_WORLD
odd = comm.rank == comm.size - 1
x = np.zeros((2, 4, 12, 8), np.float32)


def refused(kind: type[Exception], text: str, call: Any) -> None:
    try:
        call()
        got = "nothing raised"
    except (TypeError, ValueError, MemoryError) as error:
        got = f"{type(error).__name__}: {error}"
    wanted = f"{kind.__name__}: {text}"
    texts = comm.allgather(got)
    if len(set(texts)) != 1 or not got.startswith(wanted):
        print(f"rank {comm.rank}: got {got!r}, wanted {wanted!r}", file=sys.stderr)
        comm.Abort(3)


def ring(change: dict[str, Any], width: int = 8, heads: int = 4, kv: int = 4, **same: Any) -> Any:
    """A call that differs on the last rank: in these options, or these sizes."""
    q = shard(np.zeros((2, heads, 12, 8), np.float32), comm.rank, comm.size)
    k = shard(np.zeros((2, kv, 12, 8), np.float32), comm.rank, comm.size)
    v = shard(np.zeros((2, kv, 12, width), np.float32), comm.rank, comm.size)
    dtype = change.pop("dtype", "f4")
    q, k, v = (each.astype(dtype) for each in (q, k, v))
    if change.pop("fewer", False):
        q, k, v = (each[:, :, 1:] for each in (q, k, v))
    return ring_attention(q, k, v, comm, **same, **change)


def on_last(**change: Any) -> dict[str, Any]:
    return change if odd else {}


comm.Barrier()
began = time.monotonic()
first = "rank 0" if comm.size == 2 else "ranks 0, 1"
last = f"rank {comm.size - 1}"
alike = "expected the same on every rank, got"
for change, kind, text in (
    ({"dtype": "f8"}, TypeError, f"q: {alike} float32 on {first}, float64 on {last}; convert"),
    ({"causal": False}, ValueError, f"causal: {alike} True on {first}, False on {last}; pass the"),
    ({"scale": 0.5}, ValueError, f"scale: {alike} None on {first}, 0.5 on {last}"),
    ({"window": 3}, ValueError, f"window: {alike} (-1, 0) on {first}, (2, 0) on {last}"),
    ({"softcap": 2.0}, ValueError, f"softcap: {alike} 0.0 on {first}, 2.0 on {last}"),
    ({"sinks": [0.0] * 4}, ValueError, f"sinks: {alike} None on {first}, [0.0, 0.0, 0.0, 0.0] on"),
    ({"alibi_slopes": [1] * 4}, ValueError, f"alibi_slopes: {alike} None on {first}, float64 num"),
    (
        {"cu_seqlens": [0, 12]},
        ValueError,
        f"cu_seqlens: {alike} None on {first}, [0, 12] on {last}",
    ),
    ({"sharding": "striped"}, ValueError, f"sharding: {alike} 'zigzag' on {first}, 'striped' on"),
    ({"sharding": "x"}, ValueError, f'{last}: sharding: expected "zigzag", "contiguous" or "st'),
    ({"causal": 1}, TypeError, f"{last}: causal: expected True or False, got 1 (int)"),
    ({"return_lse": 1}, TypeError, f"{last}: return_lse: expected True or False, got 1 (int)"),
    ({"record": 1}, TypeError, f"{last}: record: expected a list or None, got int; pass record"),
    ({"out": x}, ValueError, f"{last}: out: expected shape"),
    ({"fewer": True}, ValueError, "q: expected the rows that sharding='zigzag' gives"),
):
    refused(kind, text, lambda change=change: ring(on_last(**change)))
refused(
    ValueError,
    f"v's head_dim: {alike} 8 on {first}, 3 on {last}; pass arrays that differ along",
    lambda: ring({}, width=3 if odd else 8),
)
refused(
    ValueError,
    f"k's heads: {alike} 4 on {first}, 2 on {last}",
    lambda: ring({}, kv=2 if odd else 4),
)
refused(
    ValueError,
    f"q's batch, heads and head_dim: {alike} (2, 4, 8) on {first}, (2, 8, 8) on {last}",
    lambda: ring({}, heads=8 if odd else 4),
)
refused(
    ValueError,
    "cu_seqlens: expected integer offsets from 0 to 12, the tokens of the whole sequence",
    lambda: ring({}, cu_seqlens=[0, 11]),
)
refused(
    TypeError, "cu_seqlens: expected integer offsets from 0 to 12", lambda: ring({}, cu_seqlens="x")
)
rows = shard(x, comm.rank, comm.size)
refused(
    ValueError,
    "rank 0: k: expected",
    lambda: ring_attention(rows, rows[:, :, 1:], rows[:, :, 1:], comm),
)
lse = np.zeros(rows.shape[:3], np.float32)
refused(
    ValueError,
    f"call: {alike} ring_attention on {first}, ring_attention_backward on {last}; make the",
    lambda: (
        ring_attention_backward(rows, rows, rows, rows, rows, lse, comm)
        if odd
        else ring_attention(rows, rows, rows, comm)
    ),
)
refused(
    ValueError,
    f"{last}: sinks_grad: expected a call with sinks, got none",
    lambda: ring_attention_backward(rows, rows, rows, rows, rows, lse, comm, sinks_grad=odd),
)
refused(
    ValueError,
    f"root: {alike} 0 on {first}, 1 on {last}; pass",
    lambda: scatter(x, comm, root=1 if odd else 0),
)
refused(
    ValueError,
    f"rank 0: root: expected 0 to {comm.size - 1}, got 9; pass a rank",
    lambda: scatter(x, comm, root=9),
)
refused(
    TypeError,
    "rank 0: x: expected numbers, got object; convert",
    lambda: scatter(np.array([[None]]), comm),
)
refused(
    TypeError,
    "comm: expected a communicator of mpi4py that this process belongs to, got Comm (null); pass",
    lambda: ring_attention(rows, rows, rows, MPI.COMM_NULL),
)
ring({})  # and the next call works
assert time.monotonic() - began < 30, "a refusal takes no time"
print(f"rank {comm.rank}: all refused")
