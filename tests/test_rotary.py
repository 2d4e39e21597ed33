"""rotary_embedding: its numbers, in every dtype, rank and layout; its bits; what it is for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import (
    DTYPES,
    TOLERANCE,
    Array,
    assert_close,
    assert_same_bits,
    dtype_of,
    make,
    using,
)
from hypothesis import given
from hypothesis import strategies as st

import headway

#: head_dim and rotary_dim: whole vectors of every ISA, parts of them, one pair, odd widths.
WIDTHS = [(2, None), (64, None), (80, 40), (128, None), (37, 6), (34, 30), (7, 2), (256, 250)]


def plainly(x: Array, positions: Array, options: dict[str, Any]) -> Array:
    """Return the result for (..., T, D), step by step in the accumulation type."""
    count = options.get("rotary_dim") or x.shape[-1]
    wide = np.dtype("float64" if x.dtype == np.float64 else "float32")
    frequencies = options.get("base", 10000.0) ** -(np.arange(0, count, 2) / count)
    angles = positions[..., None].astype(np.float64) * frequencies
    cosines, sines = np.cos(angles).astype(wide), np.sin(angles).astype(wide)
    first = slice(0, count, 2) if options.get("interleaved") else slice(0, count // 2)
    second = slice(1, count, 2) if options.get("interleaved") else slice(count // 2, count)
    a, b = x[..., first].astype(wide), x[..., second].astype(wide)
    out = x.copy()
    out[..., first] = (a * cosines - b * sines).astype(x.dtype)
    out[..., second] = (b * cosines + a * sines).astype(x.dtype)
    return out


# Numbers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("width", "rotary_dim"), WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers(
    dtype: str, width: int, rotary_dim: int | None, interleaved: bool, isa: str, some_threads: int
) -> None:
    """Bit by bit what the formula gives in float32; in float64 up to the last place of a cosine."""
    x = make(1, (2, 3, 70, width), dtype)
    places = np.random.default_rng(2).integers(-3000, 100_000, (2, 70))
    options: dict[str, Any] = {"interleaved": interleaved, "rotary_dim": rotary_dim, "base": 500.0}
    got = headway.rotary_embedding(x, places, **options)
    expected = plainly(x, places[:, None], options)
    if dtype == "float64":
        assert_close(got, expected, 1e-15)
    else:
        assert_same_bits(got, expected)
    reference = headway.reference.rotary_embedding(x.astype(np.float64), places, **options)
    assert_close(got, reference, TOLERANCE[dtype], "against the reference")


FAR = [10**6, 2**20 - 5, 2**20, 2**20 + 1, 10**7, 2**40, 2**53, -(2**62)]


@pytest.mark.parametrize("position", FAR)
def test_large_positions(position: int, isa: str) -> None:
    """Angles beyond those that have a short way are reduced as exactly."""
    x = make(3, (5, 64), "float64")
    got = headway.rotary_embedding(x, np.full(5, position))
    assert_close(got, plainly(x, np.full(5, position), {}), 4e-16)
    np.testing.assert_array_equal(got[:1], headway.rotary_embedding(x[:1], position))


def test_angles_are_made_in_float64() -> None:
    """At position 10**8 one step of a float32 angle is 8 radians; the error stays one of 2e-7."""
    x = make(4, (1, 8), "float32")
    got = headway.rotary_embedding(x, 10**8)
    exact = headway.rotary_embedding(x.astype(np.float64), 10**8)
    assert_close(got, exact, 2e-7)


def test_known_numbers() -> None:
    """Quarter turns: base 1 turns every pair by one radian per position; 0 leaves all as it is."""
    x = np.array([[1.0, 2.0, 3.0, 4.0]])
    assert_same_bits(headway.rotary_embedding(x, 0, base=1), x)
    angle = 11.0
    cosine, sine = np.cos(angle), np.sin(angle)
    halves = [cosine - 3 * sine, 2 * cosine - 4 * sine, 3 * cosine + sine, 4 * cosine + 2 * sine]
    np.testing.assert_allclose(headway.rotary_embedding(x, 11, base=1), [halves], rtol=1e-15)
    pairs = [cosine - 2 * sine, 2 * cosine + sine, 3 * cosine - 4 * sine, 4 * cosine + 3 * sine]
    got = headway.rotary_embedding(x, 11, base=1, interleaved=True)
    np.testing.assert_allclose(got, [pairs], rtol=1e-15)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_rest_is_copied(dtype: str, isa: str) -> None:
    """Every bit of the numbers behind rotary_dim, those of a NaN too; NaN stays in its pair."""
    x = make(5, (3, 20), dtype)
    x.view(f"u{x.itemsize}")[:, 13] = {2: 0x7FA5, 4: 0x7FA00005, 8: 0x7FF4000000000005}[x.itemsize]
    x[1, 3], x[2, 4] = np.nan, np.inf
    got = headway.rotary_embedding(x, 1, rotary_dim=12)
    assert_same_bits(got[:, 12:], x[:, 12:])
    expected = np.zeros((3, 12), bool)
    expected[1, [3, 9]] = expected[2, [4, 10]] = True
    np.testing.assert_array_equal(~np.isfinite(got[:, :12].astype(np.float64)), expected)


# Ranks, layouts, positions ------------------------------------------------------------------------


@pytest.mark.parametrize("interleaved", [False, True])
def test_ranks_and_layouts(interleaved: bool, threads: int) -> None:
    x = make(6, (2, 3, 40, 16), "float32")
    places = np.arange(80).reshape(2, 40)[:, ::-1]
    expected = headway.rotary_embedding(x, places, interleaved=interleaved)
    for b in range(2):
        one = headway.rotary_embedding(x[b], places[b], interleaved=interleaved)
        assert_same_bits(one, expected[b])
        one = headway.rotary_embedding(x[b], places[b : b + 1], interleaved=interleaved)
        assert_same_bits(one, expected[b])
        one = headway.rotary_embedding(x[b, 1], places[b].tolist(), interleaved=interleaved)
        assert_same_bits(one, expected[b, 1])
    swapped = np.ascontiguousarray(x.swapaxes(1, 2))
    options: dict[str, Any] = {"interleaved": interleaved, "layout": "BTHD"}
    got = headway.rotary_embedding(swapped, places, **options)
    assert got.flags.c_contiguous
    assert_same_bits(got, np.ascontiguousarray(expected.swapaxes(1, 2)))
    got = headway.rotary_embedding(swapped[0], places[0], **options)
    assert_same_bits(got, np.ascontiguousarray(expected[0].swapaxes(0, 1)))
    assert_same_bits(
        headway.rotary_embedding(swapped[0, :, 1], places[0], **options), expected[0, 1]
    )


@pytest.mark.parametrize("kind", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i4", ">i8"])
def test_positions_of_every_integer_dtype(kind: str) -> None:
    x = make(7, (2, 1, 9, 8), "float32")
    places = np.arange(18).reshape(2, 9) * 7
    expected = headway.rotary_embedding(x, places)
    assert_same_bits(headway.rotary_embedding(x, places.astype(kind)), expected)
    assert_same_bits(headway.rotary_embedding(x, np.asfortranarray(places.astype(kind))), expected)
    assert_same_bits(headway.rotary_embedding(x, places.tolist()), expected)


def test_an_int_is_the_first_position() -> None:
    x = make(8, (2, 3, 9, 8), "float32")
    for first in (0, 5, -4, 2**31):
        expected = headway.rotary_embedding(x, first + np.arange(9))
        for given_as in (first, np.int64(first), np.array(first)):
            assert_same_bits(headway.rotary_embedding(x, given_as), expected)


@pytest.mark.parametrize("shape", [(0, 2, 3, 8), (2, 0, 3, 8), (2, 2, 0, 8), (0, 8), (0, 0, 0, 2)])
def test_empty(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, np.float32)
    assert headway.rotary_embedding(x, 5).shape == shape
    assert headway.rotary_embedding(x, np.zeros(shape[-2], int), out=x) is x
    assert headway.reference.rotary_embedding(x, 5).shape == shape


def test_no_positions_for_no_tokens() -> None:
    assert headway.rotary_embedding(np.zeros((0, 4)), []).shape == (0, 4)


# Bits and meaning ---------------------------------------------------------------------------------


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_depend_on_nothing_else(dtype: str, interleaved: bool) -> None:
    """Instruction sets, threads, the batch, how many tokens: the bits of a row stay the same."""
    x = make(9, (3, 5, 300, 30), dtype)
    places = np.random.default_rng(1).integers(0, 5000, (3, 300))
    with using("scalar", 1):
        expected = headway.rotary_embedding(x, places, interleaved=interleaved)
    for isa in headway.available_isas():
        for threads in (1, 2, 3):
            with using(isa, threads):
                got = headway.rotary_embedding(x, places, interleaved=interleaved)
                assert_same_bits(got, expected, f"{isa}, {threads} threads")
    for t in (0, 1, 63, 64, 299):
        one = headway.rotary_embedding(
            x[:, :, t : t + 1], places[:, t : t + 1], interleaved=interleaved
        )
        assert_same_bits(one, expected[:, :, t : t + 1])
        one = headway.rotary_embedding(
            x[2, 4, t : t + 1], int(places[2, t]), interleaved=interleaved
        )
        assert_same_bits(one, expected[2, 4, t : t + 1])


@given(
    st.integers(1, 40), st.integers(1, 20), st.booleans(), st.integers(-(10**6), 10**6), st.data()
)
def test_products_depend_on_the_distance(
    width: int, tokens: int, interleaved: bool, shift: int, data: st.DataObject
) -> None:
    """Scores of turned queries and keys stay the same when all of them move by as much."""
    rotary_dim = 2 * data.draw(st.integers(1, width))
    q, k = make(10, (2, tokens, 2 * width), "float64")
    options: dict[str, Any] = {"interleaved": interleaved, "rotary_dim": rotary_dim}
    here = [headway.rotary_embedding(x, 0, **options) for x in (q, k)]
    there = [headway.rotary_embedding(x, shift, **options) for x in (q, k)]
    assert_close(there[0] @ there[1].T, here[0] @ here[1].T, 1e-9)
    for x, turned in zip((q, k), there, strict=True):
        assert_close(np.linalg.norm(turned, axis=-1), np.linalg.norm(x, axis=-1), 1e-14)
        back = headway.rotary_embedding(turned, -shift - np.arange(tokens), **options)
        assert_close(back, x, 1e-13)


@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_of_a_cache_filled_step_by_step(dtype: str) -> None:
    """Keys turned one by one, or in pieces, are those turned at once."""
    k = make(11, (2, 2, 20, 16), dtype)
    whole = headway.rotary_embedding(k, 0)
    pieces = [headway.rotary_embedding(k[:, :, a:b], a) for a, b in [(0, 12), (12, 13), (13, 20)]]
    assert_same_bits(np.concatenate(pieces, axis=2), whole)
    assert whole.dtype == dtype_of(dtype)
