"""One layer of attention over a prompt that no rank holds whole, then new tokens one by one.

    mpiexec -n 4 python -m mpi4py examples/long_context.py
    mpiexec -n 4 python -m mpi4py examples/long_context.py --tokens 65536 --new 64 --check

Every rank makes the rows of the prompt that it owns, "striped": tokens r, r + W, r + 2 W ... of W
ranks. `ring_attention` works on all of the prompt; its keys and values then stay where they are,
in a `ShardedKVCache`, and each new token asks the shares of all ranks. `--check` lets rank 0
compute everything alone, too, and compares. Needs `pip install 'headway[mpi]'`.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from mpi4py import MPI

import headway
from headway.distributed import ShardedKVCache, gather, positions, ring_attention

HEADS, KV_HEADS, HEAD_DIM = 8, 2, 64
WIDTHS = [HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM]


def tokens(places: np.ndarray) -> tuple[np.ndarray, ...]:
    """q (1, H, n, D), k and v (1, Hkv, n, D) of the tokens at these places: drawn for each place.

    In a model they are the products of the token's vector with its weights.
    """
    rows = [
        np.random.default_rng(int(place)).standard_normal(sum(WIDTHS), np.float32)
        for place in places
    ]
    table = np.array(rows, np.float32).reshape(1, len(places), sum(WIDTHS) // HEAD_DIM, HEAD_DIM)
    parts = np.split(table, np.cumsum(WIDTHS)[:-1] // HEAD_DIM, axis=2)  # by heads
    return tuple(np.ascontiguousarray(part.swapaxes(1, 2)) for part in parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=8192, metavar="T", help="of the prompt")
    parser.add_argument("--new", type=int, default=16, metavar="N", help="tokens after the prompt")
    parser.add_argument("--check", action="store_true", help="compare with one rank alone")
    options = parser.parse_args()
    if options.tokens < 1 or options.new < 0:
        got = f"{options.tokens} and {options.new}"
        parser.error(f"expected --tokens 1 or more and --new 0 or more, got {got}")
    comm = MPI.COMM_WORLD
    end = options.tokens + options.new

    # The prompt: each rank has its rows, and gets the results of its rows.
    own = positions(comm.rank, comm.size, options.tokens, sharding="striped")
    q, k, v = tokens(own)
    comm.Barrier()  # the time is that of the ring, not of the slowest start
    start = time.perf_counter()
    z = ring_attention(q, k, v, comm, sharding="striped")
    prefill = time.perf_counter() - start

    # Its keys and values lie where the cache wants them.
    cache = ShardedKVCache(comm, 1, KV_HEADS, end, HEAD_DIM)
    cache.append_rows(k, v, options.tokens)

    # New tokens: every rank has all of them, keeps its own, and gets the whole result.
    start, later = time.perf_counter(), []
    for place in range(options.tokens, end):
        q, k, v = tokens(np.array([place]))
        cache.append(k, v)
        later.append(cache.attend(q))
    decode = time.perf_counter() - start

    if comm.rank == 0:
        print(f"{options.tokens} tokens on {comm.size} ranks: {prefill:.3f} s")
        print(f"{options.new} new ones: {decode / max(1, options.new) * 1e3:.2f} ms each")
    if options.check:
        prompt = gather(z, comm, sharding="striped")  # (1, H, T, D) on rank 0, else None
        if comm.rank == 0:
            alone = headway.attention(*tokens(np.arange(end)))
            together = np.concatenate([prompt, *later], axis=2)
            print(f"largest difference to one rank alone: {np.abs(together - alone).max():.1e}")


if __name__ == "__main__":
    main()
