"""The reference against answers found by hand and against an oracle that goes row by row."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest
from helpers import DTYPES, Array, dtype_of, lse_dtype, make_qkv

from headway import reference

INF = math.inf
NAN = math.nan


def row_by_row(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = True,
    offsets: list[int] | None = None,
    scale: float | None = None,
) -> tuple[Array, Array, Array]:
    """Return (out, lse, weights); one row at a time, and a hidden key is never read."""
    batch, num_heads, tq, head_dim = q.shape
    num_kv_heads, tk, width = k.shape[1], k.shape[2], v.shape[3]
    out = np.zeros((batch, num_heads, tq, width))
    lse = np.full((batch, num_heads, tq), -INF)
    weights = np.zeros((batch, num_heads, tq, tk))
    for b, h, i in np.ndindex(batch, num_heads, tq):
        kv_head = h * num_kv_heads // num_heads
        last = i + (tk - tq if offsets is None else offsets[b])
        scores: list[float] = []
        keys = [j for j in range(tk) if j <= last or not causal]
        for j in keys:
            product = math.fsum(q[b, h, i] * k[b, kv_head, j])
            scores.append(product * (1 / math.sqrt(head_dim) if scale is None else scale))
        if keys:
            top = max(scores)
            total = math.fsum(math.exp(s - top) for s in scores)
            lse[b, h, i] = top + math.log(total)
            for j, s in zip(keys, scores, strict=True):
                weights[b, h, i, j] = math.exp(s - top) / total
                out[b, h, i] += weights[b, h, i, j] * v[b, kv_head, j]
    return out, lse, weights


def probe(tq: int, tk: int) -> tuple[Array, Array, Array]:
    """Return q = k = 0 and v[j] = j: a result is the mean of the numbers of the visible keys."""
    values = np.arange(float(tk)).reshape(1, 1, tk, 1)
    return np.zeros((1, 1, tq, 4)), np.zeros((1, 1, tk, 4)), values


@pytest.mark.parametrize(
    ("tq", "tk", "align", "means", "seen"),
    [
        (2, 5, "end", [1.5, 2], [4, 5]),
        (2, 5, "start", [0, 0.5], [1, 2]),
        (1, 4, "end", [1.5], [4]),
        (1, 4, "start", [0], [1]),
        (3, 3, "end", [0, 0.5, 1], [1, 2, 3]),
        (3, 3, "start", [0, 0.5, 1], [1, 2, 3]),
        (5, 2, "end", [0, 0, 0, 0, 0.5], [0, 0, 0, 1, 2]),
        (5, 2, "start", [0, 0.5, 0.5, 0.5, 0.5], [1, 2, 2, 2, 2]),
        (3, 5, 1, [0.5, 1, 1.5], [2, 3, 4]),
        (3, 5, -2, [0, 0, 0], [0, 0, 1]),
        (3, 5, 10**30, [2, 2, 2], [5, 5, 5]),
        (3, 5, [-(10**30)], [0, 0, 0], [0, 0, 0]),
    ],
)
def test_alignment_by_hand(
    tq: int, tk: int, align: Any, means: list[float], seen: list[int]
) -> None:
    q, k, v = probe(tq, tk)
    out, lse = reference.attention(q, k, v, align=align, return_lse=True)
    np.testing.assert_allclose(out[0, 0, :, 0], means, rtol=1e-15)
    np.testing.assert_allclose(np.exp(lse[0, 0]), seen, rtol=1e-15)
    visible = np.isfinite(reference.attention_scores(q, k, align=align)[0, 0])
    np.testing.assert_array_equal(visible.sum(axis=-1), seen)
    np.testing.assert_array_equal(reference.attention_weights(q, k, align=align)[0, 0] > 0, visible)


def test_known_numbers() -> None:
    rng = np.random.default_rng(101)
    q, k, v = (rng.standard_normal(shape) for shape in ((2, 3, 3, 8), (2, 3, 7, 8), (2, 3, 7, 8)))
    out, lse = reference.attention(q, k, v, return_lse=True)
    np.testing.assert_allclose(out[1, 2, 0, :3], [-0.567688, 0.123965, -0.250211], atol=1e-6)
    np.testing.assert_allclose(lse[1, 2], [2.644562, 2.257448, 3.647534], atol=1e-6)
    out = reference.attention(q, k, v, align="start")
    np.testing.assert_allclose(out[1, 2, 0, :3], [-0.349773, -0.106013, -0.691881], atol=1e-6)


def test_neighbouring_query_heads_share_a_key_head() -> None:
    for num_heads, values, expected in (
        (4, [10.0, 20.0], [10, 10, 20, 20]),
        (6, [10.0, 20.0, 30.0], [10, 10, 20, 20, 30, 30]),
        (3, [5.0], [5, 5, 5]),
    ):
        q = np.zeros((1, num_heads, 1, 4))
        k = np.zeros((1, len(values), 1, 4))
        out = reference.attention(q, k, np.reshape(values, (1, -1, 1, 1)))
        np.testing.assert_array_equal(out[0, :, 0, 0], expected)

    rng = np.random.default_rng(106)
    q, k, v = (rng.standard_normal(shape) for shape in ((2, 6, 4, 8), (2, 3, 4, 8), (2, 3, 4, 8)))
    out = reference.attention(q, k, v)
    np.testing.assert_allclose(out[1, 4, 3, :3], [-0.208150, -0.279360, -0.626401], atol=1e-6)
    repeated = reference.attention(q, np.repeat(k, 2, axis=1), np.repeat(v, 2, axis=1))
    np.testing.assert_array_equal(out, repeated)


@pytest.mark.parametrize("heads", [(1, 1), (4, 4), (6, 2), (3, 1)])
@pytest.mark.parametrize("tokens", [(1, 1), (5, 5), (3, 8), (8, 3)])
@pytest.mark.parametrize(
    "options",
    [{}, {"causal": False}, {"scale": -0.7}, {"scale": 0.0}, {"offsets": [2, -1]}],
    ids=str,
)
def test_row_by_row(
    heads: tuple[int, int], tokens: tuple[int, int], options: dict[str, Any]
) -> None:
    q, k, v = make_qkv(7, "float64", batch=2, heads=heads, tokens=tokens, head_dim=5, value_dim=3)
    expected, expected_lse, expected_weights = row_by_row(q, k, v, **options)
    if "offsets" in options:
        options = {"align": options["offsets"]}
    out, lse = reference.attention(q, k, v, return_lse=True, **options)
    np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(lse, expected_lse, rtol=1e-12, atol=1e-13)
    weights = reference.attention_weights(q, k, **options)
    np.testing.assert_allclose(weights, expected_weights, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_what_is_hidden_does_not_exist(bad: float) -> None:
    q, k, v = make_qkv(8, "float64", heads=(4, 2), tokens=(6, 6))
    out, lse = reference.attention(q, k, v, return_lse=True)
    k[:, :, 4:], v[:, :, 4:] = bad, bad
    got, got_lse = reference.attention(q, k, v, return_lse=True)
    np.testing.assert_array_equal(got[:, :, :4], out[:, :, :4])
    np.testing.assert_array_equal(got_lse[:, :, :4], lse[:, :, :4])
    np.testing.assert_array_equal(reference.attention_weights(q, k)[:, :, :4, 4:], 0.0)
    np.testing.assert_array_equal(reference.attention_scores(q, k)[:, :, :4, 4:], -INF)


def test_nan_comes_out_where_it_is_seen_and_nowhere_else() -> None:
    q, k, v = make_qkv(9, "float64", heads=(4, 2), tokens=(6, 6), value_dim=3)
    out = reference.attention(q, k, v)

    broken = v.copy()
    broken[0, 1, 2, 1] = NAN  # key head 1 serves query heads 2 and 3
    expected = out.copy()
    expected[0, 2:, 2:, 1] = NAN
    np.testing.assert_array_equal(reference.attention(q, k, broken), expected)

    broken = k.copy()
    broken[0, 0, 3, 0] = NAN
    expected = out.copy()
    expected[0, :2, 3:] = NAN
    got, lse = reference.attention(q, broken, v, return_lse=True)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(np.isnan(lse), np.isnan(expected[..., 0]))

    broken = q.copy()
    broken[0, 1, 2, 4] = NAN
    expected = out.copy()
    expected[0, 1, 2] = NAN
    np.testing.assert_array_equal(reference.attention(broken, k, v), expected)
    weights = reference.attention_weights(broken, k)
    assert np.isnan(weights[0, 1, 2, :3]).all()
    np.testing.assert_array_equal(weights[0, 1, 2, 3:], 0.0)


def test_infinite_values_add_like_numbers() -> None:
    q, k, v = probe(4, 4)
    v[0, 0, 1], v[0, 0, 3] = INF, -INF
    np.testing.assert_array_equal(reference.attention(q, k, v)[0, 0, :, 0], [0.0, INF, INF, NAN])


def test_a_score_of_minus_infinity_has_weight_0() -> None:
    q, k, v = np.ones((3, 1)), np.array([[-INF], [0.0], [0.0]]), np.array([[4.0], [5.0], [7.0]])
    out, lse = reference.attention(q, k, v, return_lse=True)
    np.testing.assert_allclose(out[:, 0], [0.0, 5.0, 6.0], rtol=1e-15)
    np.testing.assert_allclose(lse, [-INF, 0.0, math.log(2)], rtol=1e-15)
    weights = reference.attention_weights(q, k)
    np.testing.assert_allclose(weights, [[0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.5, 0.5]])
    v[0] = NAN  # its row 0 is an empty one; rows 1 and 2 see the NaN
    np.testing.assert_array_equal(np.isnan(reference.attention(q, k, v)[:, 0]), [False, True, True])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["BHTD", "BTHD"])
@pytest.mark.parametrize("rank", [4, 3, 2])
def test_ranks_layouts_and_dtypes(rank: int, layout: str, dtype: str) -> None:
    arrays = make_qkv(3, dtype, heads=(1, 1) if rank == 2 else (4, 2), tokens=(3, 5), value_dim=6)
    wide = [x.astype(np.float64) for x in arrays]
    expected, expected_lse = reference.attention(*wide, return_lse=True)
    drop = (0, 0) if rank == 2 else (0,) * (4 - rank)

    def named(x: Array) -> Array:
        x = x.swapaxes(1, 2) if layout == "BTHD" and rank > 2 else x
        return np.asarray(x[drop])

    q, k, v = (named(x) for x in arrays)
    out, lse = reference.attention(q, k, v, layout=layout, return_lse=True)
    assert out.dtype == dtype_of(dtype)
    assert lse.dtype == lse_dtype(dtype)
    assert out.flags.c_contiguous
    np.testing.assert_array_equal(out, named(expected).astype(out.dtype))
    np.testing.assert_array_equal(lse, expected_lse[drop].astype(lse.dtype))

    weights = reference.attention_weights(q, k, layout=layout)
    scores = reference.attention_scores(q, k, layout=layout)
    assert weights.dtype == dtype_of(dtype)
    assert scores.dtype == lse_dtype(dtype)
    assert weights.shape == scores.shape == (*expected_lse[drop].shape, 5)

    for taken in (out.dtype, lse.dtype):  # the dtype of q; float32 too where that has 16 bits
        room = np.zeros(out.shape[::-1], taken).T
        assert reference.attention(q, k, v, layout=layout, out=room) is room
        np.testing.assert_array_equal(room, named(expected).astype(taken))


def test_stages_of_the_scores() -> None:
    q, k, _ = make_qkv(4, "float64", tokens=(3, 5))
    scaled = reference.attention_scores(q, k, stage="scaled")
    np.testing.assert_allclose(scaled, q @ k.swapaxes(2, 3) / math.sqrt(8), rtol=1e-15)
    masked = reference.attention_scores(q, k)
    hidden = np.arange(5) > np.arange(3)[:, None] + 2
    np.testing.assert_array_equal(masked, np.where(hidden, -INF, scaled))
    np.testing.assert_array_equal(reference.attention_scores(q, k, causal=False), scaled)


@pytest.mark.parametrize("empty", ["batch", "heads", "queries", "keys", "value_dim"])
def test_empty_axes(empty: str) -> None:
    sizes = {"batch": 2, "heads": 2, "queries": 3, "keys": 4, "value_dim": 5} | {empty: 0}
    b, h, tq, tk, width = sizes.values()
    q, k, v = np.ones((b, h, tq, 8)), np.ones((b, h, tk, 8)), np.ones((b, h, tk, width))
    out, lse = reference.attention(q, k, v, return_lse=True)
    np.testing.assert_array_equal(out, np.full((b, h, tq, width), 0.0 if empty == "keys" else 1.0))
    assert lse.shape == (b, h, tq)
    assert empty != "keys" or (lse == -INF).all()
    assert reference.attention_weights(q, k).shape == (b, h, tq, tk)


def test_a_thousand_tokens_take_moments() -> None:
    q, k, v = make_qkv(5, "float32", heads=(4, 4), tokens=(1000, 1000), head_dim=64)
    start = time.perf_counter()
    reference.attention(q, k, v)
    assert time.perf_counter() - start < 20
