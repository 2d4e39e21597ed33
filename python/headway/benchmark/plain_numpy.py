"""NumPy: batched products in its BLAS, and a softmax in place."""

from __future__ import annotations

import os

import numpy as np

from ..timing.worker import Unsupported
from .peers import Prepared
from .rows import Array, Row, heads_first, seen


def versions() -> dict[str, str]:
    return {"numpy": np.__version__}


def threads() -> int:
    return int(os.environ["OPENBLAS_NUM_THREADS"])


def prepare(row: Row, arrays: dict[str, Array]) -> Prepared:
    if row.dtype != "float32":
        raise Unsupported(f"no BLAS for {row.dtype}")
    bias = np.where(seen(row), 0, -np.inf).astype(np.float32)
    if row.kind == "layer":
        return _layer(row, arrays, bias)
    group = row.num_heads // row.num_kv_heads
    q = arrays["q"].reshape(1, row.num_kv_heads, group, row.num_queries, row.head_dim)
    k, v = arrays["k"][:, :, None], arrays["v"][:, :, None]
    shape = arrays["q"].shape
    return Prepared(lambda: _attend(q, k, v, bias, row.scale), lambda out: out.reshape(shape))


def _attend(q: Array, k: Array, v: Array, bias: Array, scale: float) -> Array:
    scores = np.matmul(q * np.float32(scale), k.swapaxes(-1, -2))
    scores += bias
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    total = scores.sum(axis=-1, keepdims=True)
    context: Array = np.matmul(scores, v)
    context /= total
    return context


def _layer(row: Row, arrays: dict[str, Array], bias: Array) -> Prepared:
    x, w_out = arrays["x"], arrays["w_out"]
    weights = [arrays[name] for name in ("w_query", "w_key", "w_value")]

    def call() -> Array:
        q, k, v = (heads_first(row, x @ weight) for weight in weights)
        z = _attend(q, k, v, bias, row.scale).swapaxes(1, 2).reshape(x.shape)
        return np.asarray(z @ w_out)

    return Prepared(call, lambda out: out)
