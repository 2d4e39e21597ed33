"""Caches and queries for the programs that decode over ranks, the same on every rank."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from helpers import Array, dtype_of, make

HEADS, KV_HEADS, WIDTH, V_WIDTH = 4, 2, 12, 7


class Case(NamedTuple):
    """A cache filled in pieces, and one call of attend on it."""

    name: str
    dtype: str
    pieces: tuple[tuple[int, ...], ...]  # tokens that each sequence takes, piece by piece
    queries: int
    options: dict[str, Any]

    @property
    def batch(self) -> int:
        return len(self.pieces[0])

    @property
    def lengths(self) -> list[int]:
        return [sum(piece) for piece in zip(*self.pieces, strict=True)]

    def tokens(self, number: int) -> tuple[Array, Array]:
        """k and v of a piece; rows that a sequence does not take are NaN."""
        taken = self.pieces[number]
        shape = self.batch, KV_HEADS, max(taken)
        source = "float32" if self.dtype in ("int8", "fp8_e4m3") else self.dtype
        found = []
        for which, width in ((1, WIDTH), (2, V_WIDTH)):
            x = make((number, which), (*shape, width), source)
            for b, count in enumerate(taken):
                x[b, :, count:] = np.nan
            found.append(x)
        return found[0], found[1]

    def q(self) -> Array:
        source = "float32" if self.dtype in ("int8", "fp8_e4m3") else self.dtype
        return make(9, (self.batch, HEADS, self.queries, WIDTH), source)


SLOPES = np.array([0.5, 0.25, 0.0625, 0.01])
SINKS = np.array([0.3, -np.inf, 2.0, -1.0])
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 5},
    "one key": {"window": 1},
    "alibi": {"alibi_slopes": SLOPES},
    "alibi of each": {"alibi_slopes": np.stack([SLOPES, SLOPES[::-1]])},
    "sinks": {"sinks": SINKS},
    "all keys": {"causal": False},
    "all keys, alibi": {"causal": False, "alibi_slopes": SLOPES, "align": 7},
    "two-sided": {"causal": False, "window": (6, 3), "align": [3, 11]},
    "two-sided, alibi": {"causal": False, "window": (4, 6), "alibi_slopes": SLOPES, "align": 5},
    "left, alibi": {"causal": False, "window": (9, -1), "alibi_slopes": SLOPES, "align": "start"},
    "all": {"window": 9, "softcap": 3.0, "scale": 0.7, "sinks": SINKS, "alibi_slopes": SLOPES},
    "start": {"align": "start"},
    "before": {"align": -2, "sinks": SINKS},
}
EVEN, RAGGED = ((20, 20), (1, 1), (3, 3)), ((9, 20), (4, 0), (1, 1))
FEW = ((1, 2),)


def cases() -> list[Case]:
    """All of them."""
    found = []
    for name, options in OPTIONS.items():
        for shape, pieces in (("even", EVEN), ("ragged", RAGGED), ("few", FEW)):
            for queries in (1, 2, 7):
                text = f"{name}, {shape}, {queries}"
                found.append(Case(text, "float32", pieces, queries, options))
    found.append(Case("no query", "float32", RAGGED, 0, OPTIONS["all"]))
    for dtype in ("float64", "float16", "bfloat16", "int8", "fp8_e4m3"):
        for name in ("plain", "all"):
            for queries in (1, 5):
                text = f"{name}, {dtype}, {queries}"
                found.append(Case(text, dtype, RAGGED, queries, OPTIONS[name]))
    return found


def result_dtype(case: Case) -> Any:
    return dtype_of("float32" if case.dtype in ("int8", "fp8_e4m3") else case.dtype)
