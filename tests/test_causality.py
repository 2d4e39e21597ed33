"""What a query may not see does not exist for it; what it sees, it cannot miss."""

from __future__ import annotations

from typing import Any

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
from poisons import POISONS, check_nan, poison

import headway

#: (Tq, Tk, align, D): square, longer keys, longer queries, each with several rules.
SETTINGS: list[tuple[int, int, Any, int]] = [
    (9, 9, "end", 3),
    (70, 70, "end", 8),
    (130, 130, "start", 64),
    (300, 300, "end", 17),
    (20, 150, "end", 8),
    (2, 600, 400, 8),
    (1, 300, 200, 8),
    (70, 40, "end", 8),
    (70, 40, "start", 5),
    (66, 200, [30, -5], 8),
]


def positions(align: Any, tokens: tuple[int, int], batch: int) -> list[int]:
    """Return, per batch entry, the key position at which query 0 stands."""
    if align == "end":
        return [tokens[1] - tokens[0]] * batch
    if align == "start":
        return [0] * batch
    return [align] * batch if isinstance(align, int) else list(align)


@pytest.mark.parametrize("kind", POISONS)
@pytest.mark.parametrize(("queries", "keys", "align", "head_dim"), SETTINGS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_future_changes_nothing(
    dtype: str, queries: int, keys: int, align: Any, head_dim: int, kind: str, isa: str, turn: int
) -> None:
    """Later keys and values turned into anything leave every earlier row as it was.

    Keys, values or both by turns, at each of the places.
    """
    q, k, v = make_qkv(
        keys, dtype, batch=2, heads=(4, 2), tokens=(queries, keys), head_dim=head_dim
    )
    expected, expected_lse = attend(q, k, v, align=align)
    starts = positions(align, (queries, keys), 2)
    places = sorted({1, keys // 2, min(64, keys - 1), keys - 1})
    for n, change in enumerate(places, turn):
        which = ("k", "v", "kv")[n % 3]
        changed_k, changed_v = k.copy(), v.copy()
        if "k" in which:
            poison(changed_k[:, :, change:], kind)
        if "v" in which:
            poison(changed_v[:, :, change:], kind)
        out, lse = attend(q, changed_k, changed_v, align=align)
        for b, start in enumerate(starts):
            rows = slice(0, max(0, change - start))
            what = f"{which} from token {change} on, entry {b}"
            assert_same_bits(out[b, :, rows], expected[b, :, rows], what)
            assert_same_bits(lse[b, :, rows], expected_lse[b, :, rows], f"lse: {what}")


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_future_changes_no_weight(dtype: str, isa: str) -> None:
    """Weights and masked scores of earlier rows too; what is hidden has weight 0, score -inf."""
    q, k, _ = make_qkv(1, dtype, batch=2, heads=(4, 2), tokens=(70, 100), head_dim=9)
    weights, scores = headway.attention_weights(q, k), headway.attention_scores(q, k)
    k[:, :, 60:] = np.nan
    rows = slice(0, 30)  # query i stands at key 30 + i
    assert_same_bits(headway.attention_weights(q, k)[:, :, rows], weights[:, :, rows])
    assert_same_bits(headway.attention_scores(q, k)[:, :, rows], scores[:, :, rows])
    hidden = np.arange(100) > np.arange(70)[:, None] + 30
    assert not weights[:, :, hidden].any()
    assert (scores[:, :, hidden] == -np.inf).all()
    assert np.isfinite(scores[:, :, ~hidden]).all()


@pytest.mark.parametrize(("queries", "keys", "align", "head_dim"), SETTINGS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_visible_nan_is_seen(
    dtype: str, queries: int, keys: int, align: Any, head_dim: int, isa: str
) -> None:
    """A NaN in q, k or v makes NaN exactly the rows that see it; in v, in its column only."""
    q, k, v = make_qkv(
        keys + 1, dtype, batch=2, heads=(4, 2), tokens=(queries, keys), head_dim=head_dim
    )
    clean, clean_lse = attend(q, k, v, align=align)
    row = np.arange(queries)
    starts = positions(align, (queries, keys), 2)
    for b, head in ((0, 0), (1, 3)):
        for place in sorted({0, 1, keys // 3, keys // 2, keys - 1}):
            bad = k.copy()
            bad[b, head // 2, place, head_dim // 2] = np.nan
            seen = np.zeros((2, 4, queries), bool)
            seen[b, head // 2 * 2 : head // 2 * 2 + 2] = row + starts[b] >= place
            out, lse = attend(q, bad, v, align=align)
            check_nan(out, clean, np.broadcast_to(seen[..., None], out.shape), f"k at {place}")
            check_nan(lse, clean_lse, seen, f"lse, k at {place}")

            bad = v.copy()
            bad[b, head // 2, place, head_dim - 1] = np.nan
            out, lse = attend(q, k, bad, align=align)
            column = np.arange(head_dim) == head_dim - 1
            check_nan(out, clean, seen[..., None] & column, f"v at {place}")
            assert_same_bits(lse, clean_lse, f"lse, v at {place}")
        for i in sorted({0, queries // 2, queries - 1}):
            bad = q.copy()
            bad[b, head, i, 0] = np.nan
            seen = np.zeros((2, 4, queries), bool)
            seen[b, head, i] = i + starts[b] >= 0
            out, lse = attend(bad, k, v, align=align)
            check_nan(out, clean, np.broadcast_to(seen[..., None], out.shape), f"q at {i}")
            check_nan(lse, clean_lse, seen, f"lse, q at {i}")


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_visible_infinity_in_v(dtype: str, sign: int, isa: str) -> None:
    """An infinite value is infinite in its column for the rows that see it."""
    q, k, v = make_qkv(4, dtype, heads=(2, 1), tokens=(70, 70), head_dim=8)
    clean, _ = attend(q, k, v)
    v[0, 0, 40, 3] = sign * np.inf
    out, _ = attend(q, k, v)
    assert (out[0, :, 40:, 3] == sign * np.inf).all()
    clean[0, :, 40:, 3] = sign * np.inf
    assert_same_bits(out, clean)


@pytest.mark.parametrize("tokens", [(1, 5), (70, 70), (5, 300)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_score_of_minus_infinity(dtype: str, tokens: tuple[int, int], isa: str) -> None:
    """It has weight 0; a row of nothing else is an empty row: context 0, lse -inf."""
    q, k, v = make_qkv(8, dtype, tokens=tokens, head_dim=6)
    q[...] = np.abs(q) + np.ones((), q.dtype)
    k[:, :, 1::2] = -np.inf
    out, lse = attend(q, k, v)
    expected, expected_lse = reference(q, k, v)
    assert_close(out, expected, TOLERANCE[dtype])
    assert_close(lse, expected_lse, LSE_TOLERANCE[dtype], "lse")
    k[...] = -np.inf
    out, lse = attend(q, k, v)
    assert not out.any()
    assert (lse == -np.inf).all()
    assert not headway.attention_weights(q, k).any()


@pytest.mark.parametrize("tokens", [(1, 5), (70, 70)])
def test_a_sum_that_leaves_the_range(tokens: tuple[int, int], isa: str) -> None:
    """Products that add up to -inf in float32 are a score of -inf like any other."""
    q, k, v = make_qkv(8, "float32", tokens=tokens, head_dim=6)
    q[...] = 1e30
    k[...] = -1e30
    out, lse = attend(q, k, v)
    assert not out.any()
    assert (lse == -np.inf).all()
