"""The problems, their arrays, and what has to come out, in plain float64."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

DTYPES = ("float32", "bfloat16", "float16")
TOLERANCES = {"float32": 2e-5, "bfloat16": 2e-2, "float16": 1e-2}
"""Largest difference to the reference, relative to the largest number expected."""


class Row(NamedTuple):
    """One problem; causal, the last query sees the last key.

    kind "attention": q (1, num_heads, num_queries, head_dim), k and v (1, num_kv_heads, num_keys,
    head_dim). kind "layer": x (1, num_keys, num_heads * head_dim), projected to Q, K and V, and Z
    to the output, without biases.
    """

    name: str
    title: str
    kind: str
    num_heads: int
    num_kv_heads: int
    num_queries: int
    num_keys: int
    head_dim: int
    dtype: str = "float32"

    @property
    def width(self) -> int:
        """Numbers per token of all heads."""
        return self.num_heads * self.head_dim

    @property
    def scale(self) -> float:
        """Factor of the scores."""
        return 1 / math.sqrt(self.head_dim)

    @property
    def flops(self) -> int:
        """Of both products over the unmasked pairs, and of a layer's projections: its work."""
        past = self.num_keys - self.num_queries
        pairs = self.num_queries * past + self.num_queries * (self.num_queries + 1) // 2
        products = 8 * self.num_keys * self.width**2 if self.kind == "layer" else 0
        return 4 * self.width * pairs + products


ROWS = {
    row.name: row
    for row in (
        Row("prefill-128", "12 heads of 64, 128 tokens", "attention", 12, 12, 128, 128, 64),
        Row("prefill-1024", "12 heads of 64, 1,024 tokens", "attention", 12, 12, 1024, 1024, 64),
        Row("chunk", "32 heads of 128 on 8, 16 over 2,048", "attention", 32, 8, 16, 2048, 128),
        Row("decode", "32 heads of 128 on 8, 1 over 4,096", "attention", 32, 8, 1, 4096, 128),
        Row("layer", "12 heads of 64, 768 wide, 1,024 tokens", "layer", 12, 12, 1024, 1024, 64),
    )
}


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The dtype of this name; bfloat16 is that of ml_dtypes."""
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        raise ImportError(
            "bfloat16 arrays need the package ml_dtypes: pip install 'headway[bfloat16]'"
        ) from None
    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


def inputs(row: Row) -> dict[str, Array]:
    """The arrays of a row by name, the same in every process."""
    rng = np.random.default_rng(0)
    dtype = numpy_dtype(row.dtype)

    def drawn(scale: float, *shape: int) -> Array:
        made: Array = rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)
        return made.astype(dtype)

    if row.kind == "layer":
        arrays = {"x": drawn(1, 1, row.num_keys, row.width)}
        names = ("w_query", "w_key", "w_value", "w_out")
        return arrays | {n: drawn(row.width**-0.5, row.width, row.width) for n in names}
    q = drawn(1, 1, row.num_heads, row.num_queries, row.head_dim)
    k, v = drawn(1, 2, 1, row.num_kv_heads, row.num_keys, row.head_dim)
    return {"q": q, "k": k, "v": v}


def seen(row: Row) -> Array:
    """(num_queries, num_keys): True where a query sees a key."""
    past = row.num_keys - row.num_queries
    visible: Array = np.arange(row.num_keys) <= np.arange(row.num_queries)[:, None] + past
    return visible


def heads_first(row: Row, x: Array) -> Array:
    """(1, T, width) as (1, H, T, head_dim), a view."""
    return x.reshape(1, row.num_keys, row.num_heads, row.head_dim).swapaxes(1, 2)


def expected(row: Row) -> Array:
    """What has to come out, in float64."""
    wide = {name: array.astype(np.float64) for name, array in inputs(row).items()}
    if row.kind != "layer":
        return attend(row, wide["q"], wide["k"], wide["v"])
    q, k, v = (heads_first(row, wide["x"] @ wide[f"w_{n}"]) for n in ("query", "key", "value"))
    z = attend(row, q, k, v).swapaxes(1, 2).reshape(wide["x"].shape)
    return np.asarray(z @ wide["w_out"])


def attend(row: Row, q: Array, k: Array, v: Array) -> Array:
    """Causal attention, head by head."""
    hidden, group = ~seen(row), row.num_heads // row.num_kv_heads
    out = np.empty(q.shape)
    for h in range(row.num_heads):
        scores = q[0, h] @ k[0, h // group].T * row.scale
        scores[hidden] = -np.inf
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[0, h] = weights @ v[0, h // group] / weights.sum(axis=1, keepdims=True)
    return out
