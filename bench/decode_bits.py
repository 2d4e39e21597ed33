"""What it costs that a decoded token has the bits of the prefill, where it costs anything.

    python bench/decode_bits.py [--seconds 6]

Prefill and decoding of bfloat16 on "amx" and "avx512bf16" multiply in pairs, on the same tiles: so
are their bits the same. The kernels of "avx512", which widen to float32, decode the same cache to
other bits. Both are timed in turn over one cache, one query per sequence. All other dtypes decode
on kernels of their own that have the bits of the prefill: there is nothing to compare with.
"""

from __future__ import annotations

import argparse
import time

import ml_dtypes
import numpy as np

import headway

#: (B, Hkv, T), with 32 query heads and head_dim 64.
SHAPES = [(batch, heads, t) for batch in (1, 8) for heads in (32, 8) for t in (1024, 8192)]
PAIRS, WIDENING = ("amx", "avx512bf16"), "avx512"


def times(shape: tuple[int, int, int], isas: list[str], seconds: float) -> dict[str, list[float]]:
    """Return the seconds of each call by instruction set, which take turns."""
    batch, heads, tokens = shape
    rng = np.random.default_rng(0)
    k, v = (
        rng.standard_normal((batch, heads, tokens, 64), np.float32).astype(ml_dtypes.bfloat16)
        for _ in "kv"
    )
    q = rng.standard_normal((batch, 32, 1, 64), np.float32).astype(ml_dtypes.bfloat16)
    found: dict[str, list[float]] = {name: [] for name in isas}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(found[isas[0]]) < 15:
        for name in isas:
            headway.set_isa(name)
            headway.attention(q, k, v)
            for _ in range(3):
                start = time.perf_counter()
                headway.attention(q, k, v)
                found[name].append(time.perf_counter() - start)
    return found


def main() -> None:
    """Print a table: best and median of each, and the cost by both."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=6.0, help="for each row (default 6)")
    seconds = parser.parse_args().seconds
    isas = [name for name in (WIDENING, *PAIRS) if name in headway.available_isas()]
    if len(isas) < 2:
        raise SystemExit("this CPU multiplies no pairs of bfloat16: the bits cost nothing")
    print(
        "| (B, H, Hkv, 1 over T, D) | " + " | ".join(f"{name} ms (median)" for name in isas) + " |"
    )
    print("| --- |" + " --: |" * len(isas))
    for shape in SHAPES:
        cells, base = [], (0.0, 0.0)
        for name, values in times(shape, isas, seconds).items():
            best, median = min(values), float(np.median(values))
            text = f"{1e3 * best:.3g} ({1e3 * median:.3g})"
            if name == WIDENING:
                base = best, median
            else:
                text += f", {best / base[0] - 1:+.0%} ({median / base[1] - 1:+.0%})"
            cells.append(text)
        batch, heads, tokens = shape
        print(f"| ({batch}, 32, {heads}, 1 over {tokens:,}, 64) | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
