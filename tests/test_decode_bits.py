"""The bits of one query for each sequence, and of 2 to 8, do not depend on company.

Not on threads, batch, place, the other heads of the group, strides, what stands in slots that are
hidden, nor on the lse. Rows are those of a longer call.
"""

from __future__ import annotations

from itertools import cycle
from typing import Any

import numpy as np
import pytest
from helpers import DTYPES, Array, assert_same_bits, attend, make_qkv
from layouts import CHOICES, LAYOUTS, WRITABLE, lay_out
from option_table import (
    COMPANY,
    EACH_ISA,
    HIDING,
    Problem,
    entry_of,
    head_of,
    part_of,
    starts_of,
    visible_keys,
)
from poisons import POISONS, poison

import headway

#: (H, Hkv), (Tq, Tk), D: groups and widths that fit no vector, and usual ones.
SHAPES = [
    ((3, 1), (1, 1), 64),
    ((7, 1), (1, 33), 20),
    ((2, 2), (1, 700), 128),
    ((8, 2), (1, 2300), 64),
    ((9, 1), (1, 1025), 77),
    ((1, 1), (1, 9000), 8),
    ((4, 2), (2, 2300), 20),
    ((33, 1), (3, 1100), 9),
    ((8, 1), (8, 5000), 16),
]

SEVERAL = {name: names for name, names in COMPANY.items() if len(names) > 1}

pytestmark = pytest.mark.usefixtures("any_threads")

Inputs = tuple[Array, Array, Array]


def inputs(dtype: str, shape: Any, batch: int = 1) -> Inputs:
    """Return q, k and v of one of the shapes; the values are three columns wider."""
    heads, tokens, width = shape
    sizes = {"batch": batch, "heads": heads, "tokens": tokens, "head_dim": width}
    return make_qkv(21, dtype, **sizes, value_dim=width + 3)


def alone_of(arrays: Inputs, **options: Any) -> tuple[Array, Array]:
    """Return out and lse computed by one thread, the out without asking for the lse."""
    headway.set_num_threads(1)
    out = headway.attention(*arrays, **options)
    return np.asarray(out), attend(*arrays, **options)[1]


def same(found: tuple[Array, Array], expected: tuple[Array, Array], what: str) -> None:
    """Compare the bits of out and lse."""
    assert_same_bits(found[0], expected[0], what)
    assert_same_bits(found[1], expected[1], f"lse, {what}")


@EACH_ISA
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_threads_and_batch(shape: Any, dtype: str, isa: str) -> None:
    """An entry alone in one thread; in batches of 1 to 5, at any place, in 2 to 5 threads."""
    q, k, v = inputs(dtype, shape, batch=5)
    alone = [alone_of((q[b : b + 1], k[b : b + 1], v[b : b + 1])) for b in range(5)]
    for threads, order in ((2, [0]), (2, [2, 0, 1]), (3, [4]), (5, [1, 3, 4, 2, 0])):
        headway.set_num_threads(threads)
        out, lse = attend(q[order], k[order], v[order])
        for place, b in enumerate(order):
            found = out[place : place + 1], lse[place : place + 1]
            same(found, alone[b], f"entry {b} at place {place}, {threads} threads")


@EACH_ISA
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", COMPANY)
def test_options_in_company(name: str, dtype: str, isa: str) -> None:
    """With options: an entry alone and beside one of NaN, a head alone and in its group."""
    for tokens in ((1, 1100), (3, 300)):
        problem = Problem(dtype, heads=(6, 2), tokens=tokens)
        options, (q, k, v) = problem.options(COMPANY[name]), problem.arrays()
        whole = alone_of((q, k, v), **options)
        headway.set_num_threads(2)
        for b in (0, 1):
            part, one = entry_of(options, b), slice(b, b + 1)
            expected = whole[0][one], whole[1][one]
            same(attend(q[one], k[one], v[one], **part), expected, f"entry {b}, {tokens}")
            arrays = [x.copy() for x in (q, k, v)]
            for x in arrays:
                x[1 - b] = np.nan
            out, lse = attend(*arrays, **options)
            same((out[one], lse[one]), expected, f"entry {b} beside NaN, {tokens}")
        for h in (1, 3):
            one, key_head = slice(h, h + 1), slice(h // 3, h // 3 + 1)
            found = attend(q[:, one], k[:, key_head], v[:, key_head], **head_of(options, h))
            same(found, (whole[0][:, one], whole[1][:, one]), f"head {h}, {tokens}")


@pytest.mark.parametrize("queries", [1, 2, 5])
@pytest.mark.parametrize("dtype", DTYPES)
def test_group_sizes(dtype: str, queries: int, isa: str, threads: int) -> None:
    """A query head gives the same rows alone and among 2 to 33 that share its key head."""
    q, k, v = make_qkv(3, dtype, heads=(33, 1), tokens=(queries, 1200), head_dim=40)
    whole = attend(q, k, v)
    for first, last in ((0, 1), (32, 33), (5, 7), (4, 7), (9, 13), (1, 8), (2, 10), (8, 17)):
        found = attend(q[:, first:last], k, v)
        expected = whole[0][:, first:last], whole[1][:, first:last]
        same(found, expected, f"heads {first} to {last}")


@EACH_ISA
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", COMPANY)
def test_few_rows_are_those_of_many(name: str, dtype: str, isa: str) -> None:
    """2 to 8 queries give the rows that they have in a call of 40."""
    problem = Problem(dtype, 1, (3, 1), (40, 1100), head_dim=10)
    options, (q, k, v) = problem.options(COMPANY[name]), problem.arrays()
    whole = attend(q, k, v, **options)
    headway.set_num_threads(2)
    starts, every = starts_of(problem.shape, options), slice(None)
    for first, count in ((38, 2), (7, 3), (31, 4), (16, 5), (1, 6), (25, 7), (32, 8)):
        rows = slice(first, first + count)
        part = part_of(options, rows, every, [start + first for start in starts])
        found = attend(q[:, :, rows], k, v, **part)
        same(found, (whole[0][:, :, rows], whole[1][:, :, rows]), f"{count} queries from {first}")


@pytest.mark.parametrize("queries", [1, 2, 8])
@pytest.mark.parametrize("dtype", DTYPES)
def test_lengths(dtype: str, queries: int, isa: str, some_threads: int) -> None:
    """A buffer with a used length is the buffer cut there, whatever the other lengths are."""
    lengths = [0, 1, 2, 31, 32, 33, 64, 129, 1023, 1024, 1025, 2047, 2300]
    q, k, v = make_qkv(5, dtype, batch=13, heads=(4, 2), tokens=(queries, 2300), head_dim=6)
    for b, length in enumerate(lengths):
        k[b, :, length:] = v[b, :, length:] = np.nan
    together = attend(q, k, v, kv_lengths=lengths)
    others = attend(q[::-1], k[::-1], v[::-1], kv_lengths=lengths[::-1])
    same((others[0][::-1], others[1][::-1]), together, "the other way round")
    for b, length in enumerate(lengths):
        one = slice(b, b + 1)
        found = attend(q[one], k[one, :, :length], v[one, :, :length])
        same(found, (together[0][one], together[1][one]), f"length {length}")


@EACH_ISA
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", HIDING)
def test_hidden_slots(name: str, dtype: str, isa: str, some_threads: int) -> None:
    """What stands in keys that no query of a group sees changes no bit."""
    kinds = cycle(POISONS)
    for tokens in ((1, 150), (1, 1500), (4, 150)):
        problem = Problem(dtype, heads=(4, 2), tokens=tokens)
        options, (q, k, v) = problem.options(HIDING[name]), problem.arrays()
        expected = attend(q, k, v, **options)
        seen = visible_keys(problem.shape, options)
        hidden = ~seen.reshape(2, 2, -1, tokens[1]).any(axis=2)
        for x in (k, v):
            changed = x[hidden]
            poison(changed, next(kinds))
            x[hidden] = changed
        same(attend(q, k, v, **options), expected, f"{tokens}, {name}")


@pytest.mark.parametrize("dtype", DTYPES)
def test_memory_layouts(dtype: str, isa: str, threads: int) -> None:
    """The same values in every layout, for one, two or all three of the inputs, and for out."""
    choices = cycle(CHOICES)
    for shape in (((6, 2), (1, 300), 20), ((2, 2), (1, 1100), 16), ((6, 2), (4, 140), 20)):
        arrays = inputs(dtype, shape, batch=2)
        for memory in LAYOUTS:
            chosen = next(choices)
            laid = lay_out(arrays, memory, chosen)
            copies = [np.array(x, order="C") for x in laid]
            same(attend(*laid), attend(*copies), f"{chosen} {memory}, {shape}")
        expected = attend(*arrays)
        for memory in WRITABLE if shape[1][1] < 1000 else ():
            out = LAYOUTS[memory](np.full_like(expected[0], np.nan))
            found = attend(*arrays, out=out)
            assert found[0] is out
            same(found, expected, f"out, {memory}, {shape}")


@pytest.mark.parametrize("dtype", DTYPES)
def test_tokens_outside_heads(dtype: str, isa: str, threads: int) -> None:
    """Layout "BTHD", with and without options, and arrays of three and two axes."""
    for queries in (1, 4):
        problem = Problem(dtype, heads=(6, 2), tokens=(queries, 1100))
        arrays = problem.arrays()
        for names in ((), *SEVERAL.values()):
            options = problem.options(names)
            expected = attend(*arrays, **options)
            swapped = [x.swapaxes(1, 2) for x in arrays]
            for given in (swapped, [x.copy() for x in swapped]):
                out, lse = attend(*given, layout="BTHD", **options)
                same((out.swapaxes(1, 2), lse), expected, f"{queries} queries, {names}")
        q, k, v = arrays
        whole = attend(q, k, v)
        same(attend(q[1], k[1], v[1]), (whole[0][1], whole[1][1]), "three axes")
        same(attend(q[0, 4], k[0, 1], v[0, 1]), (whole[0][0, 4], whole[1][0, 4]), "two axes")
