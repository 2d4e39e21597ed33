"""The machine's peaks: multiply-adds in registers, per kind of number, and reading memory."""

from __future__ import annotations

import argparse

import numpy as np

from headway import _core, get_num_threads, isa

KINDS = ("float32", "float64", "bfloat16", "float16")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=get_num_threads())
    parser.add_argument("--seconds", type=float, default=0.5, help="length of one try")
    parser.add_argument("--tries", type=int, default=3)
    args = parser.parse_args()
    if min(args.threads, args.tries) < 1:
        parser.error("--threads and --tries: expected at least 1")
    for kind in KINDS:
        found = [_core.peak(args.seconds, args.threads, kind) for _ in range(args.tries)]
        rates = [rate for rate in found if rate is not None]
        text = f"{max(rates):.1f} GFLOP/s" if rates else "no multiply-add of its own"
        print(f"{isa()}, {args.threads} threads, {kind}: {text}")
    words = np.ones(2**27, np.uint64)
    rate = max(_core.read_bandwidth(args.seconds, args.threads, words) for _ in range(args.tries))
    print(f"reading 1 GiB, {args.threads} threads: {rate:.1f} GB/s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
