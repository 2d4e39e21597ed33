"""What a row is computed from, and what has to come out: plain float64, sampled if long."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rows import Row

Array = NDArray[Any]

TOLERANCES = {"float32": 2e-5, "float64": 1e-12, "bfloat16": 2e-2, "float16": 1e-2}
"""Largest difference to the reference, relative to the largest number expected."""

CHECKED_FLOPS = 4e9
"""Larger problems are checked on sampled rows: of the start, the middle, the end and at random."""


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The dtype of this name; bfloat16 is that of ml_dtypes."""
    if name == "bfloat16":
        import ml_dtypes

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(name)


@dataclass
class Inputs:
    """Arrays in the row's dtype; q, k and v are (B, H, T, D) views, whatever their memory order."""

    arrays: dict[str, Array] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]


def drawn(rng: np.random.Generator, dtype: str, shape: tuple[int, ...], scale: float) -> Array:
    wide = np.float64 if dtype == "float64" else np.float32
    array = rng.standard_normal(shape, dtype=wide)
    array *= wide(scale)
    return array.astype(numpy_dtype(dtype), copy=False)


def make_inputs(row: Row, seed: int = 0) -> Inputs:
    """Normal numbers, the same in every process; weights scaled to keep a unit's size."""
    rng = np.random.default_rng(seed)
    if row.kind == "projection":
        x = drawn(rng, row.dtype, (row.num_queries, row.d_in), 1)
        weight = drawn(rng, row.dtype, (row.d_in, row.d_out), row.d_in**-0.5)
        return Inputs({"x": x, "weight": weight})
    if row.kind in ("module", "stages"):
        width = row.width
        arrays = {"x": drawn(rng, row.dtype, (row.batch, row.num_keys, width), 1)}
        for name in ("w_query", "w_key", "w_value", "w_out"):
            arrays[name] = drawn(rng, row.dtype, (width, width), width**-0.5)
        return Inputs(arrays)
    counts = {"q": (row.num_heads, row.num_queries)}
    counts |= dict.fromkeys("kv", (row.num_kv_heads, row.num_keys))
    arrays = {
        name: drawn(rng, row.dtype, (row.batch, heads, tokens, row.head_dim), 1)
        for name, (heads, tokens) in counts.items()
    }
    if row.layout == "BTHD":
        arrays = {name: thd(array).swapaxes(1, 2) for name, array in arrays.items()}
    return Inputs(arrays)


def thd(array: Array) -> Array:
    """A (B, H, T, D) view as a contiguous (B, T, H, D) array; no copy where it lies like that."""
    return np.ascontiguousarray(array.swapaxes(1, 2))


def sampled_rows(row: Row) -> Array:
    """Numbers of the queries that are checked, ascending."""
    if row.flops <= CHECKED_FLOPS:
        return np.arange(row.num_queries)
    chosen = np.random.default_rng(1).choice(row.num_queries, 48, replace=False)
    fixed = [0, 1, row.num_queries // 2, row.num_queries - 2, row.num_queries - 1]
    return np.unique(np.concatenate([chosen, fixed]))


def causal_rows(q: Array, k: Array, v: Array, chosen: Array, scale: float) -> Array:
    """Softmax attention of the chosen queries in float64, head by head: (B, H, chosen, D)."""
    group = q.shape[1] // k.shape[1]
    past = k.shape[2] - q.shape[2]
    hidden = np.arange(k.shape[2]) > chosen[:, None] + past
    out = np.empty((*q.shape[:2], len(chosen), v.shape[3]))
    for b, h in np.ndindex(*q.shape[:2]):
        keys, values = (array[b, h // group].astype(np.float64) for array in (k, v))
        scores = q[b, h][chosen].astype(np.float64) @ keys.T * scale
        scores[hidden] = -np.inf
        scores -= scores.max(axis=1, keepdims=True)
        np.exp(scores, out=scores)
        out[b, h] = scores @ values / scores.sum(axis=1, keepdims=True)
    return out


def expected(row: Row, inputs: Inputs) -> tuple[Array, Array]:
    """(numbers of the checked rows, what they should be): (..., rows, width) in float64."""
    if row.kind == "projection":
        every = np.arange(row.num_queries)
        return every, inputs["x"].astype(np.float64) @ inputs["weight"].astype(np.float64)
    if row.kind == "attention":
        chosen = sampled_rows(row)
        return chosen, causal_rows(inputs["q"], inputs["k"], inputs["v"], chosen, row.scale)
    wide = {name: array.astype(np.float64) for name, array in inputs.arrays.items()}
    split = (row.batch, row.num_keys, row.num_heads, row.head_dim)
    q, k, v = (
        (wide["x"] @ wide[name]).reshape(split).swapaxes(1, 2)
        for name in ("w_query", "w_key", "w_value")
    )
    every = np.arange(row.num_keys)
    context = causal_rows(q, k, v, every, row.scale).swapaxes(1, 2).reshape(wide["x"].shape)
    return every, context @ wide["w_out"]


def error_of(got: Array, chosen: Array, wanted: Array) -> float:
    """Largest difference, relative to the largest number wanted; infinite at NaN or another shape.

    `got` has all rows on its last axis but one.
    """
    found = got[..., chosen, :] if got.ndim >= 2 and got.shape[-2] > chosen[-1] else got
    if found.shape != wanted.shape:
        return math.inf
    difference = np.abs(found.astype(np.float64) - wanted)
    return (
        float(difference.max() / np.abs(wanted).max())
        if np.isfinite(difference).all()
        else math.inf
    )
