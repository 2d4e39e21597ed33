"""Projection's gradients: their numbers and bits."""

from __future__ import annotations

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
)

import headway
from headway import Gradients, Projection


def wide(x: Array) -> Array:
    return x.astype(np.float64)


def build(dtype: str, d_in: int, d_out: int, *, bias: bool = True) -> Projection:
    return Projection(
        make((d_in, d_out, 1), (d_in, d_out), dtype),
        make((d_out, 2), (d_out,), dtype) if bias else None,
    )


def backward(projection: Projection, x: Array, grad: Array) -> Gradients:
    assert_same_bits(projection.forward(x, save=True), projection(x))
    return projection.backward(grad)


def assert_gradients(projection: Projection, x: Array, grad: Array, what: str = "") -> None:
    """Fail unless every gradient is that of float64 products."""
    got = backward(projection, x, grad)
    rows, row_gradients = wide(x).reshape(-1, projection.d_in), wide(grad)
    row_gradients = row_gradients.reshape(-1, projection.d_out)
    expected = {"weight": rows.T @ row_gradients, "bias": row_gradients.sum(axis=0)}
    if projection.bias is None:
        del expected["bias"]
    assert list(got.weights) == list(expected) == list(projection.parameters())
    tolerance = TOLERANCE[projection.dtype.name]
    assert_close(got.x, wide(grad) @ wide(projection.weight).T, tolerance, f"x {what}")
    for name, array in expected.items():
        assert_close(got.weights[name], array, tolerance, f"{name} {what}")
        assert got.weights[name].shape == projection.parameters()[name].shape
    for array in got.x, *got.weights.values():
        assert array.dtype == projection.dtype
        assert array.flags.c_contiguous
        assert array.flags.writeable


# Numbers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes(dtype: str, isa: str, some_threads: int) -> None:
    """Whole and partial tiles of rows, depths and columns, with and without a bias."""
    for d_in in (1, 3, 16, 33, 64, 97):
        for d_out in (1, 7, 48, 65, 130):
            for rows, bias in ((1, True), (5, False), (99, True)):
                projection = build(dtype, d_in, d_out, bias=bias)
                x = make((rows, 3), (rows, d_in), dtype)
                grad = make((rows, 4), (rows, d_out), dtype)
                assert_gradients(projection, x, grad, f"{rows} rows, {d_in} to {d_out}")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(2, 300, 700), (130, 700, 1100), (2049, 20, 50), (4500, 9, 33)])
def test_large_sizes(sizes: tuple[int, int, int], dtype: str, isa: str, some_threads: int) -> None:
    """What is cut into several blocks, and spans of rows."""
    rows, d_in, d_out = sizes
    x, grad = make((rows, 3), (rows, d_in), dtype), make((rows, 4), (rows, d_out), dtype)
    assert_gradients(build(dtype, d_in, d_out), x, grad)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_many_rows_lose_nothing(dtype: str, isa: str) -> None:
    """Sums over 100,000 equal numbers, where a running sum of 16 bits would stand still."""
    rows = 100_000
    x, grad = np.ones((rows, 2), dtype_of(dtype)), np.full((rows, 3), 2.0**-3, dtype_of(dtype))
    got = backward(build(dtype, 2, 3), x, grad).weights
    expected = np.full(3, rows / 8).astype(dtype_of(dtype))
    assert_same_bits(got["bias"], expected)
    assert_same_bits(got["weight"], np.stack([expected, expected]))
    x, grad = make(5, (rows, 2), dtype), make(6, (rows, 3), dtype)
    assert_gradients(build(dtype, 2, 3), x, grad)


def test_many_rows_are_accurate_in_float32(isa: str) -> None:
    x, grad = abs(make(5, (60_000, 3), "float32")), abs(make(6, (60_000, 5), "float32"))
    got = backward(build("float32", 3, 5), x, grad).weights
    assert_close(got["weight"], wide(x).T @ wide(grad), 5e-6)
    assert_close(got["bias"], wide(grad).sum(axis=0), 5e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_rows(dtype: str, isa: str) -> None:
    projection = build(dtype, 5, 7)
    for shape in ((0, 5), (3, 0, 5), (0, 0, 2, 5)):
        grad = np.empty((*shape[:-1], 7), projection.dtype)
        got = backward(projection, np.empty(shape, projection.dtype), grad)
        assert got.x.shape == shape
        assert not wide(got.weights["weight"]).any()
        assert not wide(got.weights["bias"]).any()


# Bits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("any_threads")
def test_threads(dtype: str, isa: str) -> None:
    projection = build(dtype, 97, 130)
    x, grad = make(1, (2100, 97), dtype), make(2, (2100, 130), dtype)
    headway.set_num_threads(1)
    expected = backward(projection, x, grad)
    for threads in (2, 3, 7):
        headway.set_num_threads(threads)
        got = backward(projection, x, grad)
        assert_same_bits(got.x, expected.x, f"{threads} threads")
        for name, array in expected.weights.items():
            assert_same_bits(got.weights[name], array, f"{name}, {threads} threads")


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gradient_of_x_is_a_projection_by_the_transpose(dtype: str, isa: str) -> None:
    projection = build(dtype, 70, 300)
    grad = make(3, (20, 300), dtype)
    expected = Projection(projection.weight.T)(grad)
    assert_same_bits(backward(projection, make(4, (20, 70), dtype), grad).x, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_columns_have_their_bits_in_any_company(dtype: str, isa: str) -> None:
    """The gradients of a column depend on x and on this column of grad."""
    x, grad = make(5, (70, 20), dtype), make(6, (70, 90), dtype)
    expected = backward(build(dtype, 20, 90), x, grad).weights
    for first, last in ((0, 1), (3, 64), (60, 90)):
        got = backward(build(dtype, 20, last - first), x, grad[:, first:last]).weights
        assert_same_bits(got["weight"], expected["weight"][:, first:last])
        assert_same_bits(got["bias"], expected["bias"][first:last])


@pytest.mark.parametrize("dtype", DTYPES)
def test_axes_and_strides(dtype: str, isa: str) -> None:
    projection = build(dtype, 20, 33)
    x, grad = make(8, (3, 4, 5, 20), dtype), make(9, (3, 4, 5, 33), dtype)
    expected = backward(projection, x.reshape(60, 20), grad.reshape(60, 33))
    for what, view in {
        "four axes": lambda a: a,
        "apart": lambda a: np.stack([a, a], axis=-2)[..., 1, :],
        "turned": lambda a: a.transpose(2, 1, 0, 3).copy().transpose(2, 1, 0, 3),
        "backwards": lambda a: a[::-1, :, ::-1].copy()[::-1, :, ::-1],
        "Fortran": np.asfortranarray,
    }.items():
        got = backward(projection, view(x), view(grad))
        assert_same_bits(got.x, expected.x.reshape(x.shape), what)
        for name, array in expected.weights.items():
            assert_same_bits(got.weights[name], array, f"{name}, {what}")
    one_for_all = np.broadcast_to(grad[:1, :1, :1], grad.shape)
    got = backward(projection, x, one_for_all)
    again = backward(projection, x, one_for_all.copy())
    assert_same_bits(got.weights["weight"], again.weights["weight"])
    row = backward(projection, x[0, 0, 0], grad[0, 0, 0])
    assert_same_bits(row.x, expected.x[0])


def test_the_transpose_is_packed_for_the_isa_in_use() -> None:
    before = headway.isa()
    projection, x = build("float32", 33, 50), make(2, (4, 33), "float32")
    grad = make(3, (4, 50), "float32")
    try:
        for _ in range(2):
            for name in headway.available_isas():
                headway.set_isa(name)
                expected = backward(build("float32", 33, 50), x, grad).x
                assert_same_bits(backward(projection, x, grad).x, expected, name)
    finally:
        headway.set_isa(before)
