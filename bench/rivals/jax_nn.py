"""JAX: jax.nn.dot_product_attention, compiled; its own layout is (B, T, H, D)."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from inputs import Inputs
from rows import Row

from . import Prepare, Prepared, refuse_large_scores
from .copies import rotating
from .folding import quicker

jax: Any = importlib.import_module("jax")


def versions() -> dict[str, str]:
    return {"jax": str(jax.__version__)}


def threads() -> int:
    """XLA takes every CPU that the process may use."""
    return len(os.sched_getaffinity(0))


def attention(row: Row, inputs: Inputs) -> Prepared:
    refuse_large_scores(row)
    numpy: Any = importlib.import_module("jax.numpy")
    options: dict[str, Any] = {"is_causal": True}
    if row.kind == "decode":  # a query at the end sees every key
        options = {}
    elif row.num_queries != row.num_keys:
        past = row.num_keys - row.num_queries
        seen = np.arange(row.num_keys) <= np.arange(row.num_queries)[:, None] + past
        options = {"mask": numpy.asarray(seen)[None, None]}
    compiled = jax.jit(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, **options))

    def make() -> Callable[[], Any]:
        q, k, v = (numpy.array(np.ascontiguousarray(inputs[n].swapaxes(1, 2))) for n in "qkv")
        return lambda: compiled(q, k, v).block_until_ready()

    return Prepared(
        rotating(row, make), lambda out: np.asarray(out.astype(numpy.float32)).swapaxes(1, 2)
    )


PREPARE: dict[str, Prepare] = {"jax": quicker(attention)}
