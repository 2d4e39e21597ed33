"""The everyday call with options, which the bindings read: the same bits as by way of the checks.

``_core.attention_plain`` gives None for whatever it leaves to the checks, and then `attention`
gives what they give: the same result, or the same exception with the same text.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from helpers import DTYPES, Array, assert_same_bits, make
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import LAYOUTS, odd_address
from plain_calls import (
    BATCH,
    HEADS,
    TAKEN,
    Options,
    assert_changes,
    assert_one_way_or_the_other,
    left_options,
    made_mask,
    operands,
    outcome,
    plain,
    sets_of_options,
)

MASK_DTYPES = ("bool", *DTYPES)

# What is taken ------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_options_alone_and_together(dtype: str, causal: bool, isa: str, some_threads: int) -> None:
    """One query, a chunk, a prefill, and more queries than keys; shared key heads; a batch."""
    for queries, keys in ((1, 70), (7, 40), (35, 35), (9, 4)):
        arrays = operands(dtype, queries, keys)
        for options in sets_of_options(dtype, queries, keys):
            assert_one_way_or_the_other(arrays, options, True, causal)
            if keys > queries and (queries > 1 or "window" not in options):
                assert_changes(arrays, options, causal)


def overlapping(x: Array) -> Array:
    """Rows that begin one element after the other in the same memory, last row first."""
    row = x.ravel()[: x.shape[2] + x.shape[3] - 1].copy()
    windows = np.lib.stride_tricks.sliding_window_view(row, x.shape[3])
    return np.broadcast_to(windows[::-1], x.shape)


MASK_LAYOUTS: dict[str, Callable[[Array], Array]] = {**LAYOUTS, "overlapping": overlapping}


@pytest.mark.parametrize("kind", MASK_DTYPES)
def test_masks_wherever_they_lie(kind: str, isa: str, turn: int) -> None:
    """Any strides, any address that a whole number of elements fits to; bytes of any kind."""
    dtype = DTYPES[turn % len(DTYPES)]
    arrays = operands(dtype, 21, 140)
    for name, lay_out in MASK_LAYOUTS.items():
        mask = lay_out(made_mask(kind, (BATCH, HEADS, 21, 140)))
        taken = kind == "bool" or not name.startswith("odd")
        assert_one_way_or_the_other(arrays, {"mask": mask}, taken, causal=False)
        if taken:
            expected = plain(arrays, {"mask": mask.copy(order="C")}, False)
            assert_same_bits(plain(arrays, {"mask": mask}, False), expected, name)


@pytest.mark.parametrize("kind", MASK_DTYPES)
def test_masks_broadcast_on_any_axes(kind: str, isa: str) -> None:
    for dtype, queries in (("float32", 21), ("float64", 1)):
        arrays = operands(dtype, queries, 33)
        whole = BATCH, HEADS, queries, 33
        for keeps in product((False, True), repeat=4):
            shape = tuple(n if keep else 1 for n, keep in zip(whole, keeps, strict=True))
            mask = made_mask(kind, shape)
            assert_one_way_or_the_other(arrays, {"mask": mask}, True, causal=False)
            stretched = np.broadcast_to(mask, whole)
            assert_one_way_or_the_other(arrays, {"mask": stretched}, True)
            out = plain(arrays, {"mask": stretched.copy()})
            assert_same_bits(plain(arrays, {"mask": mask}), out, str(shape))


def test_bools_of_any_byte(isa: str) -> None:
    """A byte that is not 0 shows the key, as in NumPy."""
    for queries, keys in ((1, 140), (3, 140), (40, 140)):
        arrays = operands("float32", queries, keys)
        numbers = np.random.default_rng(3).integers(0, 4, (BATCH, 1, queries, keys), np.uint8)
        numbers *= 85
        expected = plain(arrays, {"mask": numbers != 0})
        for mask in (numbers, np.asfortranarray(numbers)):
            options = {"mask": mask.view(bool)}
            assert_one_way_or_the_other(arrays, options, True)
            assert_same_bits(plain(arrays, options), expected)


def wide_steps(x: Array) -> Array:
    """Every third element of a longer array, backwards."""
    return np.repeat(x, 3, axis=-1)[..., ::-3][..., ::-1]


NUMBER_LAYOUTS: tuple[Callable[[Array], Array], ...] = (
    np.copy,
    np.asfortranarray,
    wide_steps,
    odd_address,
    lambda x: np.broadcast_to(x[..., :1], x.shape),
)


@pytest.mark.parametrize("causal", [True, False])
def test_values_that_are_taken(causal: bool) -> None:
    arrays = operands()
    for options in TAKEN:
        assert_one_way_or_the_other(arrays, options, True, causal)
    wide = operands("float64")
    for numbers in (np.full(HEADS, 1e300), np.full((BATCH, HEADS), -1e300)):
        assert_one_way_or_the_other(wide, {"alibi_slopes": numbers}, True, causal)
    assert_one_way_or_the_other(wide, {"sinks": np.array([1e300, -np.inf, -1e300, 0])}, True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_slopes_and_sinks_wherever_they_lie(dtype: str) -> None:
    arrays = operands(dtype)
    for kind, lay_out in product(("float32", "float64"), NUMBER_LAYOUTS):
        for shape in ((HEADS,), (BATCH, HEADS)):
            slopes = lay_out(make(2, shape, kind))
            assert_one_way_or_the_other(arrays, {"alibi_slopes": slopes}, True)
            assert_changes(arrays, {"alibi_slopes": slopes})
        sinks = make(3, (HEADS,), kind)
        sinks[1] = -np.inf
        assert_one_way_or_the_other(arrays, {"sinks": lay_out(sinks)}, True)


def test_left_to_the_checks() -> None:
    """Some of it they convert, most of it they refuse: the same either way."""
    arrays, good = operands(), sets_of_options("float32", 7, 20)[-2]
    for options in left_options():
        assert_one_way_or_the_other(arrays, options, False)
        assert_one_way_or_the_other(arrays, good | options, False, causal=False)


def test_more_heads_than_there_is_memory_for() -> None:
    """Slopes of no memory for more heads than can be listed: the checks may say so."""
    for heads, batch in ((2**40, 1), (1, 2**40), (2**21, 1)):
        q = np.broadcast_to(np.float32(0), (batch, heads, 1, 1))
        numbers = np.broadcast_to(np.float32(0), (heads,))
        for name in ("alibi_slopes", "sinks"):
            assert plain((q, q[:, :1], q[:, :1]), {name: numbers}) is None


# Everything at random -----------------------------------------------------------------------------

ANY: list[Options] = [*TAKEN, *left_options(), *sets_of_options("float32", 7, 20)]
POOLS: dict[str, list[Any]] = {}
for each in ANY:
    for option, found in each.items():
        POOLS.setdefault(option, []).append(found)


def values_of(name: str) -> st.SearchStrategy[Any]:
    """One in two: a value of a set of options, which fits; else anything."""
    fit = [x[name] for x in sets_of_options("float32", 7, 20) if name in x]
    return st.one_of(st.sampled_from(fit), st.sampled_from(POOLS[name]))


@given(
    st.sampled_from(DTYPES),
    st.fixed_dictionaries({}, optional={name: values_of(name) for name in POOLS}),
    st.sampled_from([True, False, np.True_, 1]),
)
@settings(max_examples=150)
def test_any_options(dtype: str, options: Options, causal: Any) -> None:
    assert_one_way_or_the_other(operands(dtype), options, None, causal)


# Nothing leaks ------------------------------------------------------------------------------------


@pytest.fixture
def no_collection() -> Iterator[None]:
    """What earlier tests left goes at no other time: dtypes and ints are everybody's."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def references(arrays: tuple[Any, ...], options: Options) -> list[int]:
    parts = [x for value in options.values() if type(value) is tuple for x in value]
    kept = [*arrays, *options.values(), *parts]
    kept += [x.dtype for x in kept if isinstance(x, np.ndarray)]
    return [sys.getrefcount(x) for x in kept]


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_nothing_leaks(dtype: str) -> None:
    """Arguments are referred to as often after many calls, also where they are refused."""
    arrays = operands(dtype)
    many = sets_of_options(dtype, 7, 20)
    wrong: list[Options] = [{"window": (2, 2**63)}, {"softcap": np.float64(-1)}]
    wrong += [{"alibi_slopes": np.full(HEADS, np.nan)}, {"sinks": np.full(HEADS, np.inf)}]
    wrong += [{"mask": np.ones((1, 1, 7, 19), bool)}, {"mask": np.ones((7, 20), np.int16)}]
    for options in [*many, *wrong, *({"window": (2**40, 2**41)} | x for x in wrong[1:])]:
        outcome(arrays, options, True, "BHTD")
        before = references(arrays, options)
        for _ in range(50):
            outcome(arrays, options, True, "BHTD")
            plain(arrays, options)
        assert references(arrays, options) == before, options
    out, another = plain(arrays, many[0]), np.zeros(3)
    assert sys.getrefcount(out) == sys.getrefcount(another)
