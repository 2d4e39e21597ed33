"""Scales near both ends of the range: the score is the product, whatever its factors are."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers import LSE_TOLERANCE, TOLERANCE, Array, assert_close, attend

import headway


def check(q: Array, k: Array, scale: float, scores: list[float]) -> None:
    """Compare one query's weights, made visible by an identity as v, with Python's floats."""
    top = max(scores)
    parts = [math.exp(score - top) for score in scores]
    expected = np.array([[part / math.fsum(parts) for part in parts]])
    dtype = q.dtype.name
    v = np.eye(len(scores), dtype=q.dtype)
    out, lse = attend(q, k, v, scale=scale, causal=False)
    assert_close(out, expected, TOLERANCE[dtype], "out")
    total = top + math.log(math.fsum(parts))
    assert_close(lse, np.array([total]), LSE_TOLERANCE[dtype], "lse")
    out, _ = attend(q, k, v, scale=scale, align=len(scores))
    assert_close(out, expected, TOLERANCE[dtype], "out with the causal rule")
    weights = headway.attention_weights(q, k, scale=scale, causal=False)
    assert_close(weights, expected, TOLERANCE[dtype], "weights")
    found = headway.attention_scores(q, k, scale=scale, causal=False)
    assert_close(found, np.array([scores]), LSE_TOLERANCE[dtype], "scores")


def column(dtype: str, *numbers: float) -> Array:
    """Return one number a row."""
    return np.array(numbers, dtype)[:, None]


@pytest.mark.parametrize("scale", [1e-46, 1e-300, 5e-324, -1e-46, -5e-324, 0.0])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_scale_below_the_range_of_float32(
    dtype: str, scale: float, isa: str, threads: int
) -> None:
    """All visible keys weigh alike."""
    ones = np.ones((1, 2, 70, 4), dtype)
    out, lse = attend(ones, ones, ones, scale=scale)
    assert_close(out, ones, TOLERANCE[dtype], "out")
    seen = np.broadcast_to(np.log(np.arange(1, 71)), (1, 2, 70))
    assert_close(lse, seen, 2e-5, "lse")
    weights = headway.attention_weights(ones[:, :, :4], ones[:, :, :4], scale=scale, causal=False)
    assert_close(weights, np.full((1, 2, 4, 4), 0.25), TOLERANCE[dtype], "weights")


def test_a_large_scale_on_a_tiny_product_in_float32(isa: str, threads: int) -> None:
    """The product of q and k alone lies below float32's normal numbers."""
    q, k, scale = column("float32", 1e-20), column("float32", 1e-18, 2e-18), 2.37e38
    check(q, k, scale, [scale * float(q[0, 0]) * float(x) for x in k[:, 0]])


def test_a_large_scale_on_a_tiny_product_in_float64(isa: str, threads: int) -> None:
    """The product of q and k is a subnormal number, scale times log2(e) an infinite one."""
    q, k, scale = column("float64", 1e-150), column("float64", 1e-158, 2e-158), 1.5e308
    check(q, k, scale, [scale * float(q[0, 0]) * float(x) for x in k[:, 0]])


def test_a_small_scale_on_a_large_product(isa: str, threads: int) -> None:
    """The products lie at the end of the range, the scores near 3 and -3."""
    q, k, scale = column("float32", 1), column("float32", 3e38, -3e38), 1e-38
    check(q, k, scale, [scale * float(x) for x in k[:, 0]])
    q, k, scale = column("float64", 1), column("float64", 1.5e308, -1.5e308), 1e-308
    check(q, k, scale, [scale * float(x) for x in k[:, 0]])


@pytest.mark.parametrize("scale", [1e300, -1e300, 3.5e38, 1.7e308])
def test_any_scale_times_zero_is_zero(scale: float, isa: str, threads: int) -> None:
    """A scale beyond float32's range makes no NaN of a product of 0."""
    zeros = np.zeros((70, 4), np.float32)
    scores = headway.attention_scores(zeros, zeros, scale=scale, stage="scaled")
    np.testing.assert_array_equal(scores, np.zeros((70, 70)))
    masked = headway.attention_scores(zeros, zeros, scale=scale)
    np.testing.assert_array_equal(masked[np.tri(70, dtype=bool)], 0)
    out, lse = attend(zeros, zeros, zeros + 1, scale=scale)
    assert_close(out, np.ones((70, 4)), TOLERANCE["float32"])
    assert_close(lse, np.log(np.arange(1, 71)), LSE_TOLERANCE["float32"], "lse")
