"""Long rows of keys of which whole blocks are hidden: in front, in the middle, all but one."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from helpers import (
    DTYPES,
    FULL,
    LSE_TOLERANCE,
    TOLERANCE,
    Array,
    assert_close,
    attend,
    dtype_of,
    make_qkv,
    reference,
)

import headway

INF = np.inf
TOKENS = 640


def band(tokens: int, width: int) -> Array:
    """(T, T) bool: query i sees the keys i - width < j <= i."""
    back = np.arange(tokens)[:, None] - np.arange(tokens)
    return (back >= 0) & (back < width)


def ways(mask: Array, dtype: str) -> list[dict[str, Any]]:
    """Return the options that say the same as a mask of bools without the causal rule."""
    numbers = np.where(mask, 0.0, -INF)
    kinds = (mask, numbers.astype(dtype_of(dtype)), numbers.astype(np.float64))
    return [{"mask": kind, "causal": False} for kind in kinds]


@pytest.mark.parametrize("dtype", FULL)
def test_random_numbers(dtype: str, isa: str, threads: int) -> None:
    """Figures worked out by another program: ten keys each, the first blocks hidden from most."""
    g = np.random.default_rng(103)
    q, k, v = (g.standard_normal((1, 1, TOKENS, 4)).astype(dtype) for _ in range(3))
    for options in (*ways(band(TOKENS, 10), dtype), {"window": 10}):
        out, lse = attend(q, k, v, **options)
        assert np.isfinite(out).all()
        wanted = [-1.074736, 2.400568, 2.684814, 2.494590]
        np.testing.assert_allclose(lse[0, 0, [0, 9, 10, 639]], wanted, rtol=1e-5)
        wanted = [-0.159720, 0.293828, 0.117825, -0.550894]
        np.testing.assert_allclose(out[0, 0, 639], wanted, rtol=1e-5, atol=1e-6)
        wanted = [0.239941, -0.451434, -0.046748, -0.888113]
        np.testing.assert_allclose(out[0, 0, 10], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", FULL)
def test_probe(dtype: str, isa: str, threads: int) -> None:
    """Equal scores: means of ten keys."""
    q = np.ones((1, 1, TOKENS, 4), dtype)
    v = np.arange(TOKENS).astype(dtype).reshape(1, 1, TOKENS, 1)
    rows = [0, 1, 9, 10, 11, 511, 512, 639]
    wanted = [0, 0.5, 4.5, 5.5, 6.5, 506.5, 507.5, 634.5]
    for options in (*ways(band(TOKENS, 10), dtype), {"window": 10}):
        out = headway.attention(q, q, v, **options)
        np.testing.assert_allclose(out[0, 0, rows, 0], wanted, rtol=1e-5, atol=1e-6)


#: Keys of 640 that are visible: padding in front, a hole, the ends, one in each third.
VISIBLE = {
    "behind the padding": slice(500, None),
    "hole": [*range(100), *range(501, 640)],
    "last": slice(639, None),
    "first": slice(0, 1),
    "one of a block": slice(300, 301),
    "few": [70, 333, 600],
    "every hundredth": slice(5, None, 100),
    "a block": slice(256, 320),
}


@pytest.mark.parametrize("place", VISIBLE)
@pytest.mark.parametrize("dtype", DTYPES)
def test_padding_holes_and_single_keys(dtype: str, place: str, isa: str, some_threads: int) -> None:
    """The result is that of the visible keys alone, and its mean where the scores are equal."""
    seen = np.zeros(TOKENS, bool)
    seen[VISIBLE[place]] = True
    q, k, v = make_qkv(6, dtype, heads=(2, 1), tokens=(9, TOKENS), head_dim=8)
    k[:, :, ~seen] = np.nan
    v[:, :, ~seen] = np.nan
    expected, expected_lse = reference(q, k[:, :, seen], v[:, :, seen], causal=False)
    for options in ways(seen[None, None, None], dtype):
        for rows in (slice(0, 9), slice(0, 1)):
            out, lse = attend(q[:, :, rows], k, v, **options)
            assert_close(out, expected[:, :, rows], 2 * TOLERANCE[dtype], place)
            assert_close(lse, expected_lse[:, :, rows], 2 * LSE_TOLERANCE[dtype], f"lse, {place}")


@pytest.mark.parametrize("edge", [-1, 0, 1])
@pytest.mark.parametrize("blocks", [1, 2, 5, 16])
@pytest.mark.parametrize("dtype", FULL)
def test_sizes_around_the_blocks(
    dtype: str, blocks: int, edge: int, isa: str, threads: int
) -> None:
    """64 n keys, one more, one less: only the last visible, only the first, one half."""
    keys = 64 * blocks + edge
    q, k, v = make_qkv(blocks, dtype, heads=(1, 1), tokens=(3, keys), head_dim=8)
    number = np.arange(keys)
    for seen in (number == keys - 1, number == 0, number >= keys // 2, number < keys // 2 + 1):
        expected, expected_lse = reference(q, k[:, :, seen], v[:, :, seen], causal=False)
        for options in ways(seen, dtype):
            out, lse = attend(q, k, v, **options)
            assert_close(out, expected, TOLERANCE[dtype], f"{keys} keys")
            assert_close(lse, expected_lse, LSE_TOLERANCE[dtype], f"lse, {keys} keys")


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_row_its_own_block(dtype: str, isa: str, threads: int) -> None:
    """Rows of one tile that see keys of quite different blocks, and some that see none."""
    q, k, v = make_qkv(8, dtype, heads=(2, 2), tokens=(70, 1300), head_dim=8)
    mask = np.zeros((70, 1300), bool)
    for i in range(70):
        start = (i * 397) % 1300
        mask[i, start : start + i % 12] = True
    expected, expected_lse = reference(q, k, v, mask=mask, causal=False)
    for options in ways(mask, dtype):
        out, lse = attend(q, k, v, **options)
        assert_close(out, expected, TOLERANCE[dtype])
        assert_close(lse, expected_lse, LSE_TOLERANCE[dtype], "lse")


@pytest.mark.parametrize("dtype", DTYPES)
def test_packed_windows(dtype: str, isa: str, threads: int) -> None:
    """Members around the sizes of blocks, of which a window of ten hides the first ones."""
    sizes = [640, 63, 64, 65, 129]
    cu = np.cumsum([0, *sizes])
    q, k, v = (
        x[0].swapaxes(0, 1)
        for x in make_qkv(9, dtype, heads=(2, 1), tokens=(cu[-1], cu[-1]), head_dim=8)
    )
    out, lse = headway.attention_varlen(q, k, v, cu, window=10, return_lse=True)
    for start, stop in pairwise(cu.tolist()):
        arrays = (x[start:stop].swapaxes(0, 1) for x in (q, k, v))
        expected, expected_lse = reference(*arrays, mask=band(stop - start, 10))
        assert_close(out[start:stop].swapaxes(0, 1), expected, TOLERANCE[dtype])
        assert_close(lse[:, start:stop], expected_lse, LSE_TOLERANCE[dtype], "lse")
