"""Tokens that a model in plain Python can name by number, and what a cache makes of them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from cache_kinds import STORED, Direct, as_stored, source_of
from helpers import Array, assert_same_bits, make

from headway import KVCache

#: Tokens are numbers in the model: token n has these keys and values. The last ones are NaN.
TOKENS, NAN_FROM = 40, 38
HEADS, WIDTH, V_WIDTH = 2, 3, 5


@lru_cache(maxsize=len(STORED))
def tokens(dtype: str) -> tuple[Array, Array, Array, Array]:
    """Return k (1, Hkv, n, D) and v of all tokens, and both as a cache of this dtype has them."""
    found = []
    for seed, width in ((1, WIDTH), (2, V_WIDTH)):
        x = make((41, seed), (1, HEADS, TOKENS, width), source_of(dtype))
        x[:, :, NAN_FROM:] = np.nan
        found.append(x)
    stored = as_stored(dtype, found[0], found[1])
    return found[0], found[1], stored[0][0], stored[1][0]


def arrays_of(dtype: str, rows: list[list[int]]) -> tuple[Array, Array]:
    """Return k and v with these tokens, one row for each sequence, filled up with NaN."""
    longest = max(map(len, rows))
    found = []
    for x in tokens(dtype)[:2]:
        part = np.full((len(rows), HEADS, longest, x.shape[3]), np.nan, x.dtype)
        for b, row in enumerate(rows):
            part[b, :, : len(row)] = x[0][:, row]
        found.append(part)
    return found[0], found[1]


def check_attention(found: tuple[Array, Array], q: Array, dtype: str, history: list[int]) -> None:
    """Compare with a new cache that has this one sequence."""
    alone = Direct(KVCache(1, HEADS, len(history) + 1, WIDTH, dtype=dtype, v_head_dim=V_WIDTH))
    if history:
        alone.append(*arrays_of(dtype, [history]))
    for got, expected in zip(found, alone.attend(q), strict=True):
        assert_same_bits(got, expected, f"{dtype}, tokens {history}")
