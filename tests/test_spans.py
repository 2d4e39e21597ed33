"""NaN and infinity where the kernels join what they summed apart: groups, blocks and spans.

Keys are read in groups of a few, blocks of some dozens and spans of 1024; the maximum and the sum
of each are joined with those before. Whatever stands in a visible key has to come through.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from helpers import (
    DTYPES,
    FULL,
    LSE_TOLERANCE,
    TOLERANCE,
    Array,
    assert_close,
    assert_same_bits,
    attend,
    dtype_of,
    make_qkv,
    reference,
)

import headway

NUMBERS = (1, 2, 8)
COUNTS = pytest.mark.parametrize("count", NUMBERS, ids=lambda count: f"{count}-threads")

pytestmark = pytest.mark.usefixtures("any_threads")


@COUNTS
@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_in_the_first_key_of_a_span(dtype: str, count: int, isa: str) -> None:
    """Key 1024 is seen by query 1024 alone, and is all that it sees of its span."""
    headway.set_num_threads(count)
    q = np.ones((1, 1, 1025, 4), dtype_of(dtype))
    k, v = q.copy(), np.arange(1025.0).astype(q.dtype)[None, None, :, None]
    expected, expected_lse = attend(q, k, v)
    k[0, 0, 1024] = np.nan
    out, lse = attend(q, k, v)
    assert np.isnan(out[0, 0, 1024]).all()
    assert np.isnan(lse[0, 0, 1024])
    assert_same_bits(out[:, :, :1024], expected[:, :, :1024])
    assert_same_bits(lse[:, :, :1024], expected_lse[:, :, :1024], "lse")
    weights = headway.attention_weights(q, k)
    # What the row may not see is 0 in other rows; this one sees all there is.
    assert np.isnan(weights[0, 0, 1024]).all()
    assert np.isfinite(weights[0, 0, :1024].astype(np.float64)).all()
    for last in (q[:, :, 1024:], q[:, :, 1020:]):  # as with a cache: few queries over many keys
        few, few_lse = attend(last, k, v)
        assert np.isnan(few[0, 0, -1]).all()
        assert np.isnan(few_lse[0, 0, -1])
        assert np.isfinite(few[0, 0, :-1].astype(np.float64)).all()


@COUNTS
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("queries", [1, 3, 40, 130])
@pytest.mark.parametrize("dtype", FULL)
def test_nan_in_one_query_over_many_keys(
    dtype: str, queries: int, causal: bool, count: int, isa: str
) -> None:
    """However the keys are split among threads, that row is NaN and the others are as before."""
    headway.set_num_threads(count)
    q, k, v = make_qkv(1, dtype, heads=(1, 1), tokens=(queries, 8192), head_dim=4)
    expected, expected_lse = attend(q, k, v, causal=causal)
    q[0, 0, 0, 0] = np.nan
    out, lse = attend(q, k, v, causal=causal)
    assert np.isnan(out[0, 0, 0]).all()
    assert np.isnan(lse[0, 0, 0])
    assert_same_bits(out[:, :, 1:], expected[:, :, 1:])
    assert_same_bits(lse[:, :, 1:], expected_lse[:, :, 1:], "lse")


@COUNTS
@pytest.mark.parametrize("queries", [1, 7, 70])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_span_of_nothing_but_nan(dtype: str, queries: int, count: int, isa: str) -> None:
    """Sound keys before and after it do not hide it."""
    headway.set_num_threads(count)
    for bad in (slice(0, 1024), slice(1024, 2048), slice(2048, 3000), slice(None)):
        q, k, v = make_qkv(2, dtype, heads=(2, 1), tokens=(queries, 3000), head_dim=8)
        k[:, :, bad] = np.nan
        out, lse = attend(q, k, v, causal=False)
        assert np.isnan(out).all(), bad
        assert np.isnan(lse).all(), bad
        assert np.isnan(headway.attention_weights(q, k, causal=False)).all(), bad


#: Keys whose scores are -inf, of 3000 in all: in a group, a group, a block, a span; and more.
PLACES = {
    "one": slice(1030, 1031),
    "group": slice(1032, 1040),
    "block": slice(1088, 1152),
    "span": slice(1024, 2048),
    "first span": slice(0, 1024),
    "last span": slice(2048, 3000),
    "two spans": slice(1024, 3000),
}


def weightless(dtype: str, how: str, keys: slice, queries: int) -> tuple[Array, Array, Array]:
    """Return q, k, v; the scores of these keys are -inf, or products that overflow to it."""
    top = np.sqrt(np.finfo(dtype).max) * 4
    q, k, v = make_qkv(3, dtype, heads=(1, 1), tokens=(queries, 3000), head_dim=1, value_dim=5)
    q[...] = 1.0
    if how == "infinite":
        k[:, :, keys] = -np.inf
    else:
        q *= top
        k /= top
        k[:, :, keys] = -top
    return q, k, v


@cache
def poisoned_reference(
    dtype: str, how: str, place: str, queries: int, causal: bool
) -> tuple[Array, Array]:
    """Return the reference's out and lse with these NaN, kept for the other ISAs."""
    q, k, v = weightless(dtype, how, PLACES[place], queries)
    put_nan(v, PLACES[place])
    with np.errstate(over="ignore", invalid="ignore"):
        return reference(q, k, v, causal=causal, scale=1.0)


def put_nan(v: Array, keys: slice) -> None:
    """Make NaN column 3 of these values, and column 1 of the first."""
    v[:, :, keys, 3] = np.nan
    v[:, :, keys.start, 1] = np.nan


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("how", ["infinite", "overflow"])
@pytest.mark.parametrize("dtype", FULL)
def test_nan_in_a_value_of_weight_0(dtype: str, how: str, place: str, turn: int, isa: str) -> None:
    """A score of -inf has weight 0, and 0 times NaN is NaN: it comes out in its column only."""
    headway.set_num_threads(NUMBERS[turn % 3])
    keys = PLACES[place]
    for queries, causal in ((1, True), (5, True), (70, True), (70, False)):
        q, k, v = weightless(dtype, how, keys, queries)
        clean, clean_lse = attend(q, k, v, causal=causal, scale=1.0)
        put_nan(v, keys)
        out, lse = attend(q, k, v, causal=causal, scale=1.0)
        assert_same_bits(lse, clean_lse, "lse")
        expected, expected_lse = poisoned_reference(dtype, how, place, queries, causal)
        what = f"{queries} queries"
        assert np.isnan(expected[..., [1, 3]]).all()
        assert_close(out, expected, TOLERANCE[dtype], what)
        assert_close(lse, expected_lse, LSE_TOLERANCE[dtype], f"lse of {what}")
        assert_same_bits(out[..., [0, 2, 4]], clean[..., [0, 2, 4]], what)
