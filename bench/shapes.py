"""The shapes that are timed, and the arithmetic they ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


SIZES = (
    "batch",
    "num_heads",
    "num_kv_heads",
    "num_queries",
    "num_keys",
    "head_dim",
    "v_head_dim",
)


def visible_pairs(num_queries: int, num_keys: int) -> int:
    """How many (query, key) pairs the causal rule leaves; the last query sees the last key."""
    first = num_keys - num_queries + 1
    return sum(min(max(first + i, 0), num_keys) for i in range(num_queries))


@dataclass(frozen=True)
class Case:
    """One shape: q (batch, num_heads, num_queries, head_dim), k and v accordingly."""

    name: str
    batch: int
    num_heads: int
    num_kv_heads: int
    num_queries: int
    num_keys: int
    head_dim: int
    v_head_dim: int
    dtype: str = "float32"
    quick: bool = False

    @property
    def flops(self) -> int:
        """Multiplications and additions of both products, over the unmasked pairs only.

        For square attention with D = Dv that is ``4 * B * H * D * T * (T + 1) / 2``.
        """
        pairs = self.batch * self.num_heads * visible_pairs(self.num_queries, self.num_keys)
        return 2 * pairs * (self.head_dim + self.v_head_dim)

    @property
    def score_bytes(self) -> int:
        """Size of a stored (batch, num_heads, num_queries, num_keys) array of scores."""
        size = self.batch * self.num_heads * self.num_queries * self.num_keys
        return size * np.dtype(self.dtype).itemsize

    def arrays(self, seed: int = 0) -> tuple[Array, Array, Array]:
        """Standard normal q, k and v."""
        rng = np.random.default_rng(seed)
        heads, kv_heads = (self.batch, self.num_heads), (self.batch, self.num_kv_heads)
        shapes = (
            (*heads, self.num_queries, self.head_dim),
            (*kv_heads, self.num_keys, self.head_dim),
            (*kv_heads, self.num_keys, self.v_head_dim),
        )
        q, k, v = (rng.standard_normal(shape).astype(self.dtype) for shape in shapes)
        return q, k, v


def square(
    name: str, batch: int, heads: int, kv_heads: int, tokens: int, dim: int, **more: Any
) -> Case:
    """A prefill: as many queries as keys, v as wide as q."""
    return Case(name, batch, heads, kv_heads, tokens, tokens, dim, dim, **more)


CASES: tuple[Case, ...] = (
    square("prefill-1024", 1, 12, 12, 1024, 64, quick=True),
    square("prefill-128", 1, 12, 12, 128, 64, quick=True),
    square("prefill-512-batch", 4, 12, 12, 512, 64),
    square("prefill-2048-gqa", 1, 32, 8, 2048, 128, quick=True),
    square("prefill-4096", 1, 8, 8, 4096, 64),
    square("prefill-16384", 1, 8, 8, 16384, 64),
    square("prefill-1024-d80", 1, 12, 12, 1024, 80),
    square("prefill-1024-d256", 1, 4, 4, 1024, 256),
    square("prefill-1024-f64", 1, 12, 12, 1024, 64, dtype="float64", quick=True),
    Case("chunk-64-of-4096", 1, 32, 8, 64, 4096, 128, 128),
    Case("decode-4096", 8, 32, 8, 1, 4096, 128, 128, quick=True),
)
