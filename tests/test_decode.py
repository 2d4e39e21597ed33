"""One query for each sequence, and 2 to 8: every size and option against the reference."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from helpers import (
    DTYPES,
    HALF,
    LSE_TOLERANCE,
    TOLERANCE,
    Array,
    assert_close,
    assert_same_bits,
    attend,
    dtype_of,
    lse_dtype,
    make,
    make_qkv,
    probe,
    reference,
    wide_tolerance,
)
from option_table import EACH_COUNT, EACH_ISA, HIDING, OPTIONS, Problem
from poisons import check_nan

QUERIES = (1, 2, 3, 4, 5, 6, 7, 8)
GROUPS = (1, 2, 3, 4, 7, 8, 9, 16, 33)
LENGTHS = (0, 1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 1023, 1024, 1025, 2049, 5000)
#: Every option alone, and sets of several.
SETS = {name: (name,) for name in OPTIONS} | {
    name: names for name, names in HIDING.items() if len(names) > 1
}

Names = tuple[str, ...]

# What shares its references is the outermost loop, so that they are computed once.
EACH_DTYPE = pytest.mark.parametrize("dtype", DTYPES)


@lru_cache(maxsize=1024)
def expected_of(problem: Problem, names: Names) -> tuple[Array, Array]:
    """Return the reference's out and lse: the numbers are the same in every dtype."""
    return reference(*problem.arrays(), **problem.options(names))


def check(problem: Problem, names: Names = ()) -> None:
    """Compare out and lse with the reference."""
    what, dtype = f"{problem}, {names}", problem.dtype
    expected, expected_lse = expected_of(replace(problem, dtype="float64"), names)
    out, lse = attend(*problem.arrays(), **problem.options(names))
    assert out.dtype == dtype_of(dtype)
    assert lse.dtype == lse_dtype(dtype)
    assert_close(out, expected, TOLERANCE[dtype], what)
    assert_close(lse, expected_lse, LSE_TOLERANCE[dtype], f"lse of {what}")


@EACH_ISA
@EACH_DTYPE
@pytest.mark.parametrize("group", GROUPS)
def test_group_sizes(group: int, dtype: str, isa: str, some_threads: int) -> None:
    """Query heads that share a key head, for one query and a few."""
    for queries in (1, 2, 7):
        check(Problem(dtype, heads=(2 * group, 2), tokens=(queries, 161), head_dim=24))


@EACH_COUNT
@EACH_ISA
@EACH_DTYPE
@pytest.mark.parametrize("first", range(1, 301, 60))
def test_every_head_dim(first: int, dtype: str, isa: str, threads: int) -> None:
    """D from 1 to 300, and as many widths of the values in another order."""
    for d in range(first, first + 60, 1 if threads == 1 else 7):
        wide = 1 + 53 * d % 300
        queries = 1 if d % 3 else 2 + d // 3 % 7
        check(Problem(dtype, 1, (6, 2), (queries, 37), head_dim=d, value_dim=wide))


@EACH_ISA
@EACH_DTYPE
@pytest.mark.parametrize(
    ("group", "head_dim"), [(1, 128), (3, 64), (4, 128), (5, 80), (6, 96), (8, 256)]
)
def test_usual_head_dims(
    group: int, head_dim: int, dtype: str, isa: str, some_threads: int
) -> None:
    """Widths of real models, over more keys than a span has."""
    for queries in (1, 4):
        check(Problem(dtype, 1, (group, 1), (queries, 1100), head_dim, value_dim=head_dim))


@EACH_ISA
@EACH_DTYPE
@pytest.mark.parametrize("keys", LENGTHS)
def test_key_lengths(keys: int, dtype: str, isa: str, some_threads: int) -> None:
    """From no key at all to many spans, for one query and a few."""
    few = 2 + LENGTHS.index(keys) % 7
    for queries, heads in ((1, (2, 2)), (1, (4, 1)), (few, (3, 1))):
        check(Problem(dtype, 2, heads, (queries, keys), head_dim=16, value_dim=20))


@EACH_ISA
@EACH_DTYPE
@pytest.mark.parametrize("name", SETS)
def test_options(name: str, dtype: str, isa: str, some_threads: int) -> None:
    """Every option, and those that hide keys together, over few keys and over several spans."""
    for tokens in ((1, 150), (1, 2300), (3, 1100)):
        check(Problem(dtype, heads=(3, 1), tokens=tokens), SETS[name])


@EACH_DTYPE
def test_probe(dtype: str, isa: str, threads: int) -> None:
    """The mean of the visible key numbers, exact by hand."""
    for keys in (1, 5, 64, 200):
        for queries in (n for n in QUERIES if n <= keys):
            seen = np.arange(keys - queries + 1, keys + 1)
            mean, count = probe(queries, keys, dtype)
            np.testing.assert_allclose(mean, (seen - 1) / 2, rtol=TOLERANCE[dtype])
            np.testing.assert_allclose(count, seen, rtol=2e-5)
            mean, count = probe(queries, keys, dtype, window=3)
            first = np.maximum(seen - 3, 0)
            np.testing.assert_allclose(mean, (first + seen - 1) / 2, rtol=TOLERANCE[dtype])
            np.testing.assert_allclose(count, np.minimum(seen, 3), rtol=2e-5)


@pytest.mark.parametrize("dtype", HALF)
def test_result_unrounded(dtype: str, isa: str, threads: int) -> None:
    """out= in float32 takes the result before its rounding."""
    for queries in (1, 2, 8):
        q, k, v = make_qkv(1, dtype, batch=2, heads=(6, 2), tokens=(queries, 1500), head_dim=24)
        wide = np.full(q.shape, np.nan, np.float32)
        lse = attend(q, k, v, out=wide)[1]
        assert_close(wide, reference(q, k, v)[0], wide_tolerance(dtype))
        rounded, rounded_lse = attend(q, k, v)
        assert_same_bits(wide.astype(q.dtype), rounded)
        assert_same_bits(lse, rounded_lse, "lse")


@pytest.mark.parametrize("order", ["rising", "falling", "mixed", "first", "last", "equal"])
@EACH_DTYPE
def test_huge_scores(dtype: str, order: str, isa: str, some_threads: int) -> None:
    """Whole numbers up to 127 times a power of two for each head: the differences are exact."""
    keys = 2500
    numbers = np.random.default_rng(3).integers(-127, 128, keys)
    if order in ("rising", "falling"):
        numbers = np.sort(numbers)[:: 1 if order == "rising" else -1]
    elif order != "mixed":
        numbers[:] = -127 if order != "equal" else 99
        numbers[0 if order == "first" else -1] = 126 if order != "equal" else 99
    powers = 2.0 ** np.arange(-4, 12, 2) * (1, 1, -1, 1, 1, -1, -1, 1)
    k = np.broadcast_to(numbers[:, None], (1, 2, keys, 1)).astype(dtype_of(dtype))
    v = make(7, (1, 2, keys, 5), dtype)
    for queries in (1, 4):
        q = np.broadcast_to(powers[:, None, None], (1, 8, queries, 1)).astype(dtype_of(dtype))
        out, lse = attend(q, k, v, scale=1.0)
        expected, expected_lse = reference(q, k, v, scale=1.0)
        for h in range(8):
            what = f"head {h}, {queries} queries"
            assert_close(out[:, h], expected[:, h], TOLERANCE[dtype], what)
            assert_close(lse[:, h], expected_lse[:, h], LSE_TOLERANCE[dtype], f"lse of {what}")


@EACH_DTYPE
def test_nan_that_is_visible(dtype: str, isa: str, threads: int) -> None:
    """In a key: the rows of its group that see it. In a value: its column. In a query: its row."""
    q, k, v = make_qkv(2, dtype, batch=2, heads=(6, 2), tokens=(3, 2100), head_dim=12)
    for queries in (q, q[:, :, 2:]):
        rows = queries.shape[2]
        clean, clean_lse = attend(queries, k, v)
        for j in (0, 1024, 2098, 2099):
            sees = j <= 2100 - rows + np.arange(rows)
            bad = k.copy()
            bad[1, 1, j, 5] = np.nan
            where = np.zeros(clean.shape, bool)
            where[1, 3:] = sees[:, None]
            out, lse = attend(queries, bad, v)
            check_nan(out, clean, where, f"key {j}, {rows} queries")
            check_nan(lse, clean_lse, where[..., 0], f"lse, key {j}, {rows} queries")
            bad = v.copy()
            bad[0, 0, j, 7] = np.nan
            where = np.zeros(clean.shape, bool)
            where[0, :3, :, 7] = sees
            out, lse = attend(queries, k, bad)
            check_nan(out, clean, where, f"value {j}, {rows} queries")
            assert_same_bits(lse, clean_lse, "lse")
        for h in (0, 4):
            bad = queries.copy()
            bad[1, h, 0, 11] = np.nan
            where = np.zeros(clean.shape, bool)
            where[1, h, 0] = True
            check_nan(attend(bad, k, v)[0], clean, where, f"query of head {h}, {rows} queries")


@EACH_DTYPE
def test_infinities(dtype: str, isa: str, threads: int) -> None:
    """A key of inf takes all the weight and is NaN, one of -inf has none; and inf as a value."""
    q, k, v = make_qkv(4, dtype, heads=(4, 2), tokens=(3, 1200), head_dim=6)
    q = np.abs(q) + np.ones_like(q)
    for number in (np.inf, -np.inf):
        for j in (3, 700, 1199):
            for which in (1, 2):
                arrays = [x.copy() for x in (q, k, v)]
                arrays[which][0, 1, j, 2] = number
                for queries in (3, 1):
                    arrays[0] = q[:, :, 3 - queries :]
                    out, lse = attend(*arrays)
                    expected, expected_lse = reference(*arrays)
                    what = f"{number} in {'qkv'[which]}, {j}, {queries} queries"
                    assert_close(out, expected, TOLERANCE[dtype], what)
                    assert_close(lse, expected_lse, LSE_TOLERANCE[dtype], f"lse of {what}")


@EACH_DTYPE
def test_empty_rows(dtype: str, isa: str, threads: int) -> None:
    """Exactly 0, the lse -inf or the sink; beside rows that see something."""
    sinks = np.array([1.5, -2, 0, 7], np.float32)
    for queries in (1, 3):
        q, k, v = make_qkv(5, dtype, batch=2, heads=(4, 2), tokens=(queries, 1300), head_dim=10)
        mask = np.ones((2, 4, queries, 1300), bool)
        mask[0, 1] = mask[1, :, -1] = False
        bias = np.where(mask, 0, -np.inf).astype(np.float32)
        for options in (
            {"kv_lengths": [0, 1300]},
            {"kv_lengths": [1040, 0], "causal": False},
            {"mask": mask},
            {"mask": bias},
            {"mask": mask[:, :, :, :1], "window": 40},
            {"window": 5, "align": [1300 + 5, 1300 - queries]},
            {"align": [-queries, 9]},
        ):
            for company in ({}, {"sinks": sinks}):
                out, lse = attend(q, k, v, **options, **company)
                expected, expected_lse = reference(q, k, v, **options, **company)
                alone = np.isin(expected_lse, sinks if company else -np.inf)
                assert alone.any()
                assert not alone.all()
                assert not out[alone].any()
                assert_same_bits(lse[alone], expected_lse[alone].astype(lse.dtype), "lse")
                assert_close(out, expected, TOLERANCE[dtype], f"{queries} queries")
                assert_close(lse, expected_lse, LSE_TOLERANCE[dtype], "lse")
        out, lse = attend(q, k[:, :, :0], v[:, :, :0])
        assert not out.any()
        assert (lse == -np.inf).all()
