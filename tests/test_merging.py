"""merge_partials: parts over disjoint keys give what one call over all keys gives."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from helpers import (
    DTYPES,
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

Parts = list[tuple[Array, Array]]


def parts_of(q: Array, k: Array, v: Array, cuts: list[int], axis: int = -2, **more: Any) -> Parts:
    """Return (out, lse) of the keys between neighbouring cuts, seen by every query."""
    pieces = zip(np.split(k, cuts, axis), np.split(v, cuts, axis), strict=True)
    return [attend(q, some_k, some_v, causal=False, **more) for some_k, some_v in pieces]


@pytest.mark.parametrize("cuts", [[], [5], [5, 5], [0, 9], [1, 17, 39, 40]])
@pytest.mark.parametrize("dtype", DTYPES)
def test_parts_give_the_whole(dtype: str, cuts: list[int]) -> None:
    """Also where some parts hold no key at all."""
    q, k, v = make_qkv(1, dtype, batch=2, heads=(4, 2), tokens=(7, 40), head_dim=16, value_dim=5)
    out, lse = headway.merge_partials(*zip(*parts_of(q, k, v, cuts), strict=True))
    expected, expected_lse = reference(q, k, v, causal=False)
    assert out.dtype == q.dtype
    assert out.flags.c_contiguous
    assert lse.dtype == (np.float64 if dtype == "float64" else np.float32)
    assert_close(out, expected, TOLERANCE[dtype])
    assert_close(lse, expected_lse, LSE_TOLERANCE[dtype], "lse")


@pytest.mark.parametrize("rank", [2, 3, 4])
@pytest.mark.parametrize("layout", ["BHTD", "BTHD"])
def test_ranks_and_layouts(layout: str, rank: int) -> None:
    """The lse is head-first in each of them."""
    q, k, v = make_qkv(2, "float64", batch=2, heads=(3, 3), tokens=(6, 20), head_dim=8)
    q, k, v = (x[(0,) * (4 - rank)] for x in (q, k, v))
    swap = layout == "BTHD" and rank > 2
    q, k, v = (x.swapaxes(-3, -2) if swap else x for x in (q, k, v))
    parts = parts_of(q, k, v, [4, 13], -3 if swap else -2, layout=layout)
    out, lse = headway.merge_partials(*zip(*parts, strict=True), layout=layout)
    whole, whole_lse = attend(q, k, v, causal=False, layout=layout)
    assert_close(out, whole, 1e-14)
    assert_close(lse, whole_lse, 1e-14, "lse")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_empty_parts_are_neutral(place: int, dtype: str) -> None:
    """To the bit, whatever their contexts hold; and so is order, for one part that is not empty."""
    q, k, v = make_qkv(3, dtype, heads=(2, 2), tokens=(5, 30), head_dim=8)
    out, lse = attend(q, k, v)
    outs = [np.full_like(out, np.nan), np.full_like(out, np.inf)]
    lses = [np.full_like(lse, -np.inf), np.full_like(lse, -np.inf)]
    outs.insert(place, out)
    lses.insert(place, lse)
    merged, merged_lse = headway.merge_partials(outs, lses)
    assert_same_bits(merged, out)
    assert_same_bits(merged_lse, lse, "lse")


def test_rows_that_see_nothing_anywhere() -> None:
    """Context 0 and lse -inf, without a warning."""
    out = np.full((2, 3, 4), np.nan, np.float32)
    lse = np.full((2, 3), -np.inf, np.float32)
    merged, merged_lse = headway.merge_partials([out, out], [lse, lse])
    assert not merged.any()
    assert (merged_lse == -np.inf).all()


def test_nan_stays_in_its_row() -> None:
    """A NaN lse makes its row NaN; a NaN context its column."""
    out, lse = np.ones((2, 3, 4)), np.zeros((2, 3))
    lse[0, 1] = np.nan
    out[1, 2, 3] = np.nan
    merged, merged_lse = headway.merge_partials([out, np.ones_like(out)], [lse, np.zeros((2, 3))])
    expected = np.zeros((2, 3, 4), bool)
    expected[0, 1] = expected[1, 2, 3] = True
    np.testing.assert_array_equal(np.isnan(merged), expected)
    np.testing.assert_array_equal(np.isnan(merged_lse), [[False, True, False], [False] * 3])


def test_parts_far_apart() -> None:
    """Log-sum-exps beyond what exp can take: the larger one wins, equal ones share."""
    outs = [np.full((1, 2), 1.0), np.full((1, 2), 3.0)]
    for lses, wanted, total in (((1e4, -1e4), 1, 1e4), ((-1e4, -1e4), 2, np.log(2) - 1e4)):
        merged, lse = headway.merge_partials(outs, [np.array([x]) for x in lses])
        assert (merged == wanted).all()
        np.testing.assert_allclose(lse, [total], rtol=1e-15)


def test_float64_log_sum_exps_beside_16_bit_contexts() -> None:
    """Each keeps its dtype."""
    out = np.ones((3, 2), dtype_of("bfloat16"))
    merged, lse = headway.merge_partials([out, out], [np.zeros(3), np.zeros(3)])
    assert (merged.dtype, lse.dtype) == (out.dtype, np.float64)
    np.testing.assert_allclose(lse, np.log(2))


OUT, LSE = np.zeros((2, 3, 4), np.float32), np.zeros((2, 3), np.float32)


@pytest.mark.parametrize(
    ("outs", "lses", "more", "error", "text"),
    [
        ([], [], {}, ValueError, "outs: expected one part at least, got none; pass the parts"),
        (OUT, [LSE], {}, TypeError, "outs: expected a sequence of arrays, got ndarray; pass one"),
        (3, [LSE], {}, TypeError, "outs: expected a sequence of arrays, got int"),
        ([OUT], LSE, {}, TypeError, "lses: expected a sequence of arrays, got ndarray"),
        ([OUT], [], {}, ValueError, "lses: expected one part at least, got none"),
        ([OUT], [LSE] * 2, {}, ValueError, "lses: expected 1 arrays, one for each of outs, got 2;"),
        ([[1.0]], [LSE], {}, TypeError, "outs[0]: expected a NumPy array or an object"),
        ([OUT.astype(int)], [LSE], {}, TypeError, "outs[0]: expected float32, float64, float16"),
        (
            [OUT, OUT.astype(np.float64)], [LSE] * 2, {}, TypeError,
            "outs[1]: expected float32 like outs[0], got float64; convert with "
            "outs[1].astype(np.float32)",
        ),
        (
            [OUT, OUT[:1]], [LSE] * 2, {}, ValueError,
            "outs[1]: expected shape (2, 3, 4) like outs[0], got (1, 3, 4); pass parts for the",
        ),
        ([OUT[0, 0]], [LSE], {}, ValueError, "outs[0]: expected 2, 3 or 4 axes, got 1 ((4,));"),
        (
            [OUT], [LSE.T], {}, ValueError,
            "lses[0]: expected shape (2, 3) for outs of (2, 3, 4) in 'BHTD', got (3, 2); pass what",
        ),
        (
            [OUT], [LSE], {"layout": "BTHD"}, ValueError,
            "lses[0]: expected shape (3, 2) for outs of (2, 3, 4) in 'BTHD', got (2, 3)",
        ),
        (
            [OUT], [LSE.astype(np.float16)], {}, TypeError,
            "lses[0]: expected float32 or float64, got float16; convert with lse.astype",
        ),
        (
            [OUT] * 2, [LSE, LSE.astype(np.float64)], {}, TypeError,
            "lses[1]: expected float32 like lses[0], got float64",
        ),
        ([OUT], [LSE], {"layout": "THD"}, ValueError, "layout: expected "),
    ],
)  # fmt: skip
def test_wrong_calls(
    outs: Any, lses: Any, more: dict[str, Any], error: type[Exception], text: str
) -> None:
    """Each says which argument, what was wanted, what came, and the fix."""
    with pytest.raises(error) as caught:
        headway.merge_partials(outs, lses, **more)
    assert str(caught.value).startswith(text)


def test_what_weighs_nothing_is_still_there() -> None:
    """Only lse -inf is an empty part: NaN of weight 0 is NaN, as in one call."""
    out, lse = np.ones((1, 1, 2, 3)), np.zeros((1, 1, 2))
    poisoned = np.full_like(out, np.nan)
    assert np.isnan(headway.merge_partials([poisoned, out], [lse - 1000, lse])[0]).all()
    nothing = np.full_like(lse, -np.inf)
    assert_same_bits(headway.merge_partials([poisoned, out], [nothing, lse])[0], out)


def test_one_part_keeps_its_bits_and_large_ones_make_no_warning() -> None:
    out, lse = np.full((1, 1, 2, 3), -0.0), np.zeros((1, 1, 2))
    nothing = (np.zeros_like(out), np.full_like(lse, -np.inf))
    assert_same_bits(headway.merge_partials([nothing[0], out], [nothing[1], lse])[0], out)
    assert_same_bits(headway.merge_partials([nothing[0]], [nothing[1]])[0], np.zeros_like(out))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        headway.merge_partials([np.full_like(out, 1.7e308)] * 3, [lse] * 3)
