"""Options of each query head where fewer key heads are shared, worked out by hand."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from helpers import (
    DTYPES,
    LSE_TOLERANCE,
    TOLERANCE,
    assert_close,
    assert_same_bits,
    attend,
    dtype_of,
)

import headway

HEADS = [(6, 3), (4, 1), (10, 2), (14, 2)]
TOKENS = [(1, 40), (3, 40), (70, 150)]

pytestmark = [pytest.mark.parametrize("dtype", DTYPES), pytest.mark.parametrize("heads", HEADS)]


def key_head_numbers(heads: tuple[int, int]) -> list[int]:
    """Return, per query head, the number that its key head holds: 8 times its place and 8."""
    return [8 * (h // (heads[0] // heads[1])) + 8 for h in range(heads[0])]


@pytest.mark.parametrize("tokens", TOKENS)
def test_sinks(
    dtype: str, heads: tuple[int, int], tokens: tuple[int, int], isa: str, threads: int
) -> None:
    """Equal scores of 0 over n keys: a sink s takes exp(s) of n + exp(s), in its head only."""
    q = np.zeros((2, heads[0], tokens[0], 4), dtype_of(dtype))
    k = np.zeros((2, heads[1], tokens[1], 4), q.dtype)
    v = np.zeros((2, heads[1], tokens[1], 1), q.dtype)
    v += np.arange(8, 8 * heads[1] + 1, 8).astype(q.dtype)[:, None, None]
    sinks = np.linspace(-3, 6, heads[0])
    sinks[-1] = -np.inf  # no sink
    seen = np.arange(tokens[1] - tokens[0], tokens[1]) + 1
    total = seen + np.exp(sinks)[:, None]
    out, lse = attend(q, k, v, sinks=sinks)
    expected = np.array(key_head_numbers(heads))[:, None] * seen / total
    assert_close(out[..., 0], np.broadcast_to(expected, (2, *expected.shape)), TOLERANCE[dtype])
    wide = np.broadcast_to(np.log(total), lse.shape)
    assert_close(lse, wide, LSE_TOLERANCE[dtype], "lse")
    weights = headway.attention_weights(q, k, sinks=sinks).astype(np.float64)
    wide = np.broadcast_to(seen / total, lse.shape)
    assert_close(weights.sum(axis=-1), wide, TOLERANCE[dtype], "sums of the weights")


@pytest.mark.parametrize("tokens", TOKENS)
def test_slopes(
    dtype: str, heads: tuple[int, int], tokens: tuple[int, int], isa: str, some_threads: int
) -> None:
    """Equal scores: the weights fall by exp(-slope) with each key's distance, as told per head."""
    q = np.zeros((2, heads[0], tokens[0], 4), dtype_of(dtype))
    k = np.zeros((2, heads[1], tokens[1], 4), q.dtype)
    slopes = np.stack([2.0 ** -np.arange(heads[0]), -0.125 * np.arange(heads[0])])
    distance = np.arange(tokens[1] - tokens[0], tokens[1])[:, None] - np.arange(tokens[1])
    for causal in (True, False):
        scores = -slopes[..., None, None] * np.abs(distance)
        if causal:
            scores = np.where(distance >= 0, scores, -np.inf)
        options = {"alibi_slopes": slopes, "causal": causal}
        found = headway.attention_scores(q, k, **options)
        assert_close(found, scores, LSE_TOLERANCE[dtype], "scores")
        parts = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights = parts / parts.sum(axis=-1, keepdims=True)
        assert_close(headway.attention_weights(q, k, **options), weights, TOLERANCE[dtype])
        v = (np.arange(tokens[1]) % 7 - 3.0).astype(q.dtype)[:, None]
        v = np.broadcast_to(v, (2, heads[1], tokens[1], 1))
        out = headway.attention(q, k, v, **options)
        wide = weights @ np.float64(v[:, :1])
        assert_close(out, wide, TOLERANCE[dtype], "out")
        one = headway.attention(q, k, v, alibi_slopes=slopes[1], causal=causal)
        assert_same_bits(one[1], out[1], "one row of slopes for all entries")


@pytest.mark.parametrize("tokens", TOKENS)
def test_masks(
    dtype: str, heads: tuple[int, int], tokens: tuple[int, int], isa: str, threads: int
) -> None:
    """Each query head is shown one key, another one in each: it reads that row of its key head."""
    q = np.zeros((1, heads[0], tokens[0], 4), dtype_of(dtype))
    k = np.zeros((1, heads[1], tokens[1], 4), q.dtype)
    v = np.zeros((1, heads[1], tokens[1], 2), q.dtype)
    v[..., 0] = np.arange(8, 8 * heads[1] + 1, 8)[:, None]
    v[..., 1] = np.arange(tokens[1])
    shown = 3 + 2 * np.arange(heads[0])  # the key that a head sees
    mask = np.arange(tokens[1]) == shown[:, None, None]
    for given in (mask, mask[None], np.where(mask, 0, -np.inf).astype(np.float32)):
        out = headway.attention(q, k, v, mask=given, causal=False)
        for h, number in enumerate(key_head_numbers(heads)):
            assert (out[0, h] == np.array([number, shown[h]], q.dtype)).all()
    dense = np.broadcast_to(mask, (heads[0], *tokens)).copy()
    assert_same_bits(headway.attention(q, k, v, mask=dense, causal=False), out)


def test_packed(dtype: str, heads: tuple[int, int], isa: str, threads: int) -> None:
    """A packed member's head reads its key head, with its own slope and sink."""
    cu = np.array([0, 5, 6, 6, 76])
    q = np.zeros((76, heads[0], 4), dtype_of(dtype))
    k = np.zeros((76, heads[1], 4), q.dtype)
    v = np.zeros((76, heads[1], 1), q.dtype)
    v += np.arange(8, 8 * heads[1] + 1, 8).astype(q.dtype)[:, None]
    sinks, slopes = np.linspace(-2, 2, heads[0]), 0.01 * np.arange(4 * heads[0]).reshape(4, -1)
    options = {"sinks": sinks, "alibi_slopes": slopes}
    out, lse = headway.attention_varlen(q, k, v, cu, return_lse=True, **options)
    for n, (start, stop) in enumerate(pairwise(cu.tolist())):
        for i in range(stop - start):
            parts = np.exp(-slopes[n][:, None] * np.arange(i + 1)).sum(axis=1)
            total = parts + np.exp(sinks)
            expected = key_head_numbers(heads) * parts / total
            assert_close(out[start + i, :, 0], expected, TOLERANCE[dtype], f"{n}, {i}")
            assert_close(lse[:, start + i], np.log(total), 2 * LSE_TOLERANCE[dtype], f"lse {n}")
