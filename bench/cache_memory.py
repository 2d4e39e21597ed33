"""Memory that a cache takes, beside what it says, in a process of its own (Linux).

The kernel's record of the peak is reset before the cache is made; it is then filled piece by piece
and read by one query. What a cache needs beside its own memory is there before: the scratch of all
threads, which one whose keys are shared out over them has used.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from memory import RESET, resident_kib

PIECE = 64
"""Tokens that are appended at once."""

SHARED = 4096
"""Tokens of a cache whose keys are shared out over the threads."""


def measure(tokens: int, heads: int, kv_heads: int, head_dim: int, dtype: str) -> list[float]:
    """Bytes as ``nbytes`` says, and bytes by which the process grew at its highest."""
    import numpy as np
    from inputs import numpy_dtype
    from rows import QUANTISED

    import headway

    wide = np.float32 if dtype in QUANTISED else numpy_dtype(dtype)
    rng = np.random.default_rng(0)
    q = rng.standard_normal((1, heads, 1, head_dim)).astype(wide)
    piece = rng.standard_normal((1, kv_heads, PIECE, head_dim)).astype(wide)
    kind = dtype if dtype in QUANTISED else wide

    def used(length: int) -> headway.KVCache:
        cache = headway.KVCache(1, kv_heads, length, head_dim, dtype=kind)
        for start in range(0, length, PIECE):
            part = piece[:, :, : length - start]
            cache.append(part, part)
        cache.attend(q)
        return cache

    used(SHARED)
    RESET.write_text("5", encoding="ascii")
    before = resident_kib("VmRSS")
    cache = used(tokens)
    return [float(cache.nbytes), 1024.0 * (resident_kib("VmHWM") - before)]


def in_a_process(
    tokens: int, heads: int, kv_heads: int, head_dim: int, dtype: str
) -> dict[str, float]:
    """ "nbytes" and "resident" of such a cache, from a process of its own."""
    sizes = map(str, (tokens, heads, kv_heads, head_dim))
    command = [sys.executable, __file__, "--inside", *sizes, dtype]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ)
    said, seen = map(float, done.stdout.split())
    return {"nbytes": said, "resident": seen}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 16384, 65536])
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--kv-heads", type=int, default=1)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--inside", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        tokens, heads, kv_heads, head_dim = map(int, args.inside[:4])
        print(*measure(tokens, heads, kv_heads, head_dim, args.inside[4]))
        return 0
    for tokens in args.tokens:
        found = in_a_process(tokens, args.heads, args.kv_heads, args.head_dim, args.dtype)
        mib = [found[name] / 2**20 for name in ("nbytes", "resident")]
        print(f"{args.dtype}, {tokens} tokens: nbytes {mib[0]:.2f} MiB, seen {mib[1]:.2f} MiB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
