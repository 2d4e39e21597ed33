"""Under mpiexec: what does not fit raises the same on every rank; the cache stays as it was."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from helpers import assert_same_bits, make
from mpi4py import MPI

from headway.distributed import ShardedKVCache, ring_attention, shard

comm = MPI.COMM_WORLD
last = comm.size - 1
odd = comm.rank == last
others = f"ranks {', '.join(map(str, range(last)))}" if last > 1 else "rank 0"
k, v = make(1, (2, 2, 5, 4), "float32"), make(2, (2, 2, 5, 3), "float32")
q = make(3, (2, 4, 1, 4), "float32")
cache = ShardedKVCache(comm, 2, 2, 7, 4, v_head_dim=3)


def check(call: Callable[[], Any], kind: str, start: str) -> None:
    """The call raises this text, or one that begins so, on every rank."""
    try:
        call()
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
    else:
        got = "nothing"
    texts = comm.allgather(got)
    if not got.startswith(f"{kind}: {start}") or len(set(texts)) > 1:
        print(f"rank {comm.rank}: got {got!r}, wanted {kind}: {start!r}", file=sys.stderr)
        comm.Abort(3)


def refused(call: Callable[[], Any], kind: str, start: str) -> None:
    """The same, and lengths and results are what they were."""
    before, result = cache.lengths.tolist(), cache.attend(q)
    check(call, kind, start)
    assert cache.lengths.tolist() == before
    assert_same_bits(cache.attend(q), result)


cache.append(k, v)
refused(
    lambda: cache.append(k[:, :, :3], v[:, :, :3]),
    "ValueError",
    "rank 0: k: expected tokens that fit into the capacity of 7, got 3 for a sequence of 5; make "
    "the cache with a capacity of at least 8",
)
narrow = k[:, :, :1, : 3 if odd else 4]
refused(
    lambda: cache.append(narrow, v[:, :, :1]),
    "ValueError",
    f"rank {last}: k: expected shape (2, 2, n, 4)",
)
wide = k[:, :, :1].astype(np.float64 if odd else np.float32)
refused(
    lambda: cache.append(wide, v[:, :, :1]),
    "TypeError",
    f"rank {last}: k: expected float32 like the cache, got float64",
)
counts = [1, 0] if odd else [0, 1]
refused(
    lambda: cache.append(k[:, :, :1], v[:, :, :1], counts),
    "ValueError",
    f"counts: expected the same on every rank, got (0, 1) on {others}, (1, 0) on rank {last}",
)
refused(
    lambda: cache.attend(q, window=3 if odd else None),
    "ValueError",
    f"window: expected the same on every rank, got (-1, 0) on {others}, (2, 0) on rank {last}",
)
refused(
    lambda: cache.attend(q[:, :2] if odd else q),
    "ValueError",
    f"q's shape: expected the same on every rank, got (2, 4, 1, 4) on {others}, (2, 2, 1, 4) on",
)
refused(
    lambda: cache.attend(q.astype(np.float16) if odd else q),
    "TypeError",
    f"rank {last}: q: expected float32 like the cache, got float16",
)
slopes = np.full(4, 0.5 + odd)
refused(
    lambda: cache.attend(q, alibi_slopes=slopes),
    "ValueError",
    "alibi_slopes: expected the same on every rank, got float64 numbers of shape (2, 4)",
)
refused(lambda: cache.attend(q, scale="1"), "TypeError", "rank 0: scale: expected a real number")
refused(
    lambda: cache.append_rows(k[:, :, :1], v[:, :, :1], 1),
    "ValueError",
    "rank 0: num_tokens: expected sequences of one length, a multiple of",
)
empty = ShardedKVCache(comm, 2, 2, 7, 4, v_head_dim=3)
for tokens in (8, 2**70):
    check(
        lambda tokens=tokens: empty.append_rows(k[:, :, :1], v[:, :, :1], tokens),
        "ValueError",
        f"rank 0: k: expected tokens that fit into the capacity of 7, got {tokens} for a sequence",
    )
assert empty.lengths.tolist() == [0, 0]

# A rank that changed its cache alone is found by the next call; then it comes back.
if odd:
    cache.truncate(4)
wanted = f"the cache's lengths: expected the same on every rank, got (5, 5) on {others}, (4, 4)"
check(lambda: cache.attend(q), "ValueError", wanted)
check(lambda: cache.append(k[:, :, :1], v[:, :, :1]), "ValueError", wanted)
cache.truncate(4)
cache.append(k[:, :, 4:], v[:, :, 4:])
again = ShardedKVCache(comm, 2, 2, 7, 4, v_head_dim=3)
again.append(k, v)
assert_same_bits(cache.attend(q), again.attend(q))

# Whole sequences change places; one is emptied.
cache.reorder([1, 1])
again.reset()
again.append(k[[1, 1]], v[[1, 1]])
assert_same_bits(cache.attend(q), again.attend(q))
cache.reset(0)
assert cache.lengths.tolist() == [0, 5]
assert not cache.attend(q)[0].any()

wanted = f"head_dim: expected the same on every rank, got 4 on {others}, 5 on rank {last}; "
check(lambda: ShardedKVCache(comm, 2, 2, 7, 4 + odd), "ValueError", wanted)
wanted = "rank 0: capacity: expected at least 1, got 0"
check(lambda: ShardedKVCache(comm, 2, 2, 0, 4), "ValueError", wanted)

# A prompt that went around the ring stays where it is.
x = [make(n, (1, 2, 11, 4), "float32") for n in range(3)]
own = [shard(each, comm.rank, comm.size, sharding="striped") for each in x]
prompt = ring_attention(*own, comm, sharding="striped")
held = ShardedKVCache(comm, 1, 2, 16, 4)
held.append_rows(own[1], own[2], 11)
every = held.attend(x[0])
cut = shard(every, comm.rank, comm.size, sharding="striped")
assert np.allclose(cut, prompt, atol=1e-6), "the ring and the cache differ"
