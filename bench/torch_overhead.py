"""What a tiny call through headway.interop.torch costs beyond headway.attention on the same memory.

Rows: the function without gradients, the function with gradients recorded, and PyTorch's own
function under override(); bare is headway.attention, PyTorch its function alone. One thread,
microseconds of wall time, in turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import headway
from headway.interop.torch import override, scaled_dot_product_attention

SHAPE = (1, 2, 4, 8)
TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

Call = Callable[[], Any]


def contestants(dtype: Any) -> dict[str, Call]:
    """The calls by name; the first one is what the others are compared with."""
    q, k, v = (torch.randn(SHAPE).to(dtype) for _ in range(3))
    if dtype is torch.bfloat16:
        import ml_dtypes

        arrays = [x.view(torch.int16).numpy().view(ml_dtypes.bfloat16) for x in (q, k, v)]
    else:
        arrays = [x.numpy() for x in (q, k, v)]
    leaf = q.clone().requires_grad_()
    sdpa = torch.nn.functional.scaled_dot_product_attention
    return {
        "bare": lambda: headway.attention(*arrays),
        "function": lambda: scaled_dot_product_attention(q, k, v, is_causal=True),
        "recorded": lambda: scaled_dot_product_attention(leaf, k, v, is_causal=True),
        "override": lambda: sdpa(q, k, v, is_causal=True),
        "PyTorch": lambda: sdpa(q, k, v, is_causal=True),
    }


def microseconds(call: Call, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls * 1e6


def measured(dtype: Any, rounds: int, calls: int) -> dict[str, list[float]]:
    runs = contestants(dtype)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, call in runs.items():
            if name == "override":
                with override():
                    times[name].append(microseconds(call, calls))
            else:
                times[name].append(microseconds(call, calls))
    return times


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--calls", type=int, default=50, help="in each round")
    parser.add_argument("--limit", type=float, default=10.0, help="us; from there on exit code 1")
    args = parser.parse_args()
    headway.set_num_threads(1)
    torch.set_num_threads(1)
    worst = 0.0
    for dtype in TYPES:
        times = measured(dtype, args.rounds, args.calls)
        best = {name: min(found) for name, found in times.items()}
        worst = max(worst, best["function"] - best["bare"])
        row = ", ".join(
            f"{name} {best[name]:.1f} ({statistics.median(found):.1f})"
            for name, found in times.items()
        )
        beyond = best["function"] - best["bare"]
        print(f"{str(dtype).removeprefix('torch.')}: {row}; beyond bare {beyond:.1f} us")
    return 0 if worst < args.limit else 1


if __name__ == "__main__":
    raise SystemExit(main())
