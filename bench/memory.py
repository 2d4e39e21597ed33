"""Peak memory of one call beyond its inputs and output, in a process of its own (Linux).

The kernel's record of the peak is reset once q, k, v and out are in memory; what the first call
then adds (packed tiles, thread stacks, the thread pool itself) is the figure.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

STATUS = Path("/proc/self/status")
RESET = Path("/proc/self/clear_refs")


def resident_kib(field: str) -> int:
    """VmRSS (now) or VmHWM (highest so far) of this process, in KiB."""
    for line in STATUS.read_text(encoding="ascii").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise SystemExit(f"memory: this system's {STATUS} has no {field}")


ROWS = (
    *(
        (dtype, tokens, False)
        for dtype in ("float32", "bfloat16", "float16")
        for tokens in (1024, 16_384, 65_536)
        if tokens < 65_536 or dtype == "float32"
    ),
    ("float32", 16_384, True),
)
"""(dtype, tokens, with options) of the grid's memory rows."""


def measure(tokens: int, heads: int, head_dim: int, dtype: str, with_options: bool) -> float:
    """MiB that one causal call adds to this process at its highest.

    With options: a window, a soft cap, ALiBi, sinks and a bool mask (1, 1, 1, Tk), all at once.
    """
    import numpy as np
    from inputs import numpy_dtype

    import headway

    rng = np.random.default_rng(0)
    shape = (1, heads, tokens, head_dim)
    q, k, v = (
        rng.standard_normal(shape, dtype=np.float32).astype(numpy_dtype(dtype)) for _ in range(3)
    )
    options: dict[str, Any] = {}
    if with_options:
        options = {"window": (512, 0), "softcap": 30.0, "sinks": np.ones(heads, np.float32)}
        options |= {"alibi_slopes": np.full(heads, 0.1, np.float32)}
        options |= {"mask": (np.arange(tokens) % 64 != 37)[None, None, None]}
    out = np.full_like(q, 1.0)
    RESET.write_text("5", encoding="ascii")
    before = resident_kib("VmRSS")
    headway.attention(q, k, v, out=out, **options)
    return (resident_kib("VmHWM") - before) / 1024


def in_a_process(
    tokens: int,
    dtype: str,
    *,
    heads: int = 8,
    head_dim: int = 64,
    threads: int | None = None,
    options: bool = False,
) -> float:
    """`measure` in a process of its own."""
    sizes = ["--tokens", tokens, "--heads", heads, "--head-dim", head_dim, "--dtype", dtype]
    command = [sys.executable, __file__, "--inside", *map(str, sizes)]
    command += ["--options"] if options else []
    env = {**os.environ, **({"HEADWAY_NUM_THREADS": str(threads)} if threads else {})}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=env)
    return float(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 16384])
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--options", action="store_true", help="with five options at once")
    parser.add_argument("--limit", type=float, default=64.0, help="MiB; from there on exit code 1")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        found = measure(args.tokens[0], args.heads, args.head_dim, args.dtype, args.options)
        print(found)
        return 0
    worst = 0.0
    for tokens in args.tokens:
        sizes = {"heads": args.heads, "head_dim": args.head_dim}
        found = in_a_process(tokens, args.dtype, **sizes, options=args.options)
        scores = args.heads * tokens * tokens * 4 / 2**20
        print(
            f"T = {tokens}, {args.heads} heads, D = {args.head_dim}: {found:.1f} MiB beyond inputs "
            f"and output (stored scores alone would be {scores:.0f} MiB)"
        )
        worst = max(worst, found)
    return 0 if worst < args.limit else 1


if __name__ == "__main__":
    raise SystemExit(main())
