"""Decoding token by token gives the very bits of one full prefill."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import numpy as np
import pytest
from helpers import DTYPES, Array, assert_same_bits, attend, make_qkv
from option_table import EACH_ISA

import headway

TOKENS = 1100  # more than one span of keys
#: Query heads of one key head, head_dim and value_dim: below, at and above half a vector of rows.
SIZES = [(1, 64, 64), (2, 40, 24), (3, 16, 33), (4, 128, 100), (8, 64, 64), (9, 24, 40)]
#: First and last keys, steps, blocks and spans, and in between.
ROWS = (0, 1, 4, 31, 32, 127, 128, 500, 1023, 1024, 1099)


@cache
def options(heads: int) -> dict[str, dict[str, Any]]:
    """Return sets of options, for a call over all tokens."""
    rng = np.random.default_rng(7)
    bias = rng.standard_normal((TOKENS, TOKENS)).astype(np.float32)
    bias[rng.random(bias.shape) < 0.2] = -np.inf
    return {
        "plain": {},
        "window": {"window": 300},
        "shaped": {"softcap": 3.0, "alibi_slopes": np.full(heads, 0.1), "sinks": np.zeros(heads)},
        "mask": {"mask": bias},
    }


@lru_cache(maxsize=1)
def inputs(dtype: str, size: tuple[int, int, int]) -> tuple[Array, Array, Array]:
    """Return q, k and v of this size."""
    heads, head_dim, value_dim = size
    tokens = (TOKENS, TOKENS)
    return make_qkv(
        11, dtype, heads=(heads, 1), tokens=tokens, head_dim=head_dim, value_dim=value_dim
    )


@EACH_ISA
@pytest.mark.parametrize("name", ["plain", "window", "shaped", "mask"])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_alone_has_the_bits_of_the_prefill(
    dtype: str, size: tuple[int, int, int], name: str, isa: str
) -> None:
    q, k, v = inputs(dtype, size)
    asked = options(size[0])[name]
    out, lse = attend(q, k, v, **asked)
    for t in ROWS:
        keys = slice(0, t + 1)
        part = dict(asked)
        if "mask" in part:
            part["mask"] = part["mask"][t : t + 1, keys]
        row, row_lse = attend(q[:, :, t : t + 1], k[:, :, keys], v[:, :, keys], **part)
        assert_same_bits(row, out[:, :, t : t + 1], f"row {t} on {isa}")
        assert_same_bits(row_lse, lse[:, :, t : t + 1], f"lse {t}")


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int8", "fp8_e4m3"])
def test_a_generated_sequence_has_the_bits_of_the_prefill(dtype: str, isa: str) -> None:
    """From a cache, one token after the other."""
    kind = dtype if dtype in DTYPES else "float32"
    q, k, v = make_qkv(12, kind, heads=(6, 2), tokens=(150, 150), head_dim=40, value_dim=24)
    whole, steps = (headway.KVCache(len(q), 2, 150, 40, v_head_dim=24, dtype=dtype) for _ in "ab")
    whole.append(k, v)
    expected = whole.attend(q)
    for t in range(150):
        token = slice(t, t + 1)
        steps.append(k[:, :, token], v[:, :, token])
        assert_same_bits(steps.attend(q[:, :, token]), expected[:, :, token], f"{t} on {isa}")
