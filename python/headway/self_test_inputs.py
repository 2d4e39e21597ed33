"""What the problems of ``headway check`` are made of: inputs of one dtype, and what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from . import reference
from .arrays import Array
from .functional import attention
from .weights import checked_dtype

DTYPES = ("float32", "float64", "float16", "bfloat16")

TOLERANCES = {"float64": 1e-12, "float32": 2e-5, "float16": 2.0**-9, "bfloat16": 2.0**-6}
"""Error allowed to a result, relative to its largest number; of 16 bits two steps of the dtype."""

Results = tuple[Array, ...]


class Problem(NamedTuple):
    """A call, what it should return, and the largest error allowed to each result."""

    name: str
    call: Callable[[], Results]
    wanted: Results
    allowed: tuple[float, ...]


class Inputs:
    """Draws arrays of one dtype; the seed decides all of them."""

    def __init__(self, dtype: str) -> None:
        self.name, self.dtype = dtype, checked_dtype(dtype)
        self.tolerance = TOLERANCES[dtype]
        self.wide = TOLERANCES["float64" if dtype == "float64" else "float32"]
        """Error allowed to what is returned in the accumulation type."""
        self._rng = np.random.default_rng(0)

    def array(self, *shape: int) -> Array:
        return np.asarray(self._rng.standard_normal(shape).astype(self.dtype))

    def qkv(self, heads: int, kv_heads: int, queries: int, keys: int, dim: int) -> list[Array]:
        """q, k and v of two sequences."""
        kv = (2, kv_heads, keys, dim)
        return [self.array(2, heads, queries, dim), self.array(*kv), self.array(*kv)]

    def problem(self, name: str, arrays: list[Array], **options: Any) -> Problem:
        """Attention with these options: the context and the lse."""

        def call() -> Results:
            q, k, v = arrays
            out, lse = attention(q, k, v, return_lse=True, **options)
            return out, lse

        wanted = reference.attention(*wide(*arrays), return_lse=True, **options)
        return Problem(name, call, wanted, (self.tolerance, self.wide))


def wide(*arrays: Array) -> tuple[Any, ...]:
    return tuple(x.astype(np.float64) for x in arrays)
