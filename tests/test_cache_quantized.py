"""Caches of 8 bits: what is stored, how far it is off, and that the results read just that."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import TOLERANCE, Array, assert_close, assert_same_bits, dtype_of, make, reference
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import headway
from headway import KVCache, _core

KINDS = ("int8", "fp8_e4m3")
SOURCES = ("float32", "float16", "bfloat16")
TINY = float(np.finfo(np.float32).tiny)


def widened(cache: KVCache) -> tuple[Array, Array]:
    """The keys and values that the cache stands for, in float64."""
    found = []
    for stored, scales in ((cache.keys, cache.key_scales), (cache.values, cache.value_scales)):
        if scales is None:
            found.append(stored.view(ml_dtypes.float8_e4m3fn).astype(np.float64))
        else:
            found.append(stored.astype(np.float64) * scales.astype(np.float64)[..., None])
    return found[0], found[1]


def stored(x: Array, kind: str) -> tuple[Array, Array | None]:
    """Rows x (n, D) as a cache stores them: numbers and scales."""
    numbers = np.full(x.shape, 77, "int8" if kind == "int8" else "uint8")
    scales = np.full(x.shape[:1], 77, np.float32) if kind == "int8" else None
    _core.quantize(
        x[None, None],
        x.dtype.name,
        numbers[None, None],
        None if scales is None else scales[None, None],
    )
    return numbers, scales


def every_float16() -> Array:
    """All 65,536 of them, NaN and infinities included."""
    return np.arange(2**16, dtype=np.uint16).view(np.float16)


def many_numbers(dtype: str) -> Array:
    """Numbers of all sizes from far below to far above those of 8 bits, (n, 1)."""
    rng = np.random.default_rng(50)
    with np.errstate(all="ignore"):
        drawn = np.ldexp(rng.uniform(-2, 2, 20000), rng.integers(-40, 20, 20000))
        x = drawn.astype(dtype_of(dtype))
    return x[np.isfinite(x)][:, None]


# What is stored -----------------------------------------------------------------------------------


def test_e4m3_of_every_float16() -> None:
    """Rounded to nearest even as ml_dtypes does it; what it makes NaN beyond 448 stays 448."""
    x = every_float16()
    found = stored(x[:, None], "fp8_e4m3")[0].view(ml_dtypes.float8_e4m3fn)[:, 0]
    finite = np.isfinite(x)
    expected = np.clip(x[finite], -448, 448).astype(ml_dtypes.float8_e4m3fn)
    assert_same_bits(found[finite], expected)
    assert np.isnan(found[~finite].astype(np.float32)).all()


@pytest.mark.parametrize("dtype", SOURCES)
def test_e4m3_of_all_sizes(dtype: str) -> None:
    x = many_numbers(dtype)
    found = stored(x, "fp8_e4m3")[0].view(ml_dtypes.float8_e4m3fn)
    expected = np.clip(x.astype(np.float32), -448, 448).astype(ml_dtypes.float8_e4m3fn)
    assert_same_bits(found, expected)
    wide, exact = found.astype(np.float64), x.astype(np.float64)
    off, size = np.abs(wide - exact), np.abs(exact)
    normal = (size >= 2.0**-6) & (size <= 448)
    assert (off[normal] <= 2.0**-4 * size[normal]).all()
    assert (off[size < 2.0**-6] <= 2.0**-10).all()
    assert (np.abs(wide[size > 448]) == 448).all()


def test_every_e4m3_number_is_kept() -> None:
    numbers = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn)
    finite = numbers[np.isfinite(numbers.astype(np.float32))]
    for dtype in SOURCES:
        found = stored(finite.astype(dtype_of(dtype))[:, None], "fp8_e4m3")[0]
        assert_same_bits(found[:, 0].view(finite.dtype), finite, dtype)


@pytest.mark.parametrize("dtype", SOURCES)
@pytest.mark.parametrize("width", [1, 2, 3, 7, 8, 16, 17, 64, 80, 128, 200])
def test_int8_is_off_by_half_a_scale_at_most(width: int, dtype: str) -> None:
    rng = np.random.default_rng(51)
    sizes = np.ldexp(1.0, rng.integers(-12, 12, (64, 1)))
    x = (rng.standard_normal((64, width)) * sizes).astype(dtype_of(dtype))
    check_int8(x)


@given(
    hnp.arrays(
        np.float32,
        (2, 9),
        elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
    )
)
def test_int8_of_any_finite_numbers(x: Array) -> None:
    check_int8(x)


def check_int8(x: Array) -> None:
    numbers, scales = stored(x, "int8")
    assert scales is not None
    exact = x.astype(np.float64)
    largest = np.abs(x.astype(np.float32)).max(axis=1)
    most = np.nextafter(
        np.finfo(np.float32).max / np.float32(127), np.float32(0)
    )  # 127 of it is finite
    wanted = np.clip(largest / np.float32(127), np.float32(TINY), most) * (largest > 0)
    assert_same_bits(scales, wanted.astype(np.float32), "scales")
    assert (np.abs(numbers.astype(int)) <= 127).all()
    off = np.abs(numbers * scales.astype(np.float64)[:, None] - exact)
    assert (off <= 0.5 * scales.astype(np.float64)[:, None]).all()


def test_int8_of_the_largest_numbers() -> None:
    largest = np.finfo(np.float32).max
    x = np.array([[largest, -largest, largest / 3, 0]], np.float32)
    check_int8(x)
    cache = KVCache(1, 1, 1, 4, dtype="int8")
    cache.append(x[None, None], x[None, None])
    assert np.isfinite(cache.attend(np.zeros((1, 1, 1, 4), np.float32))).all()


def test_int8_of_numbers_below_the_normal_ones() -> None:
    """The scale does not become 0 or subnormal, which kernels may read as 0."""
    least = np.float32(np.finfo(np.float32).smallest_subnormal)
    numbers, scales = stored(np.array([[least, 0], [TINY, -TINY], [0, 0]], np.float32), "int8")
    assert scales is not None
    assert scales.tolist() == [TINY, TINY, 0]
    assert numbers.tolist() == [[0, 0], [1, -1], [0, 0]]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_token_that_is_not_finite(bad: float) -> None:
    x = make(52, (3, 20), "float32")
    x[1, 13] = bad
    numbers, scales = stored(x, "int8")
    assert scales is not None
    assert np.isnan(scales).tolist() == [False, True, False]
    assert not numbers[1].any()
    found = stored(x, "fp8_e4m3")[0].view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    assert np.argwhere(np.isnan(found)).tolist() == [[1, 13]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", SOURCES)
def test_strides_and_threads_change_nothing(dtype: str, kind: str, threads: int) -> None:
    """Large enough for several tasks; views with the axes in another order."""
    wide = make(53, (2, 300, 3, 80), dtype)
    k = wide.swapaxes(1, 2)
    caches = [KVCache(2, 3, 300, 80, dtype=kind) for _ in range(2)]
    caches[0].append(k, k[..., ::-1])
    caches[1].append(k.copy(), k[..., ::-1].copy())
    assert_same_bits(caches[0].keys, caches[1].keys)
    assert_same_bits(caches[0].values, caches[1].values)
    rows, scales = stored(k[1, 2], kind)
    assert_same_bits(caches[0].keys[1, 2], rows)
    if scales is not None:
        assert caches[0].key_scales is not None
        assert_same_bits(caches[0].key_scales[1, 2], scales)


# What is made of it -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", SOURCES)
@pytest.mark.parametrize("kind", KINDS)
def test_results_are_those_of_the_stored_numbers(
    kind: str, dtype: str, isa: str, threads: int
) -> None:
    q, k = make(54, (2, 6, 3, 24), dtype), make(55, (2, 2, 40, 24), dtype)
    v = make(56, (2, 2, 40, 10), dtype)
    cache = KVCache(2, 2, 64, 24, v_head_dim=10, dtype=kind)
    cache.append(k, v, counts=[40, 17])
    wide = widened(cache)
    for n in (3, 1):
        out = cache.attend(q[:, :, :n])
        lse: Array
        unrounded, lse = cache.attend(
            q[:, :, :n], out=np.empty((2, 6, n, 10), np.float32), return_lse=True
        )
        expected, expected_lse = reference(q[:, :, :n], *wide, kv_lengths=[40, 17])
        assert out.dtype == q.dtype
        assert_close(unrounded, expected, TOLERANCE["float32"])
        assert_close(lse, expected_lse, TOLERANCE["float32"], "lse")
        assert_same_bits(out, unrounded.astype(q.dtype), "rounded once")


@pytest.mark.parametrize("kind", KINDS)
def test_layouts_and_strided_results(kind: str, isa: str) -> None:
    q, k = make(57, (2, 4, 3, 8), "float16"), make(58, (2, 2, 9, 8), "float16")
    cache = KVCache(2, 2, 9, 8, dtype=kind)
    cache.append(k, k)
    expected = cache.attend(q)
    swapped = cache.attend(q.swapaxes(1, 2), layout="BTHD")
    assert_same_bits(swapped.swapaxes(1, 2), expected)
    place = np.zeros((2, 4, 3, 16), np.float16)[..., ::2]
    assert cache.attend(q, out=place) is place
    assert_same_bits(place.copy(), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_is_off_by_no_more_than_the_values(kind: str) -> None:
    """The result is a mean of values: it is off by no more than they are, for the same weights."""
    v = make(59, (1, 1, 30, 16), "float32")
    k = np.zeros((1, 1, 30, 16), np.float32)
    cache = KVCache(1, 1, 30, 16, dtype=kind)
    cache.append(k, v)
    off = np.abs(widened(cache)[1] - v).max(axis=2)
    exact = headway.attention(k, k, v)[:, :, -1]
    assert (np.abs(cache.attend(k[:, :, :1])[:, :, 0] - exact) <= off + 1e-6).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_becomes_nan_where_it_is_seen(bad: float, isa: str) -> None:
    q, k, v = (make(60 + i, (1, 1, 9, 8), "float32") for i in range(3))
    v[0, 0, 5, 2] = bad
    int8, fp8 = (KVCache(1, 1, 9, 8, dtype=kind) for kind in KINDS)
    for cache in (int8, fp8):
        cache.append(k, v)
    found = np.isnan(int8.attend(q)[0, 0])
    assert found[5:].all()  # the scale of the whole token
    assert not found[:5].any()
    found = np.isnan(fp8.attend(q)[0, 0])
    assert found[5:, 2].all()
    assert found.sum() == 4


@pytest.mark.parametrize("kind", KINDS)
def test_rounding_to_16_bits_raises_nothing(kind: str) -> None:
    cache = KVCache(1, 1, 2, 4, dtype=kind)
    small = np.full((1, 1, 2, 4), 1e-6, np.float32)
    cache.append(small, small)
    with np.errstate(all="raise"):
        cache.attend(np.ones((1, 1, 1, 4), np.float16))


def test_memory_is_half_of_16_bits() -> None:
    sizes: tuple[Any, ...] = (2, 4, 256, 128)
    half = KVCache(*sizes, dtype="bfloat16").nbytes
    assert half == 2 * KVCache(*sizes, dtype="fp8_e4m3").nbytes
    assert KVCache(*sizes, dtype="int8").nbytes == half // 2 + 2 * 2 * 4 * 256 * 4
