"""The matrices of a trace as pictures: at most so many cells, the others averaged into them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .arrays import Array

if TYPE_CHECKING:
    from .trace_record import Trace
    from .trace_steps import Step


class Axis(NamedTuple):
    """One axis of a picture: the blocks of rows or columns that its cells stand for."""

    word: str  # what is counted: "query", "key", "token", "column"
    names: list[str]  # of each block, short
    starts: list[int]  # where each block begins, and the end
    numbered: bool = False  # whether the names are positions

    @property
    def blocked(self) -> bool:
        """Whether a cell stands for several rows or columns."""
        return len(self.starts) - 1 < self.starts[-1]

    def told(self, n: int) -> str:
        """Block n in words: 'query "cat" (1)' or "queries 8 to 15"."""
        start, end = self.starts[n : n + 2]
        name = self.names[n]
        if end - start > 1:
            plural = "queries" if self.word == "query" else f"{self.word}s"
            return f"{plural} {name.replace('..', ' to ')}"
        return f"{self.word} {name}" if self.numbered else f'{self.word} "{name}" ({start})'


class Picture(NamedTuple):
    """A step as cells: numbers, NaN where there are none to see."""

    step: Step
    values: Array  # (rows, columns) float64
    hidden: Array  # (rows, columns) bool: every cell of the block is hidden
    rows: Axis
    columns: Axis
    sink: Array | None = None  # (rows,): what goes to the sink, for weights

    @property
    def largest(self) -> float:
        """Largest magnitude of a finite cell."""
        finite = self.values[np.isfinite(self.values)]
        return float(np.abs(finite).max(initial=0.0))


def picture(trace: Trace, name: str, batch: int, most: int) -> Picture:
    """A step as at most ``most`` by ``most`` cells.

    A cell of weights is what a query of its block gives to all keys of its block, on average, so
    that a row sums to 1, too; a cell of a mask is the share that is seen; any other is a mean.
    """
    step = trace[name]
    matrix = step.matrix(batch)
    labels = trace.labels
    names = {"queries": labels.queries[batch], "keys": labels.keys[batch]}
    names["tokens"] = names["keys"]
    rows, columns = (
        axis(kind, names.get(kind), count, most, labels.numbered)
        for kind, count in zip((step.row_axis, step.column_axis), matrix.shape, strict=True)
    )
    hidden = np.zeros((len(rows.names), len(columns.names)), dtype=bool)
    if step.kind in ("weights", "mask"):
        seen = trace[f"mask_{step.head}"].matrix(batch)
        hidden = _sums(seen, rows, columns) == 0
    values = _aggregated(matrix, step.kind, rows, columns)
    sink = None
    share = f"sink_weights_{step.head}"
    if step.kind == "weights" and share in trace:
        one = Axis("sink", ["sink"], [0, 1], True)
        sink = _aggregated(trace[share].matrix(batch), "weights", rows, one)[:, 0]
    return Picture(step, values, hidden, rows, columns, sink)


def axis(
    kind: str, names: Sequence[str] | None, count: int, most: int, numbered: bool = True
) -> Axis:
    """Rows or columns cut into at most ``most`` blocks of nearly equal length."""
    blocks = min(count, most)
    starts = [count * n // max(blocks, 1) for n in range(blocks + 1)]
    words = {"queries": "query", "keys": "key", "tokens": "token"}
    numbered = numbered or names is None
    places = names if names is not None and numbered else [str(n) for n in range(count)]
    shown = []
    for first, end in itertools.pairwise(starts):
        if end - first > 1:
            shown.append(f"{places[first]}..{places[end - 1]}")
        else:
            shown.append(places[first] if names is None else token_text(names[first]))
    return Axis(words.get(kind, "column"), shown, starts, numbered)


def token_text(token: str) -> str:
    """A token that can be seen: blanks and control characters as Python writes them."""
    return token if token.isprintable() and token.strip() else repr(token)


def _aggregated(matrix: Array, kind: str, rows: Axis, columns: Axis) -> Array:
    wide = matrix.astype(np.float64)
    if not rows.blocked and not columns.blocked:
        return wide
    with np.errstate(invalid="ignore", over="ignore"):
        sums = _sums(wide, rows, columns)
    heights, widths = np.diff(rows.starts)[:, None], np.diff(columns.starts)
    cells: Array = sums / heights if kind == "weights" else sums / (heights * widths)
    return cells


def _sums(matrix: Array, rows: Axis, columns: Axis) -> Array:
    if not matrix.size:
        return np.zeros((len(rows.names), len(columns.names)))
    wide = matrix.astype(np.float64)
    over_rows = np.add.reduceat(wide, rows.starts[:-1], axis=0)
    return np.asarray(np.add.reduceat(over_rows, columns.starts[:-1], axis=1))
