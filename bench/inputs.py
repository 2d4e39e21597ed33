"""What a row is computed from, and what has to come out: plain float64, sampled if long."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from options import EVERY, FIRST, PLAIN, Options
from row import MODULE_KINDS, QUANTISED, Row

Array = NDArray[Any]

TOLERANCES = {"float32": 2e-5, "float64": 1e-12, "bfloat16": 2e-2, "float16": 1e-2}
TOLERANCES |= {"int8": 1e-3, "fp8_e4m3": 1e-3}
"""Largest difference to the reference, relative to the largest number expected.

That of a quantised cache is computed from the rounded keys and values.
"""

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
    """Arrays in the row's dtype; q, k and v are (B, H, T, D) views, whatever their memory order.

    Of packed rows they are (T, H, D). Options add a mask in four axes, ALiBi's slopes and sinks;
    rows with gradients "grad_out", that of the result.
    """

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
    if row.kind in MODULE_KINDS:
        width = row.width
        arrays = {"x": drawn(rng, row.dtype, (row.batch, row.num_keys, width), 1)}
        for name in ("w_query", "w_key", "w_value", "w_out"):
            arrays[name] = drawn(rng, row.dtype, (width, width), width**-0.5)
        if row.kind == "train":
            arrays["grad_out"] = drawn(rng, row.dtype, arrays["x"].shape, 1)
        return Inputs(arrays)
    if row.kind == "packed":
        shape = (sum(row.lengths), row.num_heads, row.head_dim)
        return Inputs({name: drawn(rng, row.dtype, shape, 1) for name in "qkv"})
    dtype = "float32" if row.dtype in QUANTISED else row.dtype
    counts = {"q": (row.num_heads, row.num_queries)}
    counts |= dict.fromkeys("kv", (row.num_kv_heads, row.num_keys))
    arrays = {
        name: drawn(rng, dtype, (row.batch, heads, tokens, row.head_dim), 1)
        for name, (heads, tokens) in counts.items()
    }
    if row.kind == "decode" and row.dtype in QUANTISED:
        arrays |= {name: rounded(arrays[name], row.dtype) for name in "kv"}
    if row.layout == "BTHD":
        arrays = {name: thd(array).swapaxes(1, 2) for name, array in arrays.items()}
    arrays |= option_arrays(row, rng)
    if row.kind == "backward":
        arrays["grad_out"] = drawn(rng, row.dtype, arrays["q"].shape, 1)
    return Inputs(arrays)


def rounded(array: Array, dtype: str) -> Array:
    """Float32 numbers as a quantised cache stores them; storing them once more changes nothing.

    int8: 254 steps over twice the largest magnitude of a token's head; fp8_e4m3: that format's.
    """
    if dtype == "fp8_e4m3":
        import ml_dtypes

        eight = np.clip(array, -448, 448).astype(ml_dtypes.float8_e4m3fn)
        return eight.astype(np.float32)
    steps = np.abs(array).max(axis=-1, keepdims=True) / np.float32(127)
    found: Array = np.rint(array / steps) * steps
    return found


def option_arrays(row: Row, rng: np.random.Generator) -> dict[str, Array]:
    """The arrays that the row's options are given by."""
    options = row.options
    arrays: dict[str, Array] = {}
    keys, queries = np.arange(row.num_keys), np.arange(row.num_queries)[:, None]
    if options.mask == "keys":
        arrays["mask"] = (keys % EVERY != FIRST)[None, None, None]
    elif options.mask == "pairs":
        arrays["mask"] = ((keys + queries) % EVERY != FIRST)[None, None]
    elif options.mask == "bias":
        arrays["mask"] = drawn(rng, row.dtype, (1, 1, row.num_queries, row.num_keys), 1)
    if options.alibi:
        arrays["slopes"] = (0.5 ** (8 * np.arange(1, row.num_heads + 1) / row.num_heads)).astype(
            np.float32
        )
    if options.sinks:
        arrays["sinks"] = drawn(rng, "float32", (row.num_heads,), 1)
    return arrays


def positions_of(row: Row, queries: Array) -> Array:
    """The key positions at which queries of these numbers stand."""
    return queries + (0 if row.options.length is not None else row.num_keys - row.num_queries)


def allowed(row: Row, inputs: Inputs, queries: Array | None = None) -> Array:
    """(queries, Tk): True where the causal rule and the options let a query see a key."""
    options = row.options
    chosen = np.arange(row.num_queries) if queries is None else queries
    distance = positions_of(row, chosen)[:, None] - np.arange(row.num_keys)
    seen: Array = distance >= 0
    if options.window is not None:
        seen &= distance <= options.window
    if options.length is not None:
        seen[:, options.length :] = False
    if options.mask in ("keys", "pairs"):
        mask = inputs["mask"][0, 0]
        seen &= mask if options.mask == "keys" else mask[chosen]
    return seen


def added(row: Row, inputs: Inputs, queries: Array | None = None) -> Array | None:
    """(1 or H, queries, Tk): what ALiBi or a float mask adds to the scores; None for nothing."""
    chosen = np.arange(row.num_queries) if queries is None else queries
    if row.options.alibi:
        distance = np.abs(positions_of(row, chosen)[:, None] - np.arange(row.num_keys))
        found: Array = inputs["slopes"][:, None, None] * -distance.astype(np.float32)
        return found
    return inputs["mask"][0, :, chosen].swapaxes(0, 1) if row.options.mask == "bias" else None


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
    past = k.shape[2] - q.shape[2]
    seen = np.arange(k.shape[2]) <= chosen[:, None] + past
    return context_rows(q, k, v, chosen, scale, seen)


def context_rows(
    q: Array,
    k: Array,
    v: Array,
    chosen: Array,
    scale: float,
    seen: Array,
    options: Options = PLAIN,
    bias: Array | None = None,
    sinks: Array | None = None,
) -> Array:
    """The same over the keys that are seen: capped, then `bias` added, then the sink counted."""
    group = q.shape[1] // k.shape[1]
    out = np.empty((*q.shape[:2], len(chosen), v.shape[3]))
    for b, h in np.ndindex(*q.shape[:2]):
        keys, values = (array[b, h // group].astype(np.float64) for array in (k, v))
        scores = q[b, h][chosen].astype(np.float64) @ keys.T * scale
        if options.softcap:
            scores = options.softcap * np.tanh(scores / options.softcap)
        if bias is not None:
            scores += bias[h % len(bias)]
        scores[~seen] = -np.inf
        sink = -np.inf if sinks is None else float(sinks[h])
        highest = np.maximum(scores.max(axis=1, keepdims=True), sink)
        scores -= highest
        np.exp(scores, out=scores)
        out[b, h] = scores @ values / (scores.sum(axis=1, keepdims=True) + np.exp(sink - highest))
    return out


def packed_rows(row: Row, inputs: Inputs) -> Array:
    """(H, T, D): every sequence by itself."""
    parts, start = [], 0
    for length in row.lengths:
        piece = slice(start, start + length)
        q, k, v = (inputs[name][piece].swapaxes(0, 1)[None] for name in "qkv")
        parts.append(causal_rows(q, k, v, np.arange(length), row.scale)[0])
        start += length
    return np.concatenate(parts, axis=1)


def expected(row: Row, inputs: Inputs) -> tuple[Array, Array]:
    """(numbers of the checked rows, what they should be): (..., rows, width) in float64."""
    if row.kind == "projection":
        every = np.arange(row.num_queries)
        return every, inputs["x"].astype(np.float64) @ inputs["weight"].astype(np.float64)
    if row.kind in ("attention", "decode"):
        chosen = sampled_rows(row)
        return chosen, causal_rows(inputs["q"], inputs["k"], inputs["v"], chosen, row.scale)
    if row.kind == "options":
        chosen = sampled_rows(row)
        q, k, v = (inputs[name] for name in "qkv")
        sinks = inputs["sinks"] if row.options.sinks else None
        seen, bias = allowed(row, inputs, chosen), added(row, inputs, chosen)
        options = row.options
        return chosen, context_rows(q, k, v, chosen, row.scale, seen, options, bias, sinks)
    if row.kind == "packed":
        return np.arange(sum(row.lengths)), packed_rows(row, inputs)
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

    `got` has all rows on its last axis but one. With a single axis it holds several arrays, one
    after another, that end where `chosen` says, each relative to its own largest number.
    """
    if got.ndim == 1 and got.shape == wanted.shape:
        ends = [int(end) for end in chosen[:-1]]
        parts = zip(np.split(got, ends), np.split(wanted, ends), strict=True)
        return max(difference(*each) for each in parts)
    found = got[..., chosen, :] if got.ndim >= 2 and got.shape[-2] > chosen[-1] else got
    return difference(found, wanted) if found.shape == wanted.shape else math.inf


def difference(found: Array, wanted: Array) -> float:
    """The largest one of two arrays of one shape, relative to the largest number wanted."""
    apart = np.abs(found.astype(np.float64) - wanted)
    return float(apart.max() / np.abs(wanted).max()) if np.isfinite(apart).all() else math.inf
