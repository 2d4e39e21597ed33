"""With every option, a row has the same bits in a buffer cut short, and packed."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from helpers import DTYPES, Array, assert_same_bits, attend, make
from option_table import COMPANY, EACH_ISA, HIDING, Options, Problem, entry_of, part_of

import headway

#: Sets of options that a packed call takes, by name.
PACKED = {
    name: names
    for name, names in COMPANY.items()
    if not any("mask" in each or each == "lengths" for each in names)
} | {"many": ("two-sided", "softcap", "batch-alibi", "sinks", "all-keys", "entry-aligns")}


pytestmark = pytest.mark.usefixtures("any_threads")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [name for name in HIDING if "lengths" in HIDING[name]])
def test_lengths_are_a_cut(name: str, dtype: str, isa: str, some_threads: int) -> None:
    """The first keys of a longer buffer are those keys."""
    for tokens in ((70, 150), (5, 2300)):
        problem = Problem(dtype, tokens=tokens)
        options = problem.options(HIDING[name])
        q, k, v = problem.arrays()
        out, lse = attend(q, k, v, **options)
        for b, length in enumerate(options["kv_lengths"]):
            one, keys = slice(b, b + 1), slice(0, length)
            part = part_of(entry_of(options, b), slice(None), keys, "end")
            del part["kv_lengths"]
            alone, alone_lse = attend(q[one], k[one, :, keys], v[one, :, keys], **part)
            assert_same_bits(out[one], alone, f"entry {b} of {tokens}")
            assert_same_bits(lse[one], alone_lse, f"lse of entry {b}")


def members_of(options: Options, n: int) -> Options:
    """Return the options of one member of a packed call."""
    return {"align": "end"} | entry_of(options, n)


@EACH_ISA
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PACKED)
def test_packed_is_separate(name: str, dtype: str, isa: str) -> None:
    """Each member has the rows that it has alone."""
    for queries, keys in (
        ([70, 0, 1, 5, 130], [70, 0, 1, 5, 130]),
        ([3, 66, 1, 2, 0, 40], [1100, 80, 30, 0, 7, 20]),
    ):
        check_packed(name, dtype, queries, keys)


def check_packed(name: str, dtype: str, queries: list[int], keys: list[int]) -> None:
    """Compare every member with a call of its own, for one and more threads."""
    count = len(queries)
    problem = Problem(dtype, count, tokens=(70, 100))
    options = problem.options(PACKED[name])
    q = make((1, 1), (sum(queries), 4, 12), dtype)
    k = make((1, 2), (sum(keys), 2, 12), dtype)
    v = make((1, 3), (sum(keys), 2, 9), dtype)
    offsets = [np.cumsum([0, *sizes]) for sizes in (queries, keys)]
    headway.set_num_threads(1)
    out, lse = headway.attention_varlen(q, k, v, *offsets, return_lse=True, **options)
    members = list(zip(*(pairwise(each.tolist()) for each in offsets), strict=True))
    for n, (rows, columns) in enumerate(members):
        arrays: list[Any] = [x[None, slice(*columns)] for x in (k, v)]
        own = members_of(options, n)
        alone, alone_lse = attend(q[None, slice(*rows)], *arrays, layout="BTHD", **own)
        found, found_lse = out[slice(*rows)], lse[:, slice(*rows)]
        assert_same_bits(found, alone[0], f"member {n}")
        assert_same_bits(found_lse, alone_lse[0], f"lse of member {n}")
    for threads in (2, 3):
        headway.set_num_threads(threads)
        assert_same_bits(headway.attention_varlen(q, k, v, *offsets, **options), out)
    check_neighbours((q, k, v), offsets, options, (out, lse))


def check_neighbours(
    arrays: tuple[Array, Array, Array],
    offsets: list[Array],
    options: Options,
    expected: tuple[Array, Array],
) -> None:
    """Fail unless every other member, turned into NaN, leaves the rest as it was."""
    for odd in (0, 1):
        q, k, v = (x.copy() for x in arrays)
        kept = np.zeros(len(q), bool)
        for n, (rows, columns) in enumerate(
            zip(*(pairwise(each.tolist()) for each in offsets), strict=True)
        ):
            if n % 2 == odd:
                kept[slice(*rows)] = True
            else:
                q[slice(*rows)] = np.nan
                k[slice(*columns)] = v[slice(*columns)] = np.nan
        out, lse = headway.attention_varlen(q, k, v, *offsets, return_lse=True, **options)
        assert_same_bits(out[kept], expected[0][kept], "beside members of NaN")
        assert_same_bits(lse[:, kept], expected[1][:, kept], "lse beside members of NaN")
