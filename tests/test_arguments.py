"""Unusual calls that are right: overlaps that are none, numbers of every kind, foreign arrays."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from helpers import Array, LendsByDLPack

import headway

Call = Callable[..., Any]


def arrays() -> tuple[Array, Array, Array]:
    """Return q, k and v: 4 query heads over 2 key heads, 5 queries, 7 keys."""
    rng = np.random.default_rng(0)
    shapes = (2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6)
    q, k, v = (rng.standard_normal(shape) for shape in shapes)
    return q, k, v


@pytest.mark.parametrize("call", [headway.attention, headway.reference.attention])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_overlap_is_found_element_by_element(call: Callable[..., Any], dtype: str) -> None:
    buffer = np.ones((2, 5, 4, 3, 8), dtype)  # (B, T, H, part, D): parts lie between one another
    q, k, v = (buffer[..., part, :4].swapaxes(1, 2) for part in range(3))
    out = buffer[..., 1, 4:].swapaxes(1, 2)
    assert call(q, k, v, out=out) is out
    with pytest.raises(ValueError, match="overlaps v"):
        call(q, k, v, out=buffer[..., 2, 1:5].swapaxes(1, 2))


def test_a_result_beyond_all_memory_is_an_exception() -> None:
    row = np.ones((1, 1, 1, 64), np.float32)
    for q in (
        np.broadcast_to(row, (1, 1, 2**40, 64)),
        np.broadcast_to(row, (2**40, 1, 1, 64)),
        np.broadcast_to(row[..., ::-1], (1, 2**40, 1, 64)),
    ):
        key = np.broadcast_to(row, (q.shape[0], 1, 1, 64))
        with pytest.raises(MemoryError):
            headway.attention(q, key, key)
    assert headway.attention(row, row, row)[0, 0, 0, 0] == 1.0


@pytest.mark.parametrize(
    "options",
    [
        {"scale": 0},
        {"scale": -2},
        {"scale": np.float16(0.5)},
        {"scale": np.int64(3)},
        {"scale": Fraction(1, 3)},
        {"causal": np.False_},
        {"return_lse": np.False_},
        {"align": np.int32(2)},
        {"align": np.array(2, np.uint8)},
        {"align": (0, np.int64(2))},
        {"align": range(2)},
        {"align": np.array([1, 2], np.uint64)},
        {"align": 10**30},
        {"align": [-(10**30), 2**63]},
        {"layout": np.str_("BHTD")},
    ],
    ids=str,
)
def test_unusual_but_right(options: dict[str, Any]) -> None:
    got = headway.attention(*arrays(), **options)
    expected = headway.reference.attention(*arrays(), **options)
    np.testing.assert_allclose(got, expected, atol=1e-12)


class BecomesAnArray:
    """An array of another library, with the array method alone."""

    def __init__(self, x: Array) -> None:
        self.x = x

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        return self.x


class Subclass(np.ndarray[Any, Any]):
    """A subclass of NumPy's array, like a memory map."""


def as_subclass(x: Array) -> Array:
    return x.view(Subclass)


@pytest.mark.parametrize("wrap", [LendsByDLPack, BecomesAnArray, as_subclass])
@pytest.mark.parametrize("module", [headway, headway.reference], ids=["headway", "reference"])
def test_arrays_of_other_libraries(module: Any, wrap: Callable[[Array], Any]) -> None:
    for call, count in (
        (module.attention, 3),
        (module.attention_weights, 2),
        (module.attention_scores, 2),
    ):
        given = arrays()[:count]
        got = call(*(wrap(x) for x in given))
        assert type(got) is np.ndarray
        np.testing.assert_array_equal(got, call(*given))


def test_out_may_be_a_subclass() -> None:
    out = np.zeros((2, 4, 5, 6)).view(Subclass)
    assert headway.attention(*arrays(), out=out) is out
    np.testing.assert_array_equal(out, headway.attention(*arrays()))


@pytest.mark.parametrize("module", [headway, headway.reference], ids=["headway", "reference"])
def test_no_heads_need_no_key_heads(module: Any) -> None:
    for kv_heads in (0, 1, 3):
        q, k = np.ones((2, 0, 5, 8)), np.ones((2, kv_heads, 7, 8))
        out, lse = module.attention(q, k, k, return_lse=True)
        assert out.shape == (2, 0, 5, 8)
        assert lse.shape == (2, 0, 5)
        assert module.attention_weights(q, k).shape == (2, 0, 5, 7)
