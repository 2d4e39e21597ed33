"""A query that may look at nothing: context 0, lse -inf, no NaN and no warning."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from helpers import (
    DTYPES,
    LSE_TOLERANCE,
    TOLERANCE,
    assert_close,
    assert_same_bits,
    attend,
    make_qkv,
    reference,
)

import headway


def check(dtype: str, tokens: tuple[int, int], align: str | int | list[int]) -> None:
    """Compare with the reference, and look at the rows that stand before the first key."""
    q, k, v = make_qkv(102, dtype, batch=2, heads=(4, 2), tokens=tokens, head_dim=9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out, lse = attend(q, k, v, align=align)
        weights = headway.attention_weights(q, k, align=align)
    expected, expected_lse = reference(q, k, v, align=align)
    assert_close(out, expected, TOLERANCE[dtype])
    assert_close(lse, expected_lse, LSE_TOLERANCE[dtype], "lse")
    empty = expected_lse == -np.inf
    assert empty.any()
    assert not out[empty].any()
    assert not weights[empty].any()
    assert (lse[empty] == -np.inf).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [(5, 2), (2, 1), (70, 69), (130, 1), (200, 65), (66, 33)])
def test_more_queries_than_keys(
    tokens: tuple[int, int], dtype: str, isa: str, threads: int
) -> None:
    """With the last query on the last key, the first Tq - Tk rows see nothing."""
    check(dtype, tokens, "end")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("align", [-1, -3, -64, -70, -1000, [-2, 5], [3, -69]])
def test_queries_that_stand_before_the_keys(
    align: int | list[int], dtype: str, isa: str, threads: int
) -> None:
    """The first rows, all rows, all but the last, or those of one batch entry are empty."""
    check(dtype, (70, 37), align)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [True, False])
def test_no_keys_at_all(causal: bool, dtype: str, isa: str, threads: int) -> None:
    """Without keys every row is empty."""
    q, k, v = make_qkv(2, dtype, heads=(4, 2), tokens=(5, 0), head_dim=8)
    out, lse = attend(q, k, v, causal=causal)
    assert out.shape == (1, 4, 5, 8)
    assert not out.any()
    assert (lse == -np.inf).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_after_empty_ones_are_what_they_are_alone(dtype: str, isa: str) -> None:
    """Empty rows in front change no bit of the rows behind them."""
    q, k, v = make_qkv(3, dtype, heads=(2, 2), tokens=(90, 60), head_dim=8)
    q[:, :, :30] = np.nan
    out, lse = attend(q, k, v)
    alone, alone_lse = attend(q[:, :, 30:], k, v)
    assert not out[:, :, :30].any()
    assert (lse[:, :, :30] == -np.inf).all()
    assert_same_bits(out[:, :, 30:], alone)
    assert_same_bits(lse[:, :, 30:], alone_lse, "lse")


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_empty_row_fills_out(dtype: str, isa: str) -> None:
    """What stood in out= before does not shine through."""
    q, k, v = make_qkv(4, dtype, heads=(2, 2), tokens=(9, 4), head_dim=8)
    out = np.full_like(q, np.nan)
    headway.attention(q, k, v, out=out)
    assert not out[:, :, :5].any()
    assert np.isfinite(out.astype(np.float64)).all()
    out[...] = np.nan
    headway.attention(q, k[:, :, :0], v[:, :, :0], out=out)
    assert not out.any()
