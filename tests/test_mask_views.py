"""Masks as they lie in memory: never expanded, never changed, the same numbers in every layout."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import TOLERANCE, Array, assert_close, dtype_of, make, make_qkv, reference

import headway
from headway.calls import check_attention

KINDS = ("bool", "float64", "float32", "float16", "bfloat16")
SHAPE = (2, 4, 9, 21)


def numbers(kind: str, shape: tuple[int, ...]) -> Array:
    """A mask that hides about every fourth key; its numbers are exact in 16 bits."""
    values = np.round(make(3, shape) * 8) / 8
    if kind == "bool":
        return values > -0.7
    return np.where(values > -0.7, values, -np.inf).astype(dtype_of(kind))


def spread(x: Array, value: Any, step: int) -> Array:
    """The elements `step` apart in memory, with `value` in between."""
    wide = np.full((*x.shape[:-1], step * x.shape[-1]), value).astype(x.dtype)
    wide[..., ::step] = x
    return wide[..., ::step]


def unaligned(x: Array) -> Array:
    """One byte past where an element may lie."""
    return np.ndarray(x.shape, x.dtype, b"\0" + x.tobytes(), 1)


def odd_strides(x: Array) -> Array:
    """A field of packed records: strides that are no multiple of the element's size."""
    records = np.zeros(x.shape, np.dtype([("before", "i1"), ("x", x.dtype)]))
    records["x"] = x
    field: Array = records["x"]
    return field


def read_only(x: Array) -> Array:
    x = x.copy()
    x.flags.writeable = False
    return x


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "fortran": np.asfortranarray,
    "queries innermost": lambda x: np.ascontiguousarray(x.swapaxes(2, 3)).swapaxes(2, 3),
    "heads innermost": lambda x: np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, 3)), 3, 1),
    "step 2": lambda x: spread(x, 1, 2),
    "step 3": lambda x: spread(x, 0, 3),
    "keys reversed": lambda x: x[..., ::-1].copy()[..., ::-1],
    "queries reversed": lambda x: x[:, :, ::-1].copy()[:, :, ::-1],
    "all reversed": lambda x: x[::-1, ::-1, ::-1, ::-1].copy()[::-1, ::-1, ::-1, ::-1],
    "unaligned": unaligned,
    "odd strides": odd_strides,
    "odd strides, reversed": lambda x: odd_strides(x[..., ::-1])[..., ::-1],
    "read-only": read_only,
    "part of more": lambda x: np.pad(x, ((0, 1), (1, 0), (2, 1), (3, 5)))[:-1, 1:, 2:-1, 3:-5],
}


def arrays(dtype: str = "float32") -> tuple[Array, Array, Array]:
    return make_qkv(4, dtype, batch=2, heads=(4, 2), tokens=(9, 21), head_dim=8)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_layout_gives_the_same_bits(kind: str, layout: str, isa: str) -> None:
    q, k, v = arrays()
    mask = numbers(kind, SHAPE)
    expected = headway.attention(q, k, v, mask=mask)
    laid = LAYOUTS[layout](mask)
    before = laid.tobytes()
    np.testing.assert_array_equal(headway.attention(q, k, v, mask=laid), expected)
    assert laid.tobytes() == before, "the mask was changed"
    for call in (headway.attention_weights, headway.attention_scores):
        np.testing.assert_array_equal(call(q, k, mask=laid), call(q, k, mask=mask))


@pytest.mark.parametrize("layout", [None, "unaligned", "odd strides", "keys reversed"])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kind", KINDS)
def test_every_broadcast(kind: str, dtype: str, layout: str | None, isa: str) -> None:
    """Axes of 1, axes left out, and axes of stride 0 in the mask as it is given."""
    q, k, v = arrays(dtype)
    for index in np.ndindex(2, 2, 2, 2):
        shape = tuple(n if full else 1 for n, full in zip(SHAPE, index, strict=True))
        mask = numbers(kind, shape)
        dense = np.array(np.broadcast_to(mask, SHAPE))
        expected, _ = reference(q, k, v, mask=dense)
        full = headway.attention(q, k, v, mask=dense)
        assert_close(full, expected, TOLERANCE[dtype])
        given = mask if layout is None else LAYOUTS[layout](mask)
        first = next((n for n, size in enumerate(shape) if size > 1), 4)
        for each in (given, given[(0,) * first], np.broadcast_to(given, SHAPE)):
            np.testing.assert_array_equal(headway.attention(q, k, v, mask=each), full)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", [None, "unaligned", "odd strides", "fortran"])
@pytest.mark.parametrize("module", [headway, headway.reference], ids=["headway", "reference"])
def test_ranks(module: Any, layout: str | None, kind: str) -> None:
    """(H, Tq, Tk) for 3-D input, (Tq, Tk) for 2-D input, in both layouts."""
    q, k, v = arrays("float64")
    mask = numbers(kind, SHAPE)
    given = mask if layout is None else LAYOUTS[layout](mask)
    full = module.attention(q, k, v, mask=mask)
    found = module.attention(q[1], k[1], v[1], mask=given[1])
    np.testing.assert_allclose(found, full[1], rtol=1e-12, atol=1e-14)
    turned = [x[1].swapaxes(0, 1) for x in (q, k, v)]
    found = module.attention(*turned, mask=given[1], layout="BTHD")
    np.testing.assert_allclose(found.swapaxes(0, 1), full[1], rtol=1e-12, atol=1e-14)
    found = module.attention(q[1, 3], k[1, 1], v[1, 1], mask=given[1, 3])
    np.testing.assert_allclose(found, full[1, 3], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", [None, "unaligned", "odd strides", "step 3"])
def test_a_mask_of_keys_is_not_expanded(kind: str, layout: str | None) -> None:
    """65,536 queries and keys: the whole mask would take 4 GiB and more, one row of it 64 KiB."""
    tokens = 65_536
    q = np.broadcast_to(np.ones((1, 1, 1, 4), np.float32), (1, 8, tokens, 4))
    mask = numbers(kind, (1, 1, 1, tokens))
    given = mask if layout is None else LAYOUTS[layout](mask)
    nothing = (None,) * 5
    for each in (given, np.broadcast_to(given, (1, 8, tokens, tokens))):
        tracemalloc.start()
        call = check_attention(q, q, q, True, "end", None, "BHTD", (each, *nothing))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert call.options is not None
        assert call.options.mask is not None
        assert call.options.mask.shape == (1, 8, tokens, tokens)
        assert call.options.mask.strides[:3] == (0, 0, 0)
        assert np.shares_memory(call.options.mask[0, 0, 0], given) == (
            layout in (None, "step 3") or kind == "bool"
        )
        assert peak < 3 * mask.nbytes + 20_000, f"{peak} bytes"


def test_a_call_does_not_expand_it() -> None:
    """The peak of a whole call, as Python sees it, stays below one copy of the scores."""
    tokens = 2048
    q = np.ones((1, 1, tokens, 4), np.float32)
    out = np.empty_like(q)
    mask = np.ones((1, 1, 1, tokens), bool)
    mask[..., ::3] = False
    headway.attention(q, q, q, mask=mask, out=out)
    tracemalloc.start()
    headway.attention(q, q, q, mask=mask, out=out)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50_000, f"{peak} bytes"
