"""The machine's peak: fused multiply-adds in registers, in the ISA that headway uses, float32."""

from __future__ import annotations

import argparse

from headway import _core, get_num_threads, isa


def fma_peak(threads: int, seconds: float = 0.2, tries: int = 2) -> float:
    """GFLOP/s of `threads` threads that do independent multiply-adds alone; best of `tries`."""
    return max(_core.fma_peak(seconds, threads) for _ in range(tries))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=get_num_threads())
    parser.add_argument("--seconds", type=float, default=0.5, help="length of one try")
    parser.add_argument("--tries", type=int, default=5)
    args = parser.parse_args()
    best = fma_peak(args.threads, args.seconds, args.tries)
    print(f"{isa()}, {args.threads} threads: {best:.1f} GFLOP/s (float32)")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
