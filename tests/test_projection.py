"""Projection: its numbers, and the bits of its rows, which do not depend on company."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import (
    DTYPES,
    HALF,
    TOLERANCE,
    Array,
    assert_close,
    assert_same_bits,
    dtype_of,
    flushed,
    make,
    multiplies_pairs,
)

import headway
from headway import Projection

SIZES = (1, 3, 16, 17, 63, 64, 65, 96, 97, 130)
ROWS = (1, 3, 16, 77, 256)


def wide(x: Array) -> Array:
    return x.astype(np.float64)


def expected_of(projection: Projection, x: Array) -> Array:
    """The product in float64."""
    product: Array = wide(x) @ wide(projection.weight)
    return product if projection.bias is None else product + wide(projection.bias)


def build(dtype: str, d_in: int, d_out: int, *, bias: bool = True) -> Projection:
    return Projection(
        make((d_in, d_out, 1), (d_in, d_out), dtype),
        make((d_out, 2), (d_out,), dtype) if bias else None,
    )


# Numbers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d_in", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes(dtype: str, d_in: int, isa: str, some_threads: int) -> None:
    """Every width against every depth, with a few rows and with more than a tile of them."""
    for d_out in SIZES:
        for rows, bias in ((1, False), (5, True), (99, False)):
            projection = build(dtype, d_in, d_out, bias=bias)
            x = make((rows, 3), (rows, d_in), dtype)
            got = projection(x)
            assert got.dtype == dtype_of(dtype)
            what = f"{rows} rows, d_out {d_out}"
            assert_close(wide(got), expected_of(projection, x), TOLERANCE[dtype], what)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("any_threads")
def test_depth_in_parts_for_each_block_of_columns(dtype: str, isa: str) -> None:
    """More numbers of x than a task keeps: some depths of them at a time, again and again."""
    projection = build(dtype, 2100, 515)
    x = make((250, 5), (250, 2100), dtype)
    for threads in (1, 2):
        headway.set_num_threads(threads)
        assert_close(wide(projection(x)), expected_of(projection, x), TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(2, 2100, 40), (130, 1700, 33), (300, 70, 700), (1, 3, 2500)])
def test_large_sizes(sizes: tuple[int, int, int], dtype: str, isa: str, some_threads: int) -> None:
    """What is cut into several blocks of rows, of depth and of columns."""
    rows, d_in, d_out = sizes
    projection = build(dtype, d_in, d_out)
    x = make((rows, 4), (rows, d_in), dtype)
    assert_close(wide(projection(x)), expected_of(projection, x), TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_whole_numbers_are_exact(dtype: str, isa: str) -> None:
    """Sums of whole numbers below 256 have no rounding anywhere: the result is the number."""
    rng = np.random.default_rng(5)
    for rows, d_in, d_out in ((1, 37, 200), (6, 1, 1), (50, 37, 66)):
        x = rng.integers(-2, 3, (rows, d_in))
        weight, bias = rng.integers(-1, 2, (d_in, d_out)), rng.integers(-90, 91, d_out)
        projection = Projection(weight.astype(dtype_of(dtype)), bias.astype(dtype_of(dtype)))
        got = projection(x.astype(dtype_of(dtype)))
        np.testing.assert_array_equal(wide(got), x @ weight + bias)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_every_16_bit_number_comes_through(rows: int, dtype: str, isa: str) -> None:
    """Each as a weight, an x and a bias: widened and rounded exactly, NaN and inf included."""
    numbers = np.arange(2**16, dtype=np.uint16).view(dtype_of(dtype))
    one = np.ones((rows, 1), numbers.dtype)
    as_weight = Projection(numbers[None])(one)
    as_bias = Projection(np.zeros((1, 2**16), numbers.dtype), numbers)(one)
    as_x = Projection(one[:1])(numbers[:, None]).T
    with np.errstate(invalid="ignore"):
        for got in (as_weight, as_bias, np.broadcast_to(as_x, as_weight.shape)):
            expected = np.broadcast_to(numbers, got.shape)
            if multiplies_pairs(dtype):
                got, expected = flushed(got), flushed(expected)
            np.testing.assert_array_equal(got.astype(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize("dtype", HALF)
def test_16_bit_sums_are_rounded_once(dtype: str, isa: str) -> None:
    """The sum and the bias are float32; a float32 out takes them as they are."""
    step = {"float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]  # of the dtype, from 1 on
    weight = np.array([[1.0], [step / 2], [step / 4]]).astype(dtype_of(dtype))
    projection = Projection(weight, np.array([step / 4]).astype(dtype_of(dtype)))
    for rows in (1, 4, 30):
        x = np.ones((rows, 3), weight.dtype)
        assert (wide(projection(x)) == 1 + step).all()
        out = np.empty((rows, 1), np.float32)
        assert projection(x, out=out) is out
        assert (out == 1 + step).all()
        x[:, 2] = 0
        projection(x, out=out)
        assert (out == 1 + 3 * step / 4).all()
        assert (wide(projection(x)) == 1 + step).all()


# Bits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sizes", [(64, 130), (97, 65), (1030, 200), (3, 17), (65, 2100), (2100, 40)]
)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("any_threads")
def test_rows_have_their_bits_in_any_company(dtype: str, sizes: tuple[int, int], isa: str) -> None:
    projection = build(dtype, *sizes)
    x = make(6, (max(ROWS), sizes[0]), dtype)
    headway.set_num_threads(1)
    expected = np.concatenate([projection(row[None]) for row in x])
    for threads in (1, 2, 3):
        headway.set_num_threads(threads)
        for rows in ROWS:
            assert_same_bits(projection(x[:rows]), expected[:rows], f"{rows} rows, {threads}")
        assert_same_bits(projection(x[40:59]), expected[40:59], f"from row 40 on, {threads}")
        assert_same_bits(projection(x[7]), expected[7], "a row without a second axis")


@pytest.mark.parametrize("dtype", DTYPES)
def test_columns_have_their_bits_in_any_company(dtype: str, isa: str) -> None:
    projection = build(dtype, 70, 130)
    assert projection.bias is not None
    for rows in (1, 20):
        x = make(7, (rows, 70), dtype)
        expected = projection(x)
        for first, last in ((0, 1), (3, 64), (60, 130)):
            part = Projection(projection.weight[:, first:last], projection.bias[first:last])
            assert_same_bits(part(x), expected[:, first:last])


@pytest.mark.parametrize("dtype", DTYPES)
def test_axes_and_strides(dtype: str, isa: str, threads: int) -> None:
    """x of any rank and strides, and an out of any strides, hold the rows of a contiguous call."""
    projection = build(dtype, 20, 33)
    x = make(8, (3, 4, 5, 20), dtype)
    expected = projection(x.reshape(60, 20)).reshape(3, 4, 5, 33)
    apart = make(9, (3, 4, 5, 2, 20), dtype)
    apart[..., 1, :] = x
    unaligned = np.frombuffer(b"\0" + x.tobytes(), x.dtype, offset=1).reshape(x.shape)
    layouts = {
        "four axes": x,
        "apart": apart[..., 1, :],
        "rows apart by no whole row": np.concatenate([x, x[..., :7]], axis=-1)[..., :20],
        "turned": x.transpose(2, 1, 0, 3).copy().transpose(2, 1, 0, 3),
        "backwards": x[::-1, :, ::-1].copy()[::-1, :, ::-1],
        "Fortran": np.asfortranarray(x),
        "last axis backwards": x[..., ::-1].copy()[..., ::-1],
        "unaligned": unaligned,
    }
    for what, view in layouts.items():
        assert_same_bits(projection(view), expected, what)
    for what in ("apart", "turned", "backwards", "Fortran", "last axis backwards"):
        shape, place = (3, 4, 5, 33), np.empty((3, 4, 5, 2, 33), x.dtype)
        out = {
            "apart": place[..., 1, :],
            "turned": np.empty((5, 4, 3, 33), x.dtype).transpose(2, 1, 0, 3),
            "backwards": np.empty(shape, x.dtype)[::-1, :, ::-1],
            "Fortran": np.empty(shape, x.dtype, order="F"),
            "last axis backwards": np.empty(shape, x.dtype)[..., ::-1],
        }[what]
        place[...] = 7
        assert projection(layouts[what], out=out) is out
        assert_same_bits(out, expected, f"out {what}")
        assert (place[..., 0, :] == 7).all()
    same = np.broadcast_to(x[:, :1, :1], x.shape)
    assert_same_bits(projection(same), np.broadcast_to(expected[:, :1, :1], expected.shape))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_infinity_stay_in_their_row(value: float, dtype: str, isa: str) -> None:
    projection = build(dtype, 50, 70)
    for rows in (2, 7, 100):
        x = make(10, (rows, 50), dtype)
        expected = projection(x)
        x[rows // 2, 31] = value
        got = projection(x)
        assert not np.isfinite(wide(got[rows // 2])).any()
        others = np.arange(rows) != rows // 2
        assert_same_bits(got[others], expected[others])


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_in_a_weight_stays_in_its_column(dtype: str, isa: str) -> None:
    plain = build(dtype, 50, 70)
    weight = plain.weight.copy()
    weight[9, 69] = np.nan
    x = make(11, (30, 50), dtype)
    got = Projection(weight, plain.bias)(x)
    assert np.isnan(wide(got[:, 69])).all()
    assert_same_bits(got[:, :69], plain(x)[:, :69])


def test_no_rows() -> None:
    projection = build("float32", 5, 7)
    for shape in ((0, 5), (3, 0, 5), (0, 0, 2, 5)):
        assert projection(np.empty(shape, np.float32)).shape == (*shape[:-1], 7)
