"""Memory of a backward pass beyond its inputs and gradients, in a process of its own (Linux).

The kernel's record of the peak is reset once the inputs, the result and its log-sum-exp are in
memory; what the first call then adds, less the gradients of q, k and v, is the figure.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from memory import RESET, resident_kib


def measure(tokens: int, heads: int, kv_heads: int, head_dim: int, dtype: str) -> float:
    """Bytes that a causal backward pass adds to this process at its highest."""
    import numpy as np
    from inputs import numpy_dtype

    import headway

    rng = np.random.default_rng(0)
    kind = numpy_dtype(dtype)
    counts = (heads, kv_heads, kv_heads, heads)
    shapes = [(1, count, tokens, head_dim) for count in counts]
    q, k, v, grad = (rng.standard_normal(s, dtype=np.float32).astype(kind) for s in shapes)
    out, lse = headway.attention(q, k, v, return_lse=True)
    headway.release_memory()
    RESET.write_text("5", encoding="ascii")
    before = resident_kib("VmRSS")
    gradients = headway.attention_backward(grad, q, k, v, out, lse)
    grown = 1024.0 * (resident_kib("VmHWM") - before)
    return grown - sum(array.nbytes for array in gradients)


def in_a_process(tokens: int, heads: int, kv_heads: int, head_dim: int, dtype: str) -> float:
    """`measure` in a process of its own."""
    sizes = map(str, (tokens, heads, kv_heads, head_dim))
    command = [sys.executable, __file__, "--inside", *sizes, dtype]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ)
    return float(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 16384])
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--inside", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        tokens, heads, kv_heads, head_dim = map(int, args.inside[:4])
        print(measure(tokens, heads, kv_heads, head_dim, args.inside[4]))
        return 0
    for tokens in args.tokens:
        sizes = (args.heads, args.kv_heads, args.head_dim)
        found = in_a_process(tokens, *sizes, args.dtype) / 2**20
        scores = args.heads * tokens * tokens * 4 / 2**20
        print(
            f"{args.dtype}, T = {tokens}, {args.heads} heads, D = {args.head_dim}: {found:.2f} MiB "
            f"beyond inputs and gradients (stored scores alone would be {scores:.0f} MiB)"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
