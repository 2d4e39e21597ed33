"""A sequence fed in pieces against one call: the positions go on where they stopped."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from helpers import (
    DTYPES,
    FULL,
    LSE_TOLERANCE,
    TOLERANCE,
    Array,
    assert_close,
    assert_same_bits,
    attend,
    dtype_of,
)

import headway


def nine_tokens(dtype: str) -> tuple[Array, Array, Array]:
    """Return q of four heads, k and v of two, nine tokens each."""
    g = np.random.default_rng(109)
    q, k, v = (g.standard_normal((1, n, 9, 8)).astype(dtype_of(dtype)) for n in (4, 2, 2))
    return q, k, v


def splits(tokens: int) -> Iterator[list[int]]:
    """Yield every way to cut this many tokens into pieces, in order."""
    for pattern in range(2 ** (tokens - 1)):
        ends = [i + 1 for i in range(tokens - 1) if pattern >> i & 1] + [tokens]
        yield [stop - start for start, stop in zip([0, *ends[:-1]], ends, strict=True)]


def fed_in_pieces(q: Array, k: Array, v: Array, pieces: list[int]) -> tuple[Array, Array]:
    """Return out and lse of the pieces, each with the keys up to its own end."""
    outs, lses, start = [], [], 0
    for n in pieces:
        stop = start + n
        out, lse = attend(q[:, :, start:stop], k[:, :, :stop], v[:, :, :stop])
        outs.append(out)
        lses.append(lse)
        start = stop
    return np.concatenate(outs, axis=2), np.concatenate(lses, axis=2)


@pytest.mark.parametrize("dtype", FULL)
def test_pieces_of_four_one_three_one(dtype: str, isa: str, threads: int) -> None:
    """Figures worked out by another program, in one call and in pieces."""
    q, k, v = nine_tokens(dtype)
    for out in (headway.attention(q, k, v), fed_in_pieces(q, k, v, [4, 1, 3, 1])[0]):
        np.testing.assert_allclose(out[0, 0, 0, :3], [0.434483, 0.243778, -0.255299], rtol=1e-5)
        np.testing.assert_allclose(out[0, 3, 8, :3], [-0.616753, 0.361184, 0.085104], rtol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_split(dtype: str, isa: str) -> None:
    """All 256 ways to cut nine tokens."""
    q, k, v = nine_tokens(dtype)
    expected, expected_lse = attend(q, k, v)
    seen = 0
    for pieces in splits(9):
        assert sum(pieces) == 9
        out, lse = fed_in_pieces(q, k, v, pieces)
        assert_close(out, expected.astype(np.float64), TOLERANCE[dtype], f"pieces {pieces}")
        assert_close(lse, expected_lse.astype(np.float64), LSE_TOLERANCE[dtype], "lse")
        if min(pieces) > 1:
            assert_same_bits(out, expected, f"pieces {pieces}")
        seen += 1
    assert seen == 256


@pytest.mark.parametrize("filler", [np.nan, np.inf, 6e4])
@pytest.mark.parametrize("dtype", DTYPES)
def test_slots_not_filled_yet(dtype: str, filler: float, isa: str, threads: int) -> None:
    """Whole buffer plus position, or buffer cut to length: what lies behind is never read."""
    q, k, v = nine_tokens(dtype)
    expected = attend(q, k, v)
    buffers = [np.full((1, 2, 40, 8), filler).astype(dtype_of(dtype)) for _ in range(2)]
    start = 0
    for n in (4, 2, 3):
        stop = start + n
        for buffer, x in zip(buffers, (k, v), strict=True):
            buffer[:, :, start:stop] = x[:, :, start:stop]
        piece = q[:, :, start:stop]
        cut = attend(piece, *(buffer[:, :, :stop] for buffer in buffers))
        whole = attend(piece, *buffers, align=start)
        for found in (cut, whole):
            assert_same_bits(found[0], expected[0][:, :, start:stop], f"tokens {start} to {stop}")
            assert_same_bits(found[1], expected[1][:, :, start:stop], f"lse {start} to {stop}")
        start = stop


@pytest.mark.parametrize("queries", [1, 2, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_different_lengths_in_a_batch(dtype: str, queries: int, isa: str, threads: int) -> None:
    """Entries filled to different lengths give what they give alone, cut to their length."""
    lengths = [3, 17, 64, 100, 71]
    g = np.random.default_rng(110)
    k, v = (g.standard_normal((5, 2, 100, 8)).astype(dtype_of(dtype)) for _ in range(2))
    q = g.standard_normal((5, 4, queries, 8)).astype(dtype_of(dtype))
    for b, length in enumerate(lengths):
        k[b, :, length:] = np.nan
        v[b, :, length:] = np.nan
    out, lse = attend(q, k, v, align=[length - queries for length in lengths])
    for b, length in enumerate(lengths):
        alone = attend(q[b : b + 1], k[b : b + 1, :, :length], v[b : b + 1, :, :length])
        assert_same_bits(out[b : b + 1], alone[0], f"entry {b}")
        assert_same_bits(lse[b : b + 1], alone[1], f"lse of entry {b}")


def test_results_are_new_arrays(isa: str) -> None:
    """Changing an input afterwards does not change a result, nor does the next call."""
    q, k, v = nine_tokens("float32")
    first, first_lse = attend(q, k, v)
    kept, kept_lse = first.copy(), first_lse.copy()
    q *= 2
    k[...] = np.nan
    attend(q, k, v)
    assert_same_bits(first, kept)
    assert_same_bits(first_lse, kept_lse, "lse")
