"""The soft cap: its formula, its place in the order of work, and what it must not bring back."""

from __future__ import annotations

from typing import Any

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
    lse_dtype,
    make_qkv,
    reference,
)

import headway

INF = np.inf


@pytest.mark.parametrize("dtype", DTYPES)
def test_hidden_keys_stay_hidden(dtype: str, isa: str, threads: int) -> None:
    """Equal scores: each row is 1 / n over its n keys; a hidden key capped to -1 would show."""
    q = np.zeros((1, 1, 3, 4), dtype_of(dtype))
    v = np.eye(3).astype(q.dtype)[None, None]
    seen = np.tri(3, dtype=bool)
    wanted = seen / seen.sum(axis=1, keepdims=True)
    ways: list[dict[str, Any]] = [
        {},
        {"window": 3},
        {"mask": seen, "causal": False},
        {"mask": np.where(seen, 0, -INF).astype(np.float32), "causal": False},
        {"window": (-1, 0), "causal": False},
    ]
    for options in ways:
        out, lse = attend(q, q, v, softcap=1.0, **options)
        assert_close(out[0, 0], wanted, TOLERANCE[dtype], f"{options}")
        np.testing.assert_allclose(lse[0, 0], np.log([1, 2, 3]), rtol=1e-6, atol=1e-7)
        weights = headway.attention_weights(q, q, softcap=1.0, **options)
        assert_close(weights[0, 0], wanted, TOLERANCE[dtype], f"weights, {options}")
        scores = headway.attention_scores(q, q, softcap=1.0, **options)
        np.testing.assert_array_equal(scores[0, 0], np.where(seen, 0, -INF))
        capped = headway.attention_scores(q, q, softcap=1.0, stage="capped", **options)
        assert not capped.any()


@pytest.mark.parametrize("dtype", FULL)
def test_the_tail_of_a_block(dtype: str, isa: str, threads: int) -> None:
    """Figures worked out by another program: 65 keys, and none of a block's padding."""
    g = np.random.default_rng(105)
    q, k, v = (g.standard_normal((1, 1, n, d)).astype(dtype) for n, d in ((1, 8), (65, 8), (65, 2)))
    for queries in (q, q.repeat(5, axis=2)):
        out, lse = attend(queries, k, v, softcap=1.0, causal=False)
        rows = np.broadcast_to([0.091568, -0.008028], (queries.shape[2], 2))
        np.testing.assert_allclose(out[0, 0], rows, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(lse, 4.453546, rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_formula(dtype: str, isa: str, threads: int) -> None:
    """Figures worked out by hand: scores of 10, 20 and -10 capped at 2."""
    q = np.full((1, 1, 1, 1), 10, dtype_of(dtype))
    k = np.array([1, 2, -1], q.dtype).reshape(1, 1, 3, 1)
    v = np.eye(3).astype(q.dtype)[None, None]
    for queries in (q, q.repeat(3, axis=2)):
        options = {"scale": 1.0, "causal": False}
        out, lse = attend(queries, k, v, softcap=2.0, **options)
        rows = np.broadcast_to([0.495416, 0.495506, 0.009077], out.shape)
        assert_close(out, rows, max(TOLERANCE[dtype], 2e-6))
        np.testing.assert_allclose(lse, 2.702175, rtol=1e-6)
        out, _ = attend(queries, k, v, **options)
        rows = np.broadcast_to([0.000045, 0.999955, 0], out.shape)
        assert_close(out, rows, max(TOLERANCE[dtype], 2e-6), "without a cap")


@pytest.mark.parametrize("cap", [0.5, 1.0, 5.0, 50.0])
@pytest.mark.parametrize("dtype", FULL)
def test_every_number_of_keys(dtype: str, cap: float, isa: str, some_threads: int) -> None:
    """1 to 130 keys, one query and two."""
    q, k, v = make_qkv(5, dtype, heads=(1, 1), tokens=(2, 130), head_dim=8, value_dim=3)
    q *= 4
    for keys in range(1, 131):
        arrays = q, k[:, :, :keys], v[:, :, :keys]
        expected, expected_lse = reference(*arrays, softcap=cap, causal=False)
        for rows in (slice(0, 1), slice(0, 2)):
            out, lse = attend(arrays[0][:, :, rows], *arrays[1:], softcap=cap, causal=False)
            assert_close(out, expected[:, :, rows], TOLERANCE[dtype], f"{keys} keys")
            assert_close(lse, expected_lse[:, :, rows], LSE_TOLERANCE[dtype], f"lse, {keys} keys")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [(1, 130), (70, 130)])
def test_none_and_0_are_off(dtype: str, tokens: tuple[int, int], isa: str, threads: int) -> None:
    """The very bits of a call without the option; one too large to matter is close."""
    q, k, v = make_qkv(6, dtype, heads=(4, 2), tokens=tokens, head_dim=12)
    plain, plain_lse = attend(q, k, v)
    for cap in (None, 0, 0.0, np.float32(0)):
        out, lse = attend(q, k, v, softcap=cap)
        assert_same_bits(out, plain, f"cap {cap}")
        assert_same_bits(lse, plain_lse, f"lse, cap {cap}")
    for cap in (1e9, 1e30, 3e38):
        out, lse = attend(q, k, v, softcap=cap)
        assert_close(out, plain.astype(np.float64), 4 * TOLERANCE[dtype], f"cap {cap}")
        assert_close(lse, plain_lse.astype(np.float64), 4 * LSE_TOLERANCE[dtype], f"cap {cap}")


@pytest.mark.parametrize("cap", [1e-3, 0.5, 1.0, 30.0, 1e4])
@pytest.mark.parametrize("dtype", FULL)
def test_accuracy_of_the_capped_score(dtype: str, cap: float, isa: str, threads: int) -> None:
    """One column, so that the score is the key: from tiny through large to the end of the range."""
    wide = np.linspace(-20, 20, 1001) * cap
    ends = np.array([1e-30, 1e-7, 1e-4, 1e5, 1e15, 1e38, np.finfo(dtype).max])
    numbers = np.concatenate([wide, ends, -ends, [0.0]]).astype(dtype)
    k, q = numbers[:, None], np.ones((3, 1), dtype)
    scores = headway.attention_scores(q, k, scale=1.0, softcap=cap, stage="capped", causal=False)
    with np.errstate(over="ignore"):
        expected = cap * np.tanh(numbers.astype(np.float64) / cap)
    assert scores.dtype == lse_dtype(dtype)
    off = np.abs(scores - expected).max() / cap
    assert off <= {"float32": 1e-6, "float64": 4e-15}[dtype], f"{off:.2e} of the cap"
    assert (np.abs(scores) <= cap * (1 + 1e-6)).all()
    np.testing.assert_array_equal(scores[:, -1], 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("queries", [1, 70])
def test_infinite_scores_are_capped_and_nan_is_not(
    dtype: str, queries: int, isa: str, threads: int
) -> None:
    """A score of inf is the cap, one of -inf minus the cap and has a weight; NaN stays NaN."""
    q = np.ones((queries, 1), dtype_of(dtype))
    k = np.array([INF, -INF, 0.0, 1.0], q.dtype)[:, None]
    v = np.eye(4).astype(q.dtype)
    options = {"softcap": 2.0, "scale": 1.0, "causal": False}
    out, lse = attend(q, k, v, **options)
    scores = np.array([2, -2, 0, 2 * np.tanh(0.5)])
    weights = np.exp(scores) / np.exp(scores).sum()
    assert_close(out, np.broadcast_to(weights, out.shape), TOLERANCE[dtype])
    np.testing.assert_allclose(lse, np.log(np.exp(scores).sum()), rtol=1e-5)
    k[3] = np.nan
    assert np.isnan(attend(q, k, v, **options)[0].astype(np.float64)).all()
    out, _ = attend(q, k, v, mask=np.array([True, True, True, False]), **options)
    assert np.isfinite(out.astype(np.float64)).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_before_what_is_added(dtype: str, isa: str, threads: int) -> None:
    """The cap acts on the scaled score alone: bias, slopes and sinks lie above it."""
    q = np.full((1, 1, 4, 1), 8, dtype_of(dtype))
    k = np.array([9, -9, 9, 9], q.dtype).reshape(1, 1, 4, 1)
    v = np.eye(4).astype(q.dtype)[None, None]
    mask = np.array([0.0, 7, -5, 3])
    capped = 1.5 * np.tanh(8 * np.array([9, -9, 9, 9]) * 0.5 / 1.5)
    distance = np.abs(np.arange(4)[:, None] - np.arange(4))
    scores = capped - 0.5 * distance + mask
    scores[~np.tri(4, dtype=bool)] = -INF
    total = np.exp(scores).sum(axis=1, keepdims=True) + np.exp(4.0)
    options = {"mask": mask, "alibi_slopes": [0.5], "sinks": [4.0], "softcap": 1.5, "scale": 0.5}
    out, lse = attend(q, k, v, **options)
    assert_close(out[0, 0], np.exp(scores) / total, TOLERANCE[dtype])
    assert_close(lse[0, 0], np.log(total)[:, 0], LSE_TOLERANCE[dtype], "lse")
    del options["sinks"]
    found = headway.attention_scores(q, k, **options)
    assert_close(found[0, 0], scores, LSE_TOLERANCE[dtype], "scores")
