"""A cache that grows piece by piece against one call over the whole history, in every kind."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from cache_kinds import (
    KINDS,
    QUANTISED,
    STORED,
    Sequences,
    check_pieces,
    fed,
    full_call,
    source_of,
    splits,
)
from helpers import FULL, Array, assert_same_bits, attend, dtype_of, make, make_qkv

import headway

SIZES = (1, 2, 8, 8)


def nine_tokens(dtype: str) -> tuple[Array, Array, Array]:
    """Return q of four heads, k and v of two, nine tokens each."""
    g = np.random.default_rng(109)
    name = source_of(dtype)
    q, k, v = (g.standard_normal((1, n, 9, 8)).astype(dtype_of(name)) for n in (4, 2, 2))
    return q, k, v


def same(found: tuple[Array, Array], expected: tuple[Array, Array], what: str = "") -> None:
    """Compare the bits of out and lse."""
    assert_same_bits(found[0], expected[0], what)
    assert_same_bits(found[1], expected[1], f"lse, {what}")


@pytest.mark.parametrize("dtype", FULL)
@pytest.mark.parametrize("kind", KINDS)
def test_pieces_of_four_one_three_one(kind: str, dtype: str, isa: str, threads: int) -> None:
    """Figures worked out by another program."""
    out, _ = fed(Sequences(kind, 9, SIZES, dtype), *nine_tokens(dtype), [4, 1, 3, 1])
    np.testing.assert_allclose(out[0, 0, 0, :3], [0.434483, 0.243778, -0.255299], rtol=1e-5)
    np.testing.assert_allclose(out[0, 3, 8, :3], [-0.616753, 0.361184, 0.085104], rtol=1e-5)


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("kind", KINDS)
def test_every_split(kind: str, dtype: str) -> None:
    """All 256 ways to cut nine tokens; in new caches, and in one that is emptied each time."""
    q, k, v = nine_tokens(dtype)
    whole = full_call(q, k, v, dtype)
    kept, seen = Sequences(kind, 9, SIZES, dtype), 0
    every = 1 if kind in ("plain", "ring", "paged-4") else 3
    for pieces in list(splits(9))[::every]:
        sequences = Sequences(kind, 9, SIZES, dtype, used=seen == 8) if seen % 8 == 0 else kept
        check_pieces(fed(sequences, q, k, v, pieces), whole, pieces, dtype, kind)
        assert sequences.lengths == [9]
        kept.forget()
        seen += 1
    assert seen == -(-256 // every)


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("any_threads")
def test_some_splits(kind: str, dtype: str, isa: str) -> None:
    """On every instruction set; in a batch, with values of another width, in 1 to 3 threads."""
    q, k, v = make_qkv(
        9, source_of(dtype), batch=2, heads=(6, 2), tokens=(70, 70), head_dim=10, value_dim=17
    )
    whole = full_call(q, k, v, dtype)
    for n, pieces in enumerate(([33, 37], [1, 64, 2, 1, 2], [2, 1, 1, 1, 3, 8, 53, 1])):
        headway.set_num_threads(1 + n)
        sequences = Sequences(kind, 70, (2, 2, 10, 17), dtype, used=n == 2)
        check_pieces(fed(sequences, q, k, v, pieces), whole, pieces, dtype, kind)


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("kind", ["growing", "ring", "paged-16"])
def test_several_spans(kind: str, dtype: str, isa: str, some_threads: int) -> None:
    """A history of some 2,100 tokens, looked at around the ends of spans of 1,024 keys."""
    q, k, v = make_qkv(10, source_of(dtype), heads=(3, 1), tokens=(2100, 2100), head_dim=6)
    sequences, start = Sequences(kind, 2100, (1, 1, 6, 6), dtype, used=False), 0
    for skipped, pieces in ((1000, [23, 1, 1, 7]), (1010, [4, 1, 2, 1, 1, 9])):
        sequences.append(*(x[:, :, start : start + skipped] for x in (k, v)))
        rows = slice(start + skipped, start + skipped + sum(pieces))
        found = fed(sequences, *(x[:, :, rows] for x in (q, k, v)), pieces)
        whole = full_call(q[:, :, rows], k[:, :, : rows.stop], v[:, :, : rows.stop], dtype)
        check_pieces(found, whole, pieces, dtype, kind)
        start = rows.stop


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("kind", KINDS)
def test_different_lengths(kind: str, dtype: str, isa: str) -> None:
    """Sequences that grow at their own pace have the bits that they have alone.

    What `counts` leaves out of the arrays may be anything.
    """
    steps = [[5, 0, 17, 2], [1, 0, 0, 3], [2, 40, 1, 1], [0, 1, 9, 0], [1, 1, 1, 1]]
    totals = np.cumsum(steps, axis=0)
    q, k, v = make_qkv(11, source_of(dtype), batch=4, heads=(4, 2), tokens=(42, 42), head_dim=9)
    sequences = Sequences(kind, 42, (4, 2, 9, 9), dtype)
    alone = [Sequences(kind, 42, (1, 2, 9, 9), dtype, used=False) for _ in range(4)]
    for step, after in zip(steps, totals, strict=True):
        n = max(step)
        parts = [np.full((4, 2, n, 9), np.nan, x.dtype) for x in (k, v)]
        for b, (count, end) in enumerate(zip(step, after, strict=True)):
            for part, x in zip(parts, (k, v), strict=True):
                part[b, :, :count] = x[b, :, end - count : end]
            one = slice(b, b + 1)
            alone[b].append(*(x[one, :, end - count : end] for x in (k, v)))
        sequences.append(*parts, counts=step)
        assert sequences.lengths == after.tolist()
        for queries in (1, 3):
            found = sequences.attend(q[:, :, :queries])
            for b in range(4):
                one = slice(b, b + 1)
                expected = alone[b].attend(q[one, :, :queries])
                same((found[0][one], found[1][one]), expected, f"{b} of {after}, {queries}")
                if dtype not in QUANTISED:
                    cut = attend(q[one, :, :queries], *(x[one, :, : after[b]] for x in (k, v)))
                    same(expected, cut, f"{b} of {after}, {queries}, without a cache")


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_stored(kind: str, dtype: str) -> None:
    """Floats as they were, integers off by half a scale, 8-bit floats rounded to nearest even."""
    k, v = (4 * make((12, n), (2, 2, 21, 7), "float64") for n in (1, 2))
    k[0, 0, 3], v[1, 1, 20, 2], k[1, 0, 5, 4] = 0, 1e4, -3e3
    k, v = (x.astype(dtype_of(source_of(dtype))) for x in (k, v))
    sequences = Sequences(kind, 21, (2, 2, 7, 7), dtype)
    for rows in (slice(0, 8), slice(8, 9), slice(9, 21)):
        sequences.append(k[:, :, rows], v[:, :, rows])
    for b in range(2):
        for x, found in zip((k[b], v[b]), sequences.stored(b), strict=True):
            if dtype == "int8":
                largest = np.abs(x.astype(np.float64)).max(axis=-1, keepdims=True)
                assert (np.abs(found - x) <= largest / 254 * (1 + 1e-5)).all()
            elif dtype == "fp8_e4m3":
                import ml_dtypes

                rounded = np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn)
                np.testing.assert_array_equal(found, rounded.astype(np.float64))
            else:
                assert_same_bits(found, x, f"sequence {b}")


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("kind", KINDS)
def test_arrays_changed_afterwards(kind: str, dtype: str) -> None:
    """A cache has copies; the result is a new array."""
    q, k, v = nine_tokens(dtype)
    sequences = Sequences(kind, 9, SIZES, dtype)
    sequences.append(k, v)
    first = sequences.attend(q)
    kept = [x.copy() for x in first]
    k[...] = np.nan
    v *= 3
    same(sequences.attend(q), (kept[0], kept[1]), "after the arrays were changed")
    same(first, (kept[0], kept[1]), "the first result")
    first[0][...] = first[1][...] = np.nan
    same(sequences.attend(q), (kept[0], kept[1]), "after the result was changed")


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("kind", KINDS)
def test_two_caches(kind: str, dtype: str) -> None:
    """Neither changes the other, whatever the order of the calls."""
    q, k, v = nine_tokens(dtype)
    first, second = (Sequences(kind, 9, SIZES, dtype) for _ in range(2))
    alone = fed(Sequences(kind, 9, SIZES, dtype), q, k, v, [2] * 4)
    found = []
    for start in range(0, 8, 2):
        rows = slice(start, start + 2)
        first.append(k[:, :, rows], v[:, :, rows])
        second.append(-v[:, :, rows], k[:, :, rows])
        second.attend(q[:, :, rows])
        found.append(first.attend(q[:, :, rows]))
    outs, lses = zip(*found, strict=True)
    same((np.concatenate(outs, 2), np.concatenate(lses, 2)), alone)


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("kind", ["plain", "paged-1", "paged-4"])
def test_past_the_capacity(kind: str, dtype: str) -> None:
    """An error; lengths, contents and results stay as they were, and what fits is taken then."""
    q, k, v = make_qkv(13, source_of(dtype), batch=3, heads=(4, 2), tokens=(9, 30), head_dim=8)
    sequences = Sequences(kind, 8, (3, 2, 8, 8), dtype)
    expected = full_call(q, k[:, :, :8], v[:, :, :8], dtype)
    sequences.append(k[:, :, :6], v[:, :, :6])
    before, stored = sequences.attend(q), [sequences.stored(b) for b in range(3)]
    error = MemoryError if kind.startswith("paged") else ValueError
    overruns: list[Callable[[], None]] = [
        lambda: sequences.append(k, v),
        lambda: sequences.append(k[:, :, 6:], v[:, :, 6:], counts=[1, 24, 0]),
        lambda: sequences.append(k[:, :, 6:], v[:, :, 6:], counts=[2, 2, 16]),
    ]
    for overrun in overruns:
        with pytest.raises(error):
            overrun()
        assert sequences.lengths == [6, 6, 6]
        same(sequences.attend(q), before)
        for b in range(3):
            for found, kept in zip(sequences.stored(b), stored[b], strict=True):
                assert_same_bits(found, kept, f"stored of {b}")
    sequences.append(k[:, :, 6:8], v[:, :, 6:8])
    same(sequences.attend(q), expected)


@pytest.mark.parametrize("dtype", STORED)
def test_reset_of_some(dtype: str, isa: str) -> None:
    """An emptied sequence starts anew beside the others, which stay as they were."""
    q, k, v = make_qkv(14, source_of(dtype), batch=3, heads=(2, 2), tokens=(9, 9), head_dim=8)
    sizes = {"dtype": dtype}
    cache, new = (headway.KVCache(3, 2, 9, 8, **sizes) for _ in range(2))
    cache.append(k[::-1], v[::-1], counts=[9, 5, 2])
    before = cache.attend(q[:, :, :2], return_lse=True)
    cache.reset([1])
    assert cache.lengths.tolist() == [9, 0, 2]
    out, lse = cache.attend(q[:, :, :2], return_lse=True)
    for b in (0, 2):
        same((out[b], lse[b]), (before[0][b], before[1][b]), f"sequence {b}")
    assert not out[1].any()
    assert (lse[1] == -np.inf).all()
    cache.reset()
    assert cache.lengths.tolist() == [0, 0, 0]
    for each in (cache, new):
        each.append(k[:, :, :4], v[:, :, :4])
    same(cache.attend(q, return_lse=True), new.attend(q, return_lse=True), "after a reset")
