"""A prefill cut into chunks of two or more queries gives the very bits of one call."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import pytest
from helpers import DTYPES, TOLERANCE, Array, assert_close, assert_same_bits, attend, make_qkv

import headway

HEADS = [(2, 2), (8, 2)]


def cuts(tokens: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of the pieces; a single token left over joins the piece before it."""
    start = 0
    while start < tokens:
        stop = start + size if tokens - start - size > 1 else tokens
        yield start, stop
        start = stop


def test_cuts() -> None:
    """No piece has one query, and the pieces follow one another."""
    assert list(cuts(11, 5)) == [(0, 5), (5, 11)]
    assert list(cuts(12, 5)) == [(0, 5), (5, 10), (10, 12)]
    for tokens in (2, 3, 333, 517, 1031):
        for size in (2, 5, 17, 64, 100):
            pieces = list(cuts(tokens, size))
            assert min(stop - start for start, stop in pieces) >= 2
            assert [start for start, _ in pieces] == [0] + [stop for _, stop in pieces[:-1]]
            assert pieces[-1][1] == tokens


@lru_cache(maxsize=4)
def prefill(
    dtype: str, heads: tuple[int, int], tokens: int, isa: str, head_dim: int = 8
) -> tuple[Array, ...]:
    """Return q, k, v and the out and lse of one whole call with this instruction set."""
    assert headway.isa() == isa
    q, k, v = make_qkv(
        tokens,
        dtype,
        heads=heads,
        tokens=(tokens, tokens),
        head_dim=head_dim,
        value_dim=12 if head_dim == 8 else head_dim,
    )
    return q, k, v, *attend(q, k, v)


#: Tokens, the size of a chunk and head_dim: a small width at every size, usual ones at some.
CHUNKS = [
    *((tokens, size, 8) for tokens in (333, 517, 1031) for size in (2, 5, 17, 64, 100)),
    *((333, size, 64) for size in (5, 64)),
    *((517, size, 128) for size in (17, 100)),
    (1031, 100, 64),
]


@pytest.mark.parametrize(("tokens", "size", "head_dim"), CHUNKS)
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_chunks_of_a_prefill(
    dtype: str, heads: tuple[int, int], tokens: int, size: int, head_dim: int, isa: str
) -> None:
    """Each chunk sees the keys up to its own end, as with a growing cache."""
    q, k, v, expected, expected_lse = prefill(dtype, heads, tokens, isa, head_dim)
    out = np.full_like(expected, np.nan)
    lse = np.full_like(expected_lse, np.nan)
    for start, stop in cuts(tokens, size):
        piece = slice(start, stop)
        _, lse[:, :, piece] = attend(
            q[:, :, piece], k[:, :, :stop], v[:, :, :stop], out=out[:, :, piece]
        )
    assert_same_bits(out, expected, f"chunks of {size}")
    assert_same_bits(lse, expected_lse, f"lse of chunks of {size}")


@pytest.mark.parametrize("tokens", [333, 1031])
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_chunks_of_a_whole_buffer(
    dtype: str, heads: tuple[int, int], tokens: int, isa: str
) -> None:
    """The keys may all be there already: align says where the chunk stands."""
    q, k, v, expected, expected_lse = prefill(dtype, heads, tokens, isa)
    for size in (17, 100):
        for start, stop in cuts(tokens, size):
            piece = slice(start, stop)
            out, lse = attend(q[:, :, piece], k, v, align=start)
            assert_same_bits(out, expected[:, :, piece], f"queries {start} to {stop}")
            assert_same_bits(lse, expected_lse[:, :, piece], f"lse of {start} to {stop}")


@pytest.mark.parametrize(("tokens", "head_dim"), [(2100, 8), (4200, 8), (2100, 64), (2100, 128)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("any_threads")
def test_pieces_of_a_long_prefill(dtype: str, tokens: int, head_dim: int, isa: str) -> None:
    """Few queries over many keys, where the keys may be split among threads."""
    q, k, v, expected, expected_lse = prefill(dtype, (2, 1), tokens, isa, head_dim)
    for count in (1, 3):
        headway.set_num_threads(count)
        for start in (0, 63, 511, 512, 1023, 1500, 2047, 2048, 3071, 4000):
            for size in (2, 5, 64):
                stop = start + size
                if stop > tokens:
                    continue
                piece = slice(start, stop)
                out, lse = attend(q[:, :, piece], k[:, :, :stop], v[:, :, :stop])
                what = f"queries {start} to {stop} in {count} threads"
                assert_same_bits(out, expected[:, :, piece], what)
                assert_same_bits(lse, expected_lse[:, :, piece], f"lse of {what}")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("any_threads")
def test_chunks_without_causality(dtype: str, isa: str) -> None:
    """Without the causal rule too, a row does not depend on the rows beside it."""
    q, k, v = make_qkv(6, dtype, heads=(4, 2), tokens=(150, 1100), head_dim=8)
    expected, expected_lse = attend(q, k, v, causal=False)
    for count in (1, 3):
        headway.set_num_threads(count)
        for size in (2, 17, 64):
            for start, stop in cuts(150, size):
                piece = slice(start, stop)
                out, lse = attend(q[:, :, piece], k, v, causal=False)
                assert_same_bits(out, expected[:, :, piece], f"queries {start} to {stop}")
                assert_same_bits(lse, expected_lse[:, :, piece], f"lse {start} to {stop}")


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_query_at_a_time(dtype: str, heads: tuple[int, int], isa: str, threads: int) -> None:
    """Single queries agree with the prefill to the tolerance of the dtype."""
    q, k, v, expected, expected_lse = prefill(dtype, heads, 333, isa)
    out = np.full_like(expected, np.nan)
    lse = np.full_like(expected_lse, np.nan)
    for i in range(333):
        one = slice(i, i + 1)
        out[:, :, one], lse[:, :, one] = attend(q[:, :, one], k[:, :, : i + 1], v[:, :, : i + 1])
    assert_close(out, expected.astype(np.float64), TOLERANCE[dtype])
    assert_close(lse, expected_lse.astype(np.float64), TOLERANCE["float32"], "lse")
