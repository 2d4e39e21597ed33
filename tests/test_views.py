"""Views, strides and alignment: every memory layout of the same values, the same result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import (
    DTYPES,
    LSE_TOLERANCE,
    TOLERANCE,
    Array,
    assert_close,
    assert_same_bits,
    attend,
    make,
    reference,
)
from layouts import CHOICES, LAYOUTS, WRITABLE, lay_out

import headway


def packed_qkv() -> tuple[Array, Array, Array]:
    """Return q, k, v as views of one array (B, T, 3, H, D), as a projection makes it."""
    g = np.random.default_rng(104)
    qkv = g.standard_normal((2, 6, 3, 4, 8)).astype(np.float32)
    q, k, v = (qkv[:, :, n].transpose(0, 2, 1, 3) for n in range(3))
    assert q.shape == (2, 4, 6, 8)
    assert q.strides == (2304, 32, 384, 4)
    return q, k, v


def test_layouts_are_what_they_say() -> None:
    """The layouts keep the values, and differ from contiguous arrays where they claim to."""
    x = make(1, (3, 4, 5, 6), "float32")
    for name, layout in LAYOUTS.items():
        view = layout(x)
        assert view.shape == x.shape
        assert view.dtype == x.dtype
        if not name.startswith("broadcast"):
            assert_same_bits(np.array(view), x, name)
    assert LAYOUTS["fortran"](x).flags.f_contiguous
    assert not LAYOUTS["odd_address"](x).flags.aligned
    assert not LAYOUTS["read_only"](x).flags.writeable
    assert LAYOUTS["one_element_in"](x).ctypes.data % 8 == 4
    assert LAYOUTS["odd_strides"](x).strides[2] == 25
    assert LAYOUTS["token_major"](x).strides[2] > LAYOUTS["token_major"](x).strides[1]
    for axis, part in enumerate(("batch", "heads", "tokens", "last")):
        assert LAYOUTS[f"broadcast_{part}"](x).strides[axis] == 0
        assert LAYOUTS[f"reversed_{part}"](x).strides[axis] < 0
    for name in WRITABLE:
        assert LAYOUTS[name](x).flags.writeable


def test_packed_projection(isa: str, threads: int) -> None:
    """Figures worked out by another program, on views of one packed array."""
    out = headway.attention(*packed_qkv())
    np.testing.assert_allclose(out[1, 3, 5, :3], [0.674149, 0.475887, 0.592413], rtol=1e-5)
    assert abs(out.sum(dtype=np.float64) - -18.682772) < 1e-3


@pytest.mark.parametrize("memory", LAYOUTS)
def test_layouts_of_packed_projection(memory: str, isa: str, threads: int) -> None:
    """The same numbers in this layout, for one, two or all three inputs."""
    arrays = packed_qkv()
    for chosen in CHOICES:
        q, k, v = lay_out(arrays, memory, chosen)
        out, lse = attend(q, k, v)
        expected, expected_lse = reference(q, k, v)
        assert_close(out, expected, TOLERANCE["float32"], f"{chosen} {memory}")
        assert_close(lse, expected_lse, LSE_TOLERANCE["float32"], f"lse, {chosen} {memory}")
        if not memory.startswith("broadcast"):
            plain = [np.ascontiguousarray(x) for x in arrays]
            assert_same_bits(out, headway.attention(*plain), f"{chosen} {memory}")


@pytest.mark.parametrize("memory", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_layouts_with_more_keys(memory: str, dtype: str, isa: str) -> None:
    """33 and 65 keys; key heads shared; every dtype; out= in the layout too."""
    for keys in (33, 65):
        q, k, v = lay_out(
            (
                make((keys, 1), (2, 4, 20, 16), dtype),
                make((keys, 2), (2, 2, keys, 16), dtype),
                make((keys, 3), (2, 2, keys, 5), dtype),
            ),
            memory,
            "qkv",
        )
        expected, expected_lse = reference(q, k, v)
        out, lse = attend(q, k, v)
        assert_close(out, expected, TOLERANCE[dtype], memory)
        assert_close(lse, expected_lse, LSE_TOLERANCE[dtype], f"lse, {memory}")
        if memory in WRITABLE:
            given = LAYOUTS[memory](np.full_like(out, np.nan))
            headway.attention(q, k, v, out=given)
            assert_same_bits(given, out, f"out= {memory}")


@pytest.mark.parametrize("memory", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_layouts_of_weights_and_scores(memory: str, dtype: str, isa: str) -> None:
    """The calls that give matrices read every layout too."""
    arrays = make(1, (2, 4, 9, 8), dtype), make(2, (2, 2, 70, 8), dtype), make(3, (1, 1, 1, 1))
    q, k, _ = lay_out(arrays, memory, "qk")
    plain = np.array(q, order="C"), np.array(k, order="C")
    assert_same_bits(headway.attention_weights(q, k), headway.attention_weights(*plain), memory)
    assert_same_bits(headway.attention_scores(q, k), headway.attention_scores(*plain), memory)


@pytest.mark.parametrize("dtype", DTYPES)
def test_heads_and_tokens_as_views_of_lower_rank(dtype: str, isa: str) -> None:
    """2-D and 3-D views into bigger arrays, column blocks of (T, H*D) among them."""
    joined = make(9, (40, 3 * 4 * 16), dtype)
    q, k, v = (joined[:, n * 64 : (n + 1) * 64] for n in range(3))
    for head in range(4):
        columns = slice(16 * head, 16 * head + 16)
        parts = q[:, columns], k[:, columns], v[:, columns]
        expected, expected_lse = reference(*parts)
        out, lse = attend(*parts)
        assert_close(out, expected, TOLERANCE[dtype])
        assert_close(lse, expected_lse, LSE_TOLERANCE[dtype], "lse")
    apart = [x.reshape(40, 4, 16) for x in (q, k, v)]
    out, lse = attend(*apart, layout="BTHD")
    assert out.shape == (40, 4, 16)
    assert lse.shape == (4, 40)
    assert_same_bits(out[:, 3], headway.attention(*(x[:, 3] for x in apart)))


def test_growing_cache_buffers(isa: str) -> None:
    """A slice of a longer buffer is read where it lies; later writes to it are seen."""
    buffer_k, buffer_v = np.full((2, 1, 2, 100, 8), np.nan, np.float32)
    q = make(1, (1, 4, 3, 8), "float32")
    for filled in (3, 4, 64, 99):
        buffer_k[:, :, :filled] = make(2, (1, 2, filled, 8), "float32")
        buffer_v[:, :, :filled] = make(3, (1, 2, filled, 8), "float32")
        k, v = buffer_k[:, :, :filled], buffer_v[:, :, :filled]
        out = headway.attention(q, k, v)
        assert_same_bits(out, headway.attention(q, k.copy(), v.copy()))


class Lends:
    """An array of another library: it offers its memory, and nothing else of NumPy's."""

    def __init__(self, x: Array) -> None:
        self.x = x

    def __dlpack__(self, **options: Any) -> Any:
        return self.x.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.x.__dlpack_device__()


class Converts:
    """Something that makes a NumPy array of itself."""

    def __init__(self, x: Array) -> None:
        self.x = x

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self.x


@pytest.mark.parametrize("kind", [Lends, Converts])
@pytest.mark.parametrize("memory", ["contiguous", "token_major", "reversed_tokens", "wide_rows"])
def test_arrays_of_other_libraries(kind: type[Lends | Converts], memory: str, isa: str) -> None:
    """What offers __dlpack__ or __array__ is taken; the result is a NumPy array."""
    arrays = lay_out(packed_qkv(), memory, "qkv")
    out, lse = attend(*(kind(x) for x in arrays))
    expected, expected_lse = attend(*arrays)
    assert type(out) is np.ndarray
    assert_same_bits(out, expected)
    assert_same_bits(lse, expected_lse, "lse")
