"""Every pair of choices of cache, dtype, instruction set and options, against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cache_kinds import (
    KINDS,
    QUANTISED,
    STORED,
    Direct,
    Sequences,
    as_stored,
    fed,
    feed_randomly,
    full_call,
    source_of,
)
from helpers import (
    LSE_TOLERANCE,
    TOLERANCE,
    Array,
    assert_close,
    assert_same_bits,
    attend,
    dtype_of,
    reference,
    using,
    wide_tolerance,
)
from layouts import step_two
from option_table import COMPANY, OPTIONS, Options, Problem, part_of
from pairwise import Row, all_pairs

import headway
from headway import KVCache

#: A window and a capacity: 150 tokens wrap twice, pieces of 25 fit.
WINDOW, CAPACITY = 40, 64

CHOICES = {
    "kind": (*KINDS, "wrapped"),
    "dtype": STORED,
    "isa": tuple(headway.available_isas()),
    "threads": (1, 2),
    "queries": (1, 2, 5),
    "group": (1, 3, 4),
    "ragged": (False, True),
    "mask": (None, "bool-mask", "padding-mask", "float-mask", "row-mask"),
    "window": (None, "window", "two-sided"),
    "alibi": (None, "alibi", "batch-alibi"),
    "align": (None, "start", "int-align", "entry-aligns"),
    "softcap": (None, "softcap"),
    "sinks": (None, "sinks"),
    "all-keys": (None, "all-keys"),
    "scale": (None, "scale"),
    "layout": ("BHTD", "BTHD"),
    "out": (None, "out", "wide-out"),
    "lse": (False, True),
}
ROWS = all_pairs(CHOICES)


def filled_cache(kind: str, dtype: str, k: Array, v: Array, lengths: list[int]) -> Direct:
    """Return a cache with these tokens, appended in pieces of up to 23."""
    batch, heads, tokens, width = k.shape
    if kind == "wrapped":
        sizes = {"v_head_dim": v.shape[3], "window": WINDOW}
        found = Direct(KVCache(batch, heads, CAPACITY, width, dtype=dtype, **sizes))
    else:
        found = Sequences(kind, tokens, (batch, heads, width, v.shape[3]), dtype)
    feed_randomly(found, k, v, lengths, 23, seed=tokens)
    return found


@pytest.mark.parametrize("tokens", [150, 1100])
@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
def test_row(row: Row, tokens: int) -> None:
    """The result and the lse; and the bits of the same call without a cache."""
    wrapped, dtype = row["kind"] == "wrapped", row["dtype"]
    sizes = {"batch": 3, "heads": (2 * row["group"], 2), "tokens": (row["queries"], tokens)}
    problem = Problem(source_of(dtype), **sizes, seed=ROWS.index(row))
    names = [row[name] for name in CHOICES if row[name] in OPTIONS]
    if wrapped:  # at other places a query would see keys that are overwritten
        names = [name for name in names if name != row["align"]]
    options = dict(problem.options(names))
    if wrapped and row["window"]:
        options["window"] = WINDOW - 9 if row["window"] == "window" else (17, 3)
    q, k, v = problem.arrays()
    lengths = [tokens, tokens // 3, tokens - 1] if row["ragged"] else [tokens] * 3
    with using(row["isa"], row["threads"]):
        cache = filled_cache(row["kind"], dtype, k, v, lengths)
        found = called(row, cache, q, options)
        if wrapped and not row["window"]:
            options["window"] = (WINDOW - 1, -1)
        if dtype in QUANTISED:
            same = filled_cache("plain", dtype, k, v, lengths).attend(q, **options)
        else:
            same = attend(q, k, v, kv_lengths=lengths, **options)
    expected = reference(q, *as_stored(dtype, k, v), kv_lengths=lengths, **options)
    wide = row["out"] == "wide-out" and row["dtype"] != "float64"
    allowed = wide_tolerance(q.dtype.name) if wide else TOLERANCE[q.dtype.name]
    if wide and row["isa"] in ("avx512bf16", "amx"):
        allowed = max(allowed, 2.0**-8 if dtype == "bfloat16" else 0)
    assert_close(found[0], expected[0], allowed, str(row))
    if not wide:
        assert_same_bits(found[0], same[0], str(row))
    if found[1] is not None:
        assert_close(found[1], expected[1], LSE_TOLERANCE[q.dtype.name], f"lse of {row}")
        assert_same_bits(found[1], same[1], f"lse of {row}")


def called(row: Row, cache: Direct, q: Array, options: Options) -> tuple[Array, Array | None]:
    """Call attend as the row says; return the result in the order (B, H, Tq, Dv)."""
    swapped = row["layout"] == "BTHD"
    shape = (*q.shape[:3], 9)
    out: Array | None = None
    if row["out"] == "out":
        out = step_two(np.full(shape, np.nan).astype(q.dtype))
    elif row["out"] == "wide-out":
        kind = np.float64 if q.dtype == np.float64 else np.float32
        out = np.full(shape, np.nan, kind)
    given: dict[str, Any] = {"layout": row["layout"], "return_lse": row["lse"], **options}
    if out is not None:
        given["out"] = out.swapaxes(1, 2) if swapped else out
    before = () if cache.ids is None else (cache.ids,)
    result = cache.cache.attend(*before, q.swapaxes(1, 2) if swapped else q, **given)
    result, lse = result if row["lse"] else (result, None)
    if out is not None:
        assert result is given["out"]
    else:
        assert result.dtype == q.dtype
        assert result.flags.c_contiguous
    return (result.swapaxes(1, 2) if swapped else result), lse


def test_all_pairs_are_there() -> None:
    """Any two choices of different columns meet in some row."""
    names = list(CHOICES)
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            met = {(row[first], row[second]) for row in ROWS}
            assert len(met) == len(CHOICES[first]) * len(CHOICES[second]), (first, second)


#: Options that a sequence can be fed with: no query sees a key that comes later.
FED = {
    name: names
    for name, names in COMPANY.items()
    if not set(names) & {"lengths", "all-keys", "int-align", "entry-aligns", "two-sided"}
} | {"many": ("bool-mask", "window", "softcap", "batch-alibi", "sinks", "scale")}


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("name", FED)
def test_fed_in_pieces(name: str, dtype: str, isa: str) -> None:
    """With options, pieces of 2 tokens and more have the bits of one call over all."""
    problem = Problem(source_of(dtype), tokens=(66, 66))
    options, (q, k, v) = problem.options(FED[name]), problem.arrays()
    whole = full_call(q, k, v, dtype, **options)
    pieces = [40, 1, 3, 1, 1, 2, 18]
    single = np.repeat(np.array(pieces) == 1, pieces)
    for kind in ("plain", "ring", "paged-4"):
        sequences = Sequences(kind, 66, (2, 2, 12, 9), dtype)
        found = fed(
            *(sequences, q, k, v, pieces),
            lambda rows: part_of(options, rows, slice(0, rows.stop), "end"),
        )
        for got, expected, allowed in zip(found, whole, (TOLERANCE, LSE_TOLERANCE), strict=True):
            assert_same_bits(got[:, :, ~single], expected[:, :, ~single], kind)
            wide = expected.astype(np.float64)
            assert_close(got, wide, allowed[source_of(dtype)], kind)


@pytest.mark.parametrize("dtype", QUANTISED)
def test_queries_of_16_bits(dtype: str, isa: str, threads: int) -> None:
    """Queries of an 8-bit cache may be of 16 bits, and so is the result; or float32 by `out`."""
    for name in ("float16", "bfloat16"):
        problem = Problem(name, tokens=(3, 150))
        q, k, v = problem.arrays()
        cache = filled_cache("plain", dtype, k, v, [150, 90])
        expected = reference(q, *as_stored(dtype, k, v), kv_lengths=[150, 90])
        out, lse = cache.attend(q)
        assert out.dtype == dtype_of(name)
        assert lse.dtype == np.float32
        assert_close(out, expected[0], TOLERANCE[name], name)
        assert_close(lse, expected[1], LSE_TOLERANCE["float32"], f"lse, {name}")
        wide = np.full(out.shape, np.nan, np.float32)
        cache.attend(q, out=wide)
        assert_close(wide, expected[0], TOLERANCE["float32"], f"{name}, unrounded")
        assert_same_bits(wide.astype(out.dtype), out, name)
