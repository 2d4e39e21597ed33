"""A large mask that heads share is moved into the lanes once for several of them, and kept.

Such a call must give the bits of the same mask written out for each head, which is read head by
head. The masks here are larger than the core's threshold of 768 KiB.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from helpers import TOLERANCE, Array, assert_close, dtype_of, make, make_qkv, reference

import headway

KINDS = ("bool", "float64", "float32", "float16", "bfloat16")

#: (queries, keys) of a mask of this kind: tails of every length, chunks, more keys than are kept.
SHAPES: dict[str, tuple[tuple[int, int], ...]] = {
    "bool": ((901, 901), (810, 1022), (800, 1100)),
    "float16": ((641, 641), (387, 1023)),
    "bfloat16": ((642, 642), (500, 1024)),
    "float32": ((459, 459), (200, 1001), (200, 1100)),
    "float64": ((331, 331), (130, 1022)),
}


def mask_of(kind: str, shape: tuple[int, ...]) -> Array:
    """Hide about every fourth key, all of two blocks from some rows, nothing of another one.

    Its numbers are exact in 16 bits.
    """
    values = np.round(make(3, shape) * 8) / 8
    shown = values > -0.7
    tokens = shape[-2]
    shown[..., tokens // 2 :, :128] = False
    shown[..., 128:256] = False
    shown[..., : tokens // 2, 256:300] = True
    if kind == "bool":
        return shown
    return np.where(shown, values, -np.inf).astype(dtype_of(kind))


def arrays(
    dtype: str, heads: tuple[int, int], tokens: tuple[int, int]
) -> tuple[Array, Array, Array]:
    return make_qkv(4, dtype, batch=2, heads=heads, tokens=tokens, head_dim=5)


def each_head(mask: Array, heads: int) -> Array:
    """The same mask, written out for every head."""
    return np.repeat(mask, heads, axis=1)


def assert_same(q: Array, k: Array, v: Array, mask: Array, **options: Any) -> Array:
    """Assert that the shared mask gives the bits of one for each head; return the context."""
    wide = each_head(mask, q.shape[1])
    found, lse = headway.attention(q, k, v, mask=mask, return_lse=True, **options)
    expected, expected_lse = headway.attention(q, k, v, mask=wide, return_lse=True, **options)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(lse, expected_lse)
    result: Array = found
    return result


CASES = [(kind, tokens) for kind in KINDS for tokens in SHAPES[kind]]


@pytest.mark.parametrize(("kind", "tokens"), CASES)
def test_the_bits_of_a_mask_for_each_head(
    kind: str, tokens: tuple[int, int], isa: str, some_threads: int, turn: int
) -> None:
    """Of every kind and ISA: one mask for all entries, or one each; heads in groups or not."""
    heads = ((4, 4), (6, 3), (5, 5), (4, 2))[turn % 4]
    dtype = tuple(TOLERANCE)[turn // 2 % 4]
    q, k, v = arrays(dtype, heads, tokens)
    assert_same(q, k, v, mask_of(kind, (1 + turn % 2, 1, *tokens)))


@cache
def expected_of(dtype: str) -> tuple[Array, ...]:
    """q, k, v and a mask, and the context by the reference."""
    tokens = SHAPES["float64"][0]
    q, k, v = arrays(dtype, (4, 4), tokens)
    mask = mask_of("float64", (2, 1, *tokens))
    return q, k, v, mask, reference(q, k, v, mask=mask)[0]


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_against_the_reference(dtype: str, isa: str, threads: int) -> None:
    q, k, v, mask, expected = expected_of(dtype)
    assert_close(headway.attention(q, k, v, mask=mask), expected, TOLERANCE[dtype])


OPTIONS: dict[str, dict[str, Any]] = {
    "window": {"window": 150},
    "two-sided": {"window": (90, 40), "causal": False},
    "not causal": {"causal": False},
    "softcap": {"softcap": 5.0},
    "alibi": {"alibi_slopes": headway.alibi_slopes(4)},
    "sinks": {"sinks": np.array([0.5, -np.inf, 1.0, 0.0])},
    "lengths": {"kv_lengths": [310, 200], "align": "start"},
    "dropout": {"dropout": 0.25, "seed": 7},
    "align": {"align": [-20, 60]},
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("kind", ["bool", "float64"])
def test_beside_every_option(kind: str, option: str, isa: str, some_threads: int) -> None:
    tokens = SHAPES[kind][0]
    q, k, v = arrays("float32", (4, 4), tokens)
    assert_same(q, k, v, mask_of(kind, (1, 1, *tokens)), **OPTIONS[option])


@pytest.mark.parametrize("kind", KINDS)
def test_other_strides(kind: str, isa: str, some_threads: int) -> None:
    """Masks that do not lie contiguous in memory."""
    tokens = SHAPES[kind][0]
    q, k, v = arrays("float32", (4, 2), tokens)
    mask = mask_of(kind, (1, 1, *tokens))
    expected = headway.attention(q, k, v, mask=mask)
    for laid in (mask[..., ::-1].copy()[..., ::-1], mask.swapaxes(2, 3).copy().swapaxes(2, 3)):
        np.testing.assert_array_equal(headway.attention(q, k, v, mask=laid), expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["bool", "float32"])
def test_hidden_is_absent(kind: str, dtype: str, isa: str, threads: int) -> None:
    """NaN and inf in what no row may see, in single heads or in all, change no bit."""
    tokens = SHAPES[kind][0]
    q, k, v = arrays(dtype, (4, 4), tokens)
    mask = mask_of(kind, (1, 1, *tokens))
    hidden = np.array([3, 70, 299, 302, tokens[1] - 2])
    mask[..., hidden] = False if kind == "bool" else -np.inf
    expected = assert_same(q, k, v, mask)
    assert np.isfinite(expected.astype(np.float32)).all()
    bad = np.array([np.nan, np.inf, -np.inf, np.nan, np.inf])
    for heads in ([0], [1, 3], [0, 1, 2, 3]):
        for x in (k, v):
            x[:, heads, hidden[:, None]] = bad[:, None, None]
        np.testing.assert_array_equal(headway.attention(q, k, v, mask=mask), expected)


def test_a_visible_nan_comes_out_in_its_head_alone(isa: str, threads: int) -> None:
    tokens = SHAPES["float32"][0]
    q, k, v = arrays("float32", (4, 4), tokens)
    mask = mask_of("float32", (1, 1, *tokens))
    expected = headway.attention(q, k, v, mask=mask)
    v[:, 2, 30, 1] = np.nan
    found = headway.attention(q, k, v, mask=mask)
    sees = np.tril(np.isfinite(mask[0, 0]))[:, 30]
    assert sees.any()
    assert np.isnan(found[:, 2, sees, 1]).all()
    expected[:, 2, sees, 1] = np.nan
    np.testing.assert_array_equal(found, expected)
