"""Fewer key heads than query heads: neighbouring query heads share a key head."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import (
    DTYPES,
    FULL,
    LSE_TOLERANCE,
    TOLERANCE,
    assert_close,
    assert_same_bits,
    attend,
    dtype_of,
    make_qkv,
    reference,
)

import headway


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "values", "expected"),
    [
        ((4, 2), [10, 20], [10, 10, 20, 20]),
        ((6, 3), [10, 20, 30], [10, 10, 20, 20, 30, 30]),
        ((4, 1), [10], [10, 10, 10, 10]),
        ((3, 3), [10, 20, 30], [10, 20, 30]),
    ],
)
def test_probe(
    heads: tuple[int, int],
    values: list[int],
    expected: list[int],
    dtype: str,
    isa: str,
    threads: int,
) -> None:
    """Each key head holds one number, so the result says which one a query head reads."""
    q = np.zeros((1, heads[0], 3, 4), dtype_of(dtype))
    k = np.zeros((1, heads[1], 3, 4), dtype_of(dtype))
    v = np.zeros((1, heads[1], 3, 1), dtype_of(dtype))
    v += np.array(values, dtype_of(dtype))[:, None, None]
    for queries in (3, 1):
        out = headway.attention(q[:, :, :queries], k, v)
        assert out[0, :, :, 0].tolist() == [[number] * queries for number in expected]


@pytest.mark.parametrize("dtype", FULL)
def test_random_numbers(dtype: str, isa: str, threads: int) -> None:
    """Figures worked out by another program; repeating key heads is right, tiling them not."""
    g = np.random.default_rng(106)
    q, k, v = (g.standard_normal((2, n, 4, 8)).astype(dtype) for n in (6, 3, 3))
    out = headway.attention(q, k, v)
    np.testing.assert_allclose(out[1, 4, 3, :3], [-0.208150, -0.279360, -0.626401], rtol=1e-5)
    repeated = headway.attention(q, np.repeat(k, 2, axis=1), np.repeat(v, 2, axis=1))
    assert_same_bits(out, repeated)
    tiled = headway.attention(q, np.tile(k, (1, 2, 1, 1)), np.tile(v, (1, 2, 1, 1)))
    assert abs(np.abs(out - tiled).max() - 3.498) < 1e-3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(3, 1), (5, 1), (7, 1), (6, 2), (10, 2), (14, 2), (9, 3)])
@pytest.mark.parametrize("tokens", [(1, 70), (3, 70), (70, 70)])
def test_group_sizes(
    tokens: tuple[int, int], heads: tuple[int, int], dtype: str, isa: str, some_threads: int
) -> None:
    """Groups of 3, 5 and 7, in one query, a few and many."""
    q, k, v = make_qkv(heads[0], dtype, batch=2, heads=heads, tokens=tokens, head_dim=10)
    expected, expected_lse = reference(q, k, v)
    out, lse = attend(q, k, v)
    assert_close(out, expected, TOLERANCE[dtype])
    assert_close(lse, expected_lse, LSE_TOLERANCE[dtype], "lse")
    group = heads[0] // heads[1]
    weights = headway.attention_weights(q, k)
    repeated = headway.attention_weights(q, np.repeat(k, group, axis=1))
    assert_close(weights, repeated.astype(np.float64), TOLERANCE[dtype], "weights")


@pytest.mark.parametrize("heads", [(4, 3), (2, 4), (5, 2), (1, 2)])
def test_heads_that_do_not_divide(heads: tuple[int, int]) -> None:
    """A number of query heads that is no multiple is refused, and both numbers are named."""
    q, k, v = make_qkv(1, "float32", heads=heads, tokens=(3, 3))
    with pytest.raises(ValueError, match=str(heads[0])) as caught:
        headway.attention(q, k, v)
    assert str(heads[1]) in str(caught.value)
    with pytest.raises(ValueError, match=str(heads[0])):
        headway.attention_weights(q, k)


def test_no_key_heads() -> None:
    """Query heads without any key head are refused."""
    q, k, v = make_qkv(1, "float32", heads=(2, 0), tokens=(3, 3))
    with pytest.raises(ValueError, match="0"):
        headway.attention(q, k, v)


def test_key_and_value_heads_differ() -> None:
    """k and v have the same number of heads."""
    q, k, v = make_qkv(1, "float32", heads=(4, 2), tokens=(3, 3))
    with pytest.raises(ValueError, match="v"):
        headway.attention(q, k, v[:, :1])
