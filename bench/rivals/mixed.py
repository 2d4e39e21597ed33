"""headway's attention between NumPy's products: a module of two libraries with threads each."""

from __future__ import annotations

import numpy as np
from inputs import Array, Inputs
from rows import Row

import headway

from . import Prepare, Prepared, Unsupported


def versions() -> dict[str, str]:
    return {"numpy": np.__version__, "headway": headway.__version__}


def threads() -> int:
    return headway.get_num_threads()


def module(row: Row, inputs: Inputs) -> Prepared:
    if row.dtype in ("bfloat16", "float16"):
        raise Unsupported(f"NumPy has no BLAS for {row.dtype}")
    x, w_out = inputs["x"], inputs["w_out"]
    w_qkv = np.concatenate([inputs[name] for name in ("w_query", "w_key", "w_value")], axis=1)
    split = (row.batch, row.num_keys, 3, row.num_heads, row.head_dim)

    def call() -> Array:
        q, k, v = np.moveaxis((x @ w_qkv).reshape(split), 2, 0)
        out: Array = headway.attention(q, k, v, layout="BTHD").reshape(x.shape) @ w_out
        return out

    return Prepared(call, lambda out: out)


PREPARE: dict[str, Prepare] = {"numpy-products": module}
