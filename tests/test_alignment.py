"""Where the diagonal starts when queries and keys differ in number, and how masking holds."""

from __future__ import annotations

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
    make_qkv,
    probe,
)

import headway

#: Tq, Tk, then the mean of the visible key numbers and how many are visible, for "end", "start".
PROBES: list[tuple[int, int, list[float], list[int], list[float], list[int]]] = [
    (2, 5, [1.5, 2], [4, 5], [0, 0.5], [1, 2]),
    (1, 4, [1.5], [4], [0], [1]),
    (3, 3, [0, 0.5, 1], [1, 2, 3], [0, 0.5, 1], [1, 2, 3]),
    (5, 2, [0, 0, 0, 0, 0.5], [0, 0, 0, 1, 2], [0, 0.5, 0.5, 0.5, 0.5], [1, 2, 2, 2, 2]),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("queries", "keys", "end", "seen_end", "start", "seen_start"), PROBES)
def test_probe(
    queries: int,
    keys: int,
    end: list[float],
    seen_end: list[int],
    start: list[float],
    seen_start: list[int],
    dtype: str,
    isa: str,
    threads: int,
) -> None:
    """Equal scores: the result is a mean that can be worked out by hand. "end" is the default."""
    for options, expected, seen in (
        ({}, end, seen_end),
        ({"align": "end"}, end, seen_end),
        ({"align": keys - queries}, end, seen_end),
        ({"align": [keys - queries]}, end, seen_end),
        ({"align": "start"}, start, seen_start),
        ({"align": 0}, start, seen_start),
    ):
        found, counted = probe(queries, keys, dtype, **options)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(counted, seen, rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_probe_of_weights(dtype: str, isa: str) -> None:
    """The weights and masked scores follow the same diagonal as the output."""
    for queries, keys, _, seen_end, _, seen_start in PROBES:
        q = np.zeros((1, 1, queries, 4), dtype_of(dtype))
        k = np.zeros((1, 1, keys, 4), dtype_of(dtype))
        for align, seen in (("end", seen_end), ("start", seen_start)):
            weights = headway.attention_weights(q, k, align=align)[0, 0]
            scores = headway.attention_scores(q, k, align=align)[0, 0]
            for i, count in enumerate(seen):
                row = [1 / max(count, 1)] * count + [0.0] * (keys - count)
                np.testing.assert_allclose(weights[i].astype(np.float64), row, rtol=5e-3)
                assert scores[i].tolist() == [0.0] * count + [-np.inf] * (keys - count)
        assert not headway.attention_scores(q, k, stage="scaled").any()


@pytest.mark.parametrize("dtype", FULL)
@pytest.mark.parametrize("tokens", [(1, 97), (2, 97), (9, 97), (98, 97), (97, 98), (70, 640)])
def test_every_row_of_a_probe(tokens: tuple[int, int], dtype: str, isa: str, threads: int) -> None:
    """Short chunks after a long past, one more query than keys, one less."""
    queries, keys = tokens
    for align, start in (("end", keys - queries), ("start", 0), (5, 5), ([-7], -7)):
        found, counted = probe(queries, keys, dtype, align=align)
        seen = np.clip(np.arange(queries) + start + 1, 0, keys)
        np.testing.assert_allclose(found, np.maximum(seen - 1, 0) / 2, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(counted, seen, rtol=2e-5)
    found, counted = probe(queries, keys, dtype, causal=False)
    np.testing.assert_allclose(found, (keys - 1) / 2, rtol=1e-5)
    np.testing.assert_allclose(counted, keys, rtol=2e-5)


@pytest.mark.parametrize("dtype", FULL)
def test_random_numbers(dtype: str, isa: str, threads: int) -> None:
    """Figures worked out by another program."""
    g = np.random.default_rng(101)
    q, k, v = (g.standard_normal((2, 3, n, 8)).astype(dtype) for n in (3, 7, 7))
    for align, values, lses in (
        ("end", [-0.567688, 0.123965, -0.250211], [2.644562, 2.257448, 3.647534]),
        ("start", [-0.349773, -0.106013, -0.691881], None),
    ):
        out, lse = attend(q, k, v, align=align)
        np.testing.assert_allclose(out[1, 2, 0, :3], values, rtol=1e-5, atol=1e-6)
        if lses:
            np.testing.assert_allclose(lse[1, 2], lses, rtol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [True, False])
def test_positions_per_batch_entry(causal: bool, dtype: str, isa: str, threads: int) -> None:
    """Each entry has the rows that it has alone; without causality align means nothing."""
    q, k, v = make_qkv(5, dtype, batch=5, heads=(4, 2), tokens=(6, 80), head_dim=12)
    starts = [74, 0, -3, 79, 200]
    for given in (starts, tuple(starts), np.array(starts), np.array(starts, np.int32)):
        out, lse = attend(q, k, v, align=given, causal=causal)
        for b, start in enumerate(starts):
            one = slice(b, b + 1)
            alone, alone_lse = attend(q[one], k[one], v[one], align=start, causal=causal)
            assert_same_bits(out[one], alone, f"entry {b}")
            assert_same_bits(lse[one], alone_lse, f"lse of entry {b}")
    if not causal:
        plain, plain_lse = attend(q, k, v, causal=False)
        assert_same_bits(out, plain)
        assert_same_bits(lse, plain_lse, "lse")


@pytest.mark.parametrize("dtype", DTYPES)
def test_far_positions(dtype: str, isa: str) -> None:
    """Positions far outside the keys see all of them, or none, without overflow."""
    q, k, v = make_qkv(6, dtype, tokens=(5, 9), head_dim=8)
    everything = attend(q, k, v, causal=False)
    for far in (9, 2**31, 2**40):
        for found, expected in zip(attend(q, k, v, align=far), everything, strict=True):
            assert_same_bits(found, expected, f"align={far}")
        out, lse = attend(q, k, v, align=-far)
        assert not out.any()
        assert (lse == -np.inf).all()


@pytest.mark.parametrize("dtype", FULL)
def test_hidden_tail_of_many_keys(dtype: str, isa: str, threads: int) -> None:
    """Whole blocks of keys lie hidden behind the last position."""
    q, k, v = make_qkv(103, dtype, tokens=(12, 640), head_dim=4)
    for start in (0, 10, 52, 53, 244, 511, 628):
        out, lse = attend(q, k, v, align=start)
        stop = start + 12
        cut, cut_lse = attend(q, k[:, :, :stop], v[:, :, :stop])
        assert_close(out, cut.astype(np.float64), TOLERANCE[dtype])
        assert_close(lse, cut_lse.astype(np.float64), LSE_TOLERANCE[dtype], "lse")
