"""Large, small and wide numbers in masks, sinks and slopes: all are read in the sums' own type."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import (
    DTYPES,
    FULL,
    HALF,
    LSE_TOLERANCE,
    TOLERANCE,
    Array,
    assert_close,
    assert_same_bits,
    attend,
    dtype_of,
    make,
    make_qkv,
    reference,
    wide_tolerance,
)

import headway

TOKENS = [(1, 90), (5, 90), (70, 90)]
LOWEST = {
    "float16": -65504.0,
    "bfloat16": -3.3895313892515355e38,
    "float32": float(np.finfo(np.float32).min),
}


def check(q: Array, k: Array, v: Array, **options: Any) -> tuple[Array, Array]:
    """Compare with the reference and return (out, lse)."""
    dtype = q.dtype.name
    out, lse = attend(q, k, v, **options)
    expected, expected_lse = reference(q, k, v, **options)
    assert_close(out, expected, TOLERANCE[dtype])
    assert_close(lse, expected_lse, LSE_TOLERANCE[dtype], "lse")
    return out, lse


@pytest.mark.parametrize("kind", LOWEST)
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_lowest_number_is_a_number(
    dtype: str, tokens: tuple[int, int], kind: str, isa: str, threads: int
) -> None:
    """Beside 0 it weighs nothing; a row of nothing else is no empty row."""
    q, k, v = make_qkv(1, dtype, heads=(2, 1), tokens=tokens, head_dim=8)
    mask = np.zeros(tokens, np.float64)
    mask[:, ::2] = LOWEST[kind]
    low = mask.astype(dtype_of(kind))
    out, _ = check(q, k, v, mask=low, causal=False)
    told, _ = attend(q, k, v, mask=mask == 0, causal=False)
    assert_close(out, told.astype(np.float64), TOLERANCE[dtype], "as hidden")
    v[:, :, ::2] = np.nan  # it is visible, whatever it weighs
    assert np.isnan(attend(q, k, v, mask=low, causal=False)[0].astype(np.float64)).all()

    q, k, v = make_qkv(2, dtype, heads=(2, 1), tokens=tokens, head_dim=8)
    low[...] = LOWEST[kind]
    out, lse = attend(q, k, v, mask=low, causal=False)
    assert np.isfinite(lse).all()
    np.testing.assert_allclose(lse, LOWEST[kind], rtol=1e-3)
    if kind != "float16" and dtype != "float64":  # the scores are lost beside it: all weigh alike
        mean = np.broadcast_to(v.astype(np.float64).mean(axis=2, keepdims=True), out.shape)
        assert_close(out, mean, TOLERANCE[dtype], "mean")


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_dtype_of_a_mask(dtype: str, tokens: tuple[int, int], isa: str, threads: int) -> None:
    """The same numbers in four dtypes, the same bits; zeros add nothing."""
    q, k, v = make_qkv(3, dtype, heads=(4, 2), tokens=tokens, head_dim=8)
    numbers = np.round(make(4, (1, 4, *tokens)) * 16) / 16
    numbers[..., 7::11] = -np.inf
    expected = check(q, k, v, mask=numbers)
    for kind in DTYPES:
        found = attend(q, k, v, mask=numbers.astype(dtype_of(kind)))
        for got, same in zip(found, expected, strict=True):
            assert_same_bits(got, same, kind)
        plain = attend(q, k, v, mask=np.ones((1, 1, 1, tokens[1]), bool))
        zeros = attend(q, k, v, mask=np.zeros((tokens[1],), dtype_of(kind)))
        for got, same in zip(zeros, plain, strict=True):
            assert_close(got, same.astype(np.float64), TOLERANCE[dtype], f"zeros in {kind}")


@pytest.mark.parametrize("dtype", HALF)
def test_a_mask_wider_than_the_inputs(dtype: str, isa: str, threads: int) -> None:
    """Numbers that 16 bits do not hold: beyond their range, and finer than their steps."""
    q, k, v = make_qkv(5, dtype, heads=(2, 1), tokens=(70, 90), head_dim=8)
    mask = 1e6 + make(6, (70, 90), "float32")
    check(q, k, v, mask=mask - 1e6, causal=False)
    fine = (0.3 + 1e-4 * np.arange(90)).astype(np.float32)
    wide = np.empty((*q.shape[:3], v.shape[3]), np.float32)
    headway.attention(q, k, v, mask=fine, out=wide, causal=False)
    expected, _ = reference(q, k, v, mask=fine, causal=False)
    assert_close(wide, expected, wide_tolerance(dtype))
    far = np.where(np.arange(90) % 3 > 0, 3e38, -3e38).astype(np.float32)
    out, lse = attend(q, k, v, mask=far, causal=False)
    np.testing.assert_allclose(lse, 3e38, rtol=1e-6)
    seen = v[:, :, np.arange(90) % 3 > 0].astype(np.float64).mean(axis=2, keepdims=True)
    assert_close(out, np.broadcast_to(seen, out.shape), TOLERANCE[dtype])


@pytest.mark.parametrize("size", [-1e30, -1e4, -90.0, 0.0, 90.0, 1e4, 1e30])
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sinks_of_any_size(
    dtype: str, tokens: tuple[int, int], size: float, isa: str, threads: int
) -> None:
    """A low sink is none, a high one takes all; beside large scores, too."""
    q, k, v = make_qkv(7, dtype, heads=(2, 1), tokens=tokens, head_dim=8)
    sinks = np.array([size, 1.0])
    out, lse = check(q, k, v, sinks=sinks)
    plain, plain_lse = attend(q, k, v)
    if size < -80:
        assert_close(out[:, 0], plain[:, 0].astype(np.float64), TOLERANCE[dtype])
        assert_close(lse[:, 0], plain_lse[:, 0].astype(np.float64), LSE_TOLERANCE[dtype], "lse")
    if size > 100:
        assert not out[:, 0].any()
        np.testing.assert_allclose(lse[:, 0], size, rtol=1e-6)
    none, none_lse = attend(q, k, v, sinks=[-np.inf, -np.inf])
    assert_close(none, plain.astype(np.float64), TOLERANCE[dtype])
    assert_close(none_lse, plain_lse.astype(np.float64), LSE_TOLERANCE[dtype], "lse")


@pytest.mark.parametrize("dtype", FULL)
def test_sinks_and_large_scores(dtype: str, isa: str, threads: int) -> None:
    """Scores near 1e4: a sink among them counts like one of them."""
    for queries in (1, 70):
        q = np.ones((1, 1, queries, 1), dtype)
        k = (1e4 + np.arange(9)).astype(dtype).reshape(1, 1, 9, 1)
        v = np.arange(9).astype(dtype).reshape(1, 1, 9, 1)
        for sink in (9995.0, 1e4, 10008.0, 10020.0):
            options = {"sinks": [sink], "scale": 1.0, "causal": False}
            out, lse = attend(q, k, v, **options)
            expected, expected_lse = reference(q, k, v, **options)
            assert_close(out, expected, TOLERANCE[dtype])
            assert_close(lse, expected_lse, {"float32": 2e-7, "float64": 1e-15}[dtype], "lse")


@pytest.mark.parametrize("kind", ["int32", "float16", "bfloat16", "float32", "float64", "list"])
@pytest.mark.parametrize("dtype", FULL)
def test_any_dtype_of_sinks_and_slopes(dtype: str, kind: str, isa: str) -> None:
    """Whole numbers in any dtype, or in a list, give the same bits."""
    q, k, v = make_qkv(8, dtype, heads=(4, 2), tokens=(40, 70), head_dim=8)
    sinks, slopes = np.array([1.0, -2, 0, 3]), np.array([0.0, 1, 2, 3])
    expected = check(q, k, v, sinks=sinks, alibi_slopes=slopes)
    given = [x.tolist() if kind == "list" else x.astype(dtype_of(kind)) for x in (sinks, slopes)]
    found = attend(q, k, v, sinks=given[0], alibi_slopes=given[1])
    for got, same in zip(found, expected, strict=True):
        assert_same_bits(got, same, kind)


@pytest.mark.parametrize("dtype", DTYPES)
def test_slopes_over_many_keys(dtype: str, isa: str, threads: int) -> None:
    """Distances up to 20,000: far keys weigh nothing, with a slope below 0 the first ones all."""
    q, k, v = make_qkv(9, dtype, heads=(4, 1), tokens=(3, 20_000), head_dim=8)
    slopes = [0.5, 2.0**-8, 0.0, -1.0]
    out, lse = attend(q, k, v, alibi_slopes=slopes)
    expected, expected_lse = reference(q, k, v, alibi_slopes=slopes)
    # Scores of 20,000 are kept to half a step of float32, a thousandth.
    steps = [1, 1, 1, 1 if dtype == "float64" else 50]
    for h, more in enumerate(steps):
        assert_close(out[:, h], expected[:, h], TOLERANCE[dtype] * more, f"head {h}")
        assert_close(lse[:, h], expected_lse[:, h], LSE_TOLERANCE[dtype], f"lse of {h}")


@pytest.mark.usefixtures("any_threads")
def test_slopes_over_more_keys_than_float32_can_count(isa: str) -> None:
    """Queries far before the keys that they see: many at once have the rows of each alone."""
    headway.set_num_threads(1)  # two would meet after each of the 16,000 spans
    far, keys = 2**24, 2**24 + 2**11
    q, k = np.zeros((1, 1, 70, 1), np.float32), np.zeros((1, 1, 1, 1), np.float32)
    v, seen = np.zeros((1, 1, keys, 1), np.float32), np.zeros((1, 1, 1, keys), bool)
    v[0, 0, far:, 0] = make(11, (keys - far,))
    seen[..., far:] = True
    options: Any = {"causal": False, "mask": seen, "alibi_slopes": np.array([-0.01])}
    k = np.broadcast_to(k, (1, 1, keys, 1))
    out = headway.attention(q, k, v, align=0, **options)
    for i in (1, 7, 33, 65):
        alone = headway.attention(q[:, :, i : i + 1], k, v, align=i, **options)
        assert_same_bits(alone, out[:, :, i : i + 1], f"query {i}")


@pytest.mark.parametrize("dtype", DTYPES)
def test_finite_numbers_of_a_wider_mask_stay_finite(dtype: str, isa: str, threads: int) -> None:
    """What float64 holds and the sums' type does not is read as its lowest or highest number."""
    q, k, v = make_qkv(7, dtype, heads=(2, 1), tokens=(5, 40), head_dim=8)
    mask = np.full((5, 40), np.finfo(np.float64).min)
    out, _ = attend(q, k, v, mask=mask, causal=False)
    mean = np.broadcast_to(v.astype(np.float64).mean(axis=2, keepdims=True), out.shape)
    assert_close(out, mean, TOLERANCE[dtype], "lowest everywhere")
    mask[...] = 0
    mask[:, 3] = 1e300
    out, _ = attend(q, k, v, mask=mask, causal=False)
    assert_close(out, np.broadcast_to(v[:, :, 3:4].astype(np.float64), out.shape), TOLERANCE[dtype])


@pytest.mark.parametrize(
    ("slope", "align"), [(0.7, 10**6), (1e4, 10**6), (1e30, 2**40), (3e38, 10**6), (0.7, -2000)]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sink_keeps_its_digits_however_far_the_keys(
    dtype: str, slope: float, align: int, isa: str, threads: int
) -> None:
    """Far keys weigh nothing beside a sink: context 0, and the sink itself for the lse."""
    q, k, v = make_qkv(8, dtype, heads=(2, 1), tokens=(20, 9), head_dim=8)
    out, lse = attend(q, k, v, alibi_slopes=[slope] * 2, sinks=[1.1, -0.3], align=align)
    assert_same_bits(out, np.zeros_like(out))
    np.testing.assert_array_equal(
        lse, np.broadcast_to(np.array([[1.1], [-0.3]], lse.dtype), lse.shape)
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_key_gives_back_its_value(dtype: str, isa: str, threads: int) -> None:
    """Its weight is 1, though with ALiBi the weights before the division are not."""
    q, k, v = make_qkv(9, dtype, heads=(2, 2), tokens=(200, 200), head_dim=8)
    out, _ = attend(q, k, v, alibi_slopes=[0.4, 0.03], window=1)
    few = 4 if dtype == "float64" else 2
    error = np.abs(out.astype(np.float64) - v.astype(np.float64)).max()
    assert (
        error
        <= few * np.finfo("f8" if dtype == "float64" else "f4").eps * np.abs(v.astype("f8")).max()
    )
