"""The rows of the backward pass and of training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from options import TRAINED
from row import Row

SIZES: dict[str, tuple[int, ...]] = {
    "backward-1024": (1, 12, 12, 1024, 64),
    "backward-512-batch": (4, 12, 12, 512, 64),
    "backward-1024-d128": (1, 32, 32, 1024, 128),
}
"""(B, H, Hkv, T, D)."""
LONG_NAME, LONG_SIZES = "backward-16384", (1, 2, 1, 16384, 64)
"""Two query heads that read one key head; the row in which memory is measured, too."""
DTYPES = ("float32", "bfloat16")

ONE_THREAD = ("headway@1", "torch-backward@1")
ALONE = ("headway", "headway@1", "torch-backward")
"""Who takes part with one thread; where the backward pass is timed alone."""
BESIDE_PLAIN = ("headway", "headway-plain", "torch-backward")

STEP = (4, 512, 12, 64)
"""(batch, tokens, heads, head_dim) of a training step; the input is heads * head_dim wide."""


def backward(name: str, sizes: Sequence[int], dtype: str, **more: Any) -> Row:
    """Gradients of a causal square (B, H, Hkv, T, D); forward and backward, or the given `part`."""
    batch, heads, kv_heads, tokens, dim = sizes
    more = {"part": "both", **more}
    return Row(name, "backward", dtype, batch, heads, kv_heads, tokens, tokens, dim, **more)


def backward_rows() -> Iterator[Row]:
    """Both passes by all threads and by one, the backward pass alone, a long row, options."""
    for name, sizes in SIZES.items():
        for dtype in DTYPES:
            quick = name == "backward-1024" and dtype == "float32"
            yield backward(name, sizes, dtype, quick=quick)
            yield backward(f"{name}-one", sizes, dtype, contestants=ONE_THREAD)
            yield backward(f"{name}-alone", sizes, dtype, part="backward", contestants=ALONE)
    first = "backward-1024"
    yield backward(first, SIZES[first], "float16")
    for dtype in DTYPES:
        yield backward(LONG_NAME, LONG_SIZES, dtype)
    for option in TRAINED:
        who = BESIDE_PLAIN[:2] if option == "dropout" else BESIDE_PLAIN
        name = f"backward-options-{option}"
        yield backward(name, SIZES[first], "float32", option=option, contestants=who)


def train_rows() -> Iterator[Row]:
    """A step of a module: its result, then the gradients of its input and its weights."""
    batch, tokens, heads, dim = STEP
    for dtype in DTYPES:
        sizes = (batch, heads, heads, tokens, tokens, dim)
        yield Row("train-step", "train", dtype, *sizes, part="both", quick=dtype == "float32")


def training_rows() -> list[Row]:
    """All of them, in the order in which they are measured."""
    return [*backward_rows(), *train_rows()]
