"""NumPy as a careful user would write it: batched products in its BLAS, softmax in place."""

from __future__ import annotations

import itertools
import os

import numpy as np
from inputs import Array, Inputs
from rows import Row

from . import Prepare, Prepared, Unsupported, refuse_large_scores
from .copies import cold_copies

NO_BLAS_FLOPS = 2e8
"""16-bit products have no BLAS (0.2 GFLOP/s); more than this is not asked for."""


def versions() -> dict[str, str]:
    return {"numpy": np.__version__}


def threads() -> int:
    return int(os.environ["OPENBLAS_NUM_THREADS"])


def attend(q: Array, k: Array, v: Array, bias: Array, scale: float) -> Array:
    """(B, Hkv, group, Tq, D) and (B, Hkv, 1, Tk, D); `bias` is -inf where a key is hidden."""
    scores = np.matmul(q * q.dtype.type(scale), k.swapaxes(-1, -2))
    scores += bias
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    total = scores.sum(axis=-1, keepdims=True)
    context: Array = np.matmul(scores, v)
    context /= total
    return context


def attention(row: Row, inputs: Inputs) -> Prepared:
    refuse_large_scores(row)
    if row.dtype in ("bfloat16", "float16") and row.flops > NO_BLAS_FLOPS:
        raise Unsupported(f"no BLAS for {row.dtype}")
    q, k, v = (inputs[name] for name in "qkv")
    group = row.num_heads // row.num_kv_heads
    hidden = np.arange(row.num_keys) > np.arange(row.num_queries)[:, None] + (
        row.num_keys - row.num_queries
    )
    bias = np.where(hidden, -np.inf, 0.0).astype(q.dtype)
    grouped = (row.batch, row.num_kv_heads, group, row.num_queries, row.head_dim)
    keys, values = k[:, :, None], v[:, :, None]

    def call() -> Array:
        return attend(q.reshape(grouped), keys, values, bias, row.scale)

    return Prepared(call, lambda out: out.reshape(q.shape))


def projection(row: Row, inputs: Inputs) -> Prepared:
    if row.dtype in ("bfloat16", "float16"):
        raise Unsupported(f"no BLAS for {row.dtype}")
    x = inputs["x"]
    following = itertools.cycle(cold_copies(row, inputs["weight"])).__next__
    return Prepared(lambda: x @ following(), lambda out: out)


PREPARE: dict[str, Prepare] = {
    "numpy": lambda row, inputs: (attention if row.kind == "attention" else projection)(row, inputs)
}
