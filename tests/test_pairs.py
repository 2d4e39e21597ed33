"""What kernels that multiply pairs of keys at once must get right; every ISA runs it."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import DTYPES, Array, assert_same_bits, attend, dtype_of, make_qkv

import headway


def column(dtype: str, count: int, value: float) -> Array:
    """Return (count, 1) numbers that are all `value`."""
    return np.full((count, 1), value, dtype_of(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden", [1, 31, 32, 64, 127, 128, 200])
@pytest.mark.parametrize("score", [-1.0, -80.0, -100.0, -1000.0])
def test_keys_after_ones_of_weight_0(hidden: int, score: float, dtype: str, isa: str) -> None:
    """Keys that score -inf count for nothing, however low the first one after them stands."""
    k = column(dtype, hidden + 40, score)
    k[:hidden] = -np.inf
    v = column(dtype, hidden + 40, 1)
    v[:hidden] = 7
    out, lse = attend(column(dtype, 3, 1), k, v, scale=1.0)
    assert (out == 1).all()
    np.testing.assert_allclose(lse, score + np.log(np.arange(38, 41)), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_score_that_overflows_to_minus_infinity(dtype: str, isa: str) -> None:
    """From finite numbers alone: its weight is 0, too."""
    k = column(dtype, 64, -(2.0**60))
    k[:32] = -(2.0**100)
    out = headway.attention(column(dtype, 2, 2.0**60), k, column(dtype, 64, 1), scale=2.0**-90)
    assert (out == 1).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("cut", [0, 2, 4])
def test_a_hidden_value_beside_a_visible_infinity(
    hidden: float, cut: int, dtype: str, isa: str
) -> None:
    """The row is as infinite as without it, also where its finite values overflow the sum."""
    q = column(dtype, 6, 0)
    v = column(dtype, 6, 0)
    v[0] = np.inf
    v[2] = v[4] = -float(np.finfo(np.float16 if dtype == "float16" else np.float32).max) * 0.9
    expected = headway.attention(q, q, v)[:5]
    v[5] = hidden
    assert_same_bits(headway.attention(q, q, v)[:5], expected)
    part = headway.attention(q[cut:], q, v)  # in a chunk with the row that sees the other one
    assert_same_bits(part[: 5 - cut], expected[cut:])


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_sign_of_a_zero_does_not_tell_a_hidden_value(dtype: str, isa: str) -> None:
    """A context that shrinks to -0 stays clear of the hidden value that is added times 0."""
    k = column(dtype, 130, 0)
    k[128:] = 1000
    v = column(dtype, 130, -1)
    v[128] = -0.0
    rows = []
    for hidden in (5, -5):
        v[129] = hidden
        rows.append(headway.attention(column(dtype, 130, 1), k, v, scale=1.0)[128])
    assert_same_bits(rows[0], rows[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1.0, 2.0, 4.0, 100.0])
@pytest.mark.parametrize("masked", [False, True])
def test_products_that_rise_late_under_a_large_scale(
    masked: bool, scale: float, dtype: str, isa: str
) -> None:
    """A product that comes long after smaller ones has all the weight, whatever its unit."""
    k = column(dtype, 70, 0)
    k[33] = 30
    v = column(dtype, 70, 7)
    v[33] = 1
    options = {"mask": np.arange(70) != 3} if masked else {}
    out, lse = attend(column(dtype, 1, 1), k, v, scale=scale, **options)
    np.testing.assert_allclose(out.astype(np.float64), 1, rtol=1e-9)
    np.testing.assert_allclose(lse, 30 * scale, rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_cosine_attention(dtype: str, isa: str) -> None:
    """Rows of length 1 and a scale of 100: every row finds itself."""
    x = np.random.default_rng(0).standard_normal((300, 16))
    x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(dtype_of(dtype))
    v = np.arange(300).reshape(300, 1).astype(dtype_of(dtype))
    _, lse = attend(x, x, v, scale=100.0)
    wanted = headway.reference.attention(
        *(a.astype(np.float64) for a in (x, x, v)), scale=100.0, return_lse=True
    )[1]
    np.testing.assert_allclose(lse, wanted, rtol=1e-4)


@pytest.mark.parametrize("options", [{}, {"window": 40}, {"softcap": 5.0}, {"sinks": "none"}])
def test_the_weights_of_a_row_add_up_to_1(options: dict[str, object], isa: str) -> None:
    """Also where they are rounded: equal values come out as they are, over two spans of keys."""
    rng = np.random.default_rng(5)
    q, k = (rng.standard_normal((2, 1100, 32)).astype(dtype_of("bfloat16")) for _ in range(2))
    if "sinks" in options:
        options = {"sinks": np.full(2, -np.inf)}
    v = np.full((2, 1100, 3), 3, q.dtype)
    out = headway.attention(q, k, v, scale=1.0, out=np.empty(v.shape, np.float32), **options)
    np.testing.assert_allclose(out, 3, rtol=1e-5)


@pytest.mark.usefixtures("any_threads")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tasks_of_every_number_of_panels(dtype: str, isa: str) -> None:
    """Few threads get tasks of many rows, many threads tasks of few: the bits are the same."""
    q, k, v = make_qkv(11, dtype, heads=(4, 4), tokens=(700, 700), head_dim=16)
    headway.set_num_threads(1)
    expected, lse = attend(q, k, v)
    for threads in (2, 4, 8, 16):
        headway.set_num_threads(threads)
        found = attend(q, k, v)
        assert_same_bits(found[0], expected)
        assert_same_bits(found[1], lse)
    headway.set_num_threads(1)
    for start in (0, 130, 500, 640):  # rows of one task, then of tasks that hold fewer
        assert_same_bits(attend(q[:, :, start:], k, v)[0], expected[:, :, start:])
