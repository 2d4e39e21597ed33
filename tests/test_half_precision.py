"""16-bit inputs and large scores: range, rounding, and every bit pattern there is."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import (
    DTYPES,
    FULL,
    HALF,
    TOLERANCE,
    Array,
    assert_close,
    assert_same_bits,
    attend,
    dtype_of,
    flushed,
    make_qkv,
    multiplies_pairs,
    reference,
    wide_tolerance,
)

import headway


def all_patterns(dtype: str) -> Array:
    """Return all 65,536 numbers of a 16-bit dtype, in the order of their bit patterns."""
    return np.arange(2**16, dtype=np.uint16).view(dtype_of(dtype))


def same_numbers(got: Array, expected: Array) -> None:
    """Fail unless the numbers are equal; NaN equals NaN, and 0 equals -0."""
    np.testing.assert_array_equal(got.astype(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("queries", [1, 2, 70])
@pytest.mark.parametrize("out_dtype", ["same", "float32"])
def test_every_number_as_a_value(queries: int, dtype: str, out_dtype: str, isa: str) -> None:
    """With one key the result is its value: all patterns come through, NaN and inf included."""
    v = all_patterns(dtype).reshape(4, 64, 1, 256)
    if multiplies_pairs(dtype):
        v = flushed(v)
    q = np.ones((4, 64, queries, 3), v.dtype)
    k = np.ones((4, 64, 1, 3), v.dtype)
    shape = (4, 64, queries, 256)
    out = np.empty(shape, v.dtype if out_dtype == "same" else np.float32)
    headway.attention(q, k, v, causal=False, out=out)
    if out_dtype == "same":
        same_numbers(out, np.broadcast_to(v, shape))
    else:  # not rounded to 16 bits, the weight may be 1 but for one float32 rounding
        wide = np.broadcast_to(v.astype(np.float32), shape)
        np.testing.assert_allclose(out, wide, rtol=1.2e-7, atol=1e-44)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("operand", ["q", "k"])
@pytest.mark.parametrize("queries", [1, 2])
def test_every_number_as_a_score(operand: str, queries: int, dtype: str, isa: str) -> None:
    """One key, one column: the score is the number itself, and so is the lse."""
    numbers = all_patterns(dtype).reshape(16, 4096, 1, 1)
    ones = np.ones_like(numbers)
    q, k = (numbers, ones) if operand == "q" else (ones, numbers)
    v = np.full_like(ones, 3)
    out, lse = attend(np.repeat(q, queries, axis=2), k, v, causal=False, scale=1.0)
    wide = np.repeat(numbers[..., 0].astype(np.float32), queries, axis=2)
    finite = np.isfinite(wide)
    np.testing.assert_allclose(lse[finite], wide[finite], rtol=1e-6, atol=2e-7)
    assert (out[finite] == 3).all()
    hidden = wide == -np.inf
    assert (lse[hidden] == -np.inf).all()
    assert not out[hidden].any()
    assert np.isnan(lse[np.isnan(wide)]).all()
    assert np.isnan(out[np.isnan(wide)].astype(np.float32)).all()
    scores = headway.attention_scores(q, k, stage="scaled", causal=False, scale=1.0)
    same_numbers(scores[..., 0], numbers[..., 0])


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("low", [1, 2, 3])
def test_rounding_to_nearest_even(low: int, dtype: str, isa: str, threads: int) -> None:
    """Equal weights over four keys: results a quarter, half and three quarters between numbers.

    Their sums are exact in float32, so that the only rounding is the last one, half to even.
    """
    largest = int(np.array(np.inf, dtype_of(dtype)).view(np.uint16))
    numbers = np.arange(largest, dtype=np.uint16).view(dtype_of(dtype))
    lower, upper = numbers[:-1].reshape(-1, 1, 1), numbers[1:].reshape(-1, 1, 1)
    keep = upper.astype(np.float32).ravel() < (2e4 if dtype == "float16" else 8e37)
    if dtype == "bfloat16":  # below that the exact quarters are no float32 numbers
        keep &= lower.astype(np.float32).ravel() >= 1e-35
    v = np.concatenate([lower] * low + [upper] * (4 - low), axis=1)[keep]
    exact = v.astype(np.float32).sum(axis=1, keepdims=True) / 4
    for sign in (1, -1):
        signed = v * np.array(sign, v.dtype)
        q = np.zeros((*v.shape[:1], 2, 4), v.dtype)
        k = np.zeros((*v.shape[:1], 4, 4), v.dtype)
        out = headway.attention(q, k, signed, causal=False)
        expected = np.broadcast_to((sign * exact).astype(v.dtype), out.shape)
        assert_same_bits(out, expected)


@pytest.mark.parametrize("dtype", FULL)
@pytest.mark.parametrize("queries", [1, 2])
def test_full_width_bit_patterns_as_values(queries: int, dtype: str, isa: str) -> None:
    """NaN of every kind stays NaN, infinities, zeros and subnormal numbers stay what they are."""
    unsigned = np.uint32 if dtype == "float32" else np.uint64
    draw = np.random.default_rng(8).integers(0, 2**32, 4096, dtype=np.uint64)
    patterns = (draw << np.uint64(32) | draw[::-1]) if dtype == "float64" else draw
    special = [0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800000, 0xFF800000, 0, 1, 0x7FFFFF]
    if dtype == "float64":
        special = [0x7FF0000000000001, 2**63 - 1, 2**64 - 1, 0x7FF << 52, 0xFFF << 52, 0, 1, 999]
    patterns[: len(special)] = special
    v = patterns.astype(unsigned).view(dtype_of(dtype)).reshape(16, 1, 256)
    q = np.ones((16, queries, 3), v.dtype)
    out = headway.attention(q, q[:, :1], v, causal=False)
    np.testing.assert_array_equal(out, np.broadcast_to(v, out.shape))


@pytest.mark.parametrize("dtype", DTYPES)
def test_dot_products_beyond_the_16_bit_range(dtype: str, isa: str, threads: int) -> None:
    """Raw products of 262144 leave float16; the scaled scores are ordinary."""
    q = np.full((1, 1, 1, 64), 64, dtype_of(dtype))
    k = np.array([64, 63.5, -64], dtype_of(dtype)).reshape(1, 1, 3, 1).repeat(64, axis=3)
    v = np.array([1, 2, 4], dtype_of(dtype)).reshape(1, 1, 3, 1)
    for queries in (q, q.repeat(3, axis=2)):
        out, lse = attend(queries, k, v, scale=2.0**-13, causal=False)
        np.testing.assert_allclose(lse, 32.575939, rtol=1e-6)
        allowed = {"float64": 1e-6, "float32": 1e-5, "float16": 1e-3, "bfloat16": 8e-3}[dtype]
        assert np.abs(out.astype(np.float64) - 1.437823).max() <= allowed
        plain, plain_lse = attend(queries, k, v, causal=False)
        assert (plain == 1).all()
        assert (plain_lse == 32768).all()


@pytest.mark.parametrize("size", [1e4, 1e5])
@pytest.mark.parametrize("tokens", [(1, 9), (3, 9), (70, 300)])
@pytest.mark.parametrize("dtype", FULL)
def test_scores_of_large_magnitude(
    dtype: str, tokens: tuple[int, int], size: float, isa: str, threads: int
) -> None:
    """Scores near +-1e4 and +-1e5, a few apart: the differences decide, and are kept."""
    queries, keys = tokens
    for sign in (1, -1):
        q = np.ones((1, 1, queries, 1), dtype)
        apart = np.random.default_rng(4).integers(0, 8, (1, 1, keys, 1))
        k = (sign * size + apart).astype(dtype)
        v = np.random.default_rng(5).standard_normal((1, 1, keys, 3)).astype(dtype)
        expected, expected_lse = reference(q, k, v, scale=1.0)
        out, lse = attend(q, k, v, scale=1.0)
        assert_close(out, expected, TOLERANCE[dtype])
        assert_close(lse, expected_lse, 1e-7 if dtype == "float32" else 1e-15, "lse")


@pytest.mark.parametrize("size", ["1e6", "1e9", "1e10", "1e20", "1e30", "max"])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("dtype", FULL)
def test_scores_up_to_the_end_of_the_range(
    dtype: str, sign: int, size: str, isa: str, threads: int
) -> None:
    """Any finite number is a score like any other: equal ones give the mean, and a finite lse."""
    score = sign * (np.finfo(dtype).max if size == "max" else float(size))
    for queries in (1, 70):
        q = np.full((1, 1, queries, 1), score, dtype)
        k = np.ones((1, 1, 9, 1), dtype)
        v = np.arange(9).astype(dtype).reshape(1, 1, 9, 1)
        out, lse = attend(q, k, v, scale=1.0, causal=False)
        np.testing.assert_allclose(out, 4, rtol=TOLERANCE[dtype])
        np.testing.assert_allclose(lse, score + np.log(9), rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("size", [0.0, 1e2, -1e2, 1e4, -1e4])
@pytest.mark.parametrize("dtype", FULL)
def test_equal_keys_have_equal_weights(dtype: str, size: float, isa: str, threads: int) -> None:
    """However large the common score, the result is the mean of the values."""
    for queries in (1, 70):
        q = np.ones((1, 1, queries, 1), dtype)
        k = np.full((1, 1, 700, 1), size, dtype)
        v = np.arange(700).astype(dtype).reshape(1, 1, 700, 1)
        out = headway.attention(q, k, v, scale=1.0, causal=False)
        np.testing.assert_allclose(out, 349.5, rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_forty_thousand_equal_keys(dtype: str, isa: str, threads: int) -> None:
    """Weights of 1/40000 each still add up: no sum is kept in 16 bits."""
    for queries in (1, 2):
        q = np.zeros((1, 1, queries, 4), dtype_of(dtype))
        k = np.zeros((1, 1, 40_000, 4), dtype_of(dtype))
        for value in (1, 3):
            v = np.full((1, 1, 40_000, 2), value, dtype_of(dtype))
            out, lse = attend(q, k, v, causal=False)
            if dtype in HALF:
                assert (out == value).all()
            np.testing.assert_allclose(out.astype(np.float64), value, rtol=1e-5)
            np.testing.assert_allclose(lse, np.log(40_000), rtol=1e-6)


@pytest.mark.parametrize("dtype", HALF)
def test_result_unrounded(dtype: str, isa: str, threads: int) -> None:
    """out= in float32 gets the result before its rounding: rounding it gives the 16-bit one."""
    q, k, v = make_qkv(2, dtype, batch=2, heads=(4, 2), tokens=(70, 130), head_dim=24)
    wide = np.empty(q.shape, np.float32)
    returned, lse = attend(q, k, v, out=wide)
    assert returned is wide
    expected, _ = reference(q, k, v)
    assert_close(wide, expected, wide_tolerance(dtype))
    rounded, rounded_lse = attend(q, k, v)
    assert rounded.dtype == q.dtype
    assert_same_bits(wide.astype(q.dtype), rounded)
    assert_same_bits(lse, rounded_lse, "lse")


@pytest.mark.parametrize("dtype", HALF)
def test_results_of_16_bits_are_those_of_float32(dtype: str, isa: str) -> None:
    """The sums are the float32 ones: widened inputs give nearly the same numbers."""
    q, k, v = make_qkv(3, dtype, heads=(2, 2), tokens=(70, 70), head_dim=64)
    wide = np.empty(q.shape, np.float32)
    headway.attention(q, k, v, out=wide)
    same = headway.attention(*(x.astype(np.float32) for x in (q, k, v)))
    assert_close(wide, same.astype(np.float64), wide_tolerance(dtype))
