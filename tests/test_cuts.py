"""A row has the bits of the full prefill, however the work was cut and whatever went with it.

Each test computes a prefill in one thread from contiguous arrays, then asks for its rows again:
in random pieces, single queries among them, in random company, from random memory layouts, by 1
to 4 threads, with the lse and without, as entries of a batch and packed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from helpers import DTYPES, assert_same_bits, attend
from layouts import LAYOUTS, WRITABLE
from option_table import COMPANY, EACH_ISA, Options, Problem, part_of, starts_of

import headway

DROPOUT = {
    "dropout": ("dropout",),
    "dropout-and-all": ("dropout", "bool-mask", "window", "softcap", "alibi", "sinks"),
    "dropout-and-row-mask": ("dropout", "row-mask", "two-sided", "sinks", "all-keys"),
}
NAMES = {"scale": ("scale",)} | COMPANY | DROPOUT

#: (H, Hkv), (Tq, Tk), D, Dv: prefills and chunks over more than one span of 1,024 keys.
SIZES = [
    ((2, 1), (300, 1100), 16, 16),
    ((4, 1), (40, 1100), 64, 64),
    ((3, 3), (70, 2100), 33, 20),
    ((16, 2), (12, 1300), 40, 24),
    ((9, 1), (30, 1050), 24, 100),
    ((4, 2), (300, 300), 128, 128),
    ((6, 2), (9, 4200), 7, 13),
]
#: The layouts that keep the values.
LAYOUT_NAMES = [name for name in LAYOUTS if not name.startswith("broadcast")]

pytestmark = pytest.mark.usefixtures("any_threads")


def cuts(g: np.random.Generator, tokens: int, pieces: int) -> Iterator[slice]:
    """Yield some pieces of random sizes out of a cut of all tokens, short ones most often."""
    start = 0
    while start < tokens and pieces:
        size = int(g.choice([1, 1, 2, 3, 5, int(g.integers(4, 40)), tokens // 2 + 1]))
        rows = slice(start, min(start + size, tokens))
        skip = int(g.integers(0, 2 * tokens // pieces + 1)) if g.random() < 0.5 else 0
        start, pieces = rows.stop + skip, pieces - 1
        yield rows


def entries_of(options: Options, order: list[int]) -> Options:
    """Return the options of a call with these of the batch entries."""
    part = dict(options)
    if len(options.get("mask", ())) > 1:
        part["mask"] = options["mask"][order]
    if np.ndim(options.get("alibi_slopes")) == 2:
        part["alibi_slopes"] = options["alibi_slopes"][order]
    for name in ("kv_lengths", "align"):
        if isinstance(options.get(name), list):
            part[name] = [options[name][b] for b in order]
    return part


def company(g: np.random.Generator, batch: int, options: Options) -> tuple[list[int], list[bool]]:
    """Return entries in a random order and number, and which of them are full of NaN.

    With dropout an entry keeps its place: its bits depend on that.
    """
    if "dropout" in options:
        return list(range(batch)), [False] * batch
    order = [int(b) for b in g.integers(0, batch, int(g.integers(1, 4)))]
    return order, [bool(place and g.random() < 0.3) for place in range(len(order))]


def keys_so_far(options: Options, starts: list[int], rows: slice, keys: int) -> int:
    """Return how many keys there have to be: all, or with causality those up to the last query."""
    if not options.get("causal", True):
        return keys
    return min(max(1, *(start + rows.stop for start in starts)), keys)


def check(problem: Problem, names: tuple[str, ...], seed: int, pieces: int = 8) -> None:
    """Compare random pieces of a prefill with the whole."""
    g = np.random.default_rng(seed)
    options, arrays = problem.options(names), problem.arrays()
    headway.set_num_threads(1)
    expected, expected_lse = attend(*arrays, **options)
    starts, tokens = starts_of(problem.shape, options), problem.tokens
    for rows in cuts(g, tokens[0], pieces):
        keys = tokens[1]
        if g.random() < 0.5:  # as with a growing cache
            keys = keys_so_far(options, starts, rows, keys)
        part = part_of(options, rows, slice(0, keys), [start + rows.start for start in starts])
        if "kv_lengths" in part:
            part["kv_lengths"] = [min(n, keys) for n in part["kv_lengths"]]
        order, poisoned = company(g, problem.batch, options)
        part = entries_of(part, order)
        cut = [arrays[0][:, :, rows], *(x[:, :, :keys] for x in arrays[1:])]
        given = []
        for x in cut:
            x = x[order]
            x[poisoned] = np.nan
            given.append(LAYOUTS[str(g.choice(LAYOUT_NAMES))](x))
        count = int(g.integers(1, 5))
        headway.set_num_threads(count)
        asked: Options = {"return_lse": bool(g.random() < 0.5)}
        if g.random() < 0.5:
            empty = np.zeros((*given[0].shape[:3], problem.value_dim), expected.dtype)
            asked["out"] = LAYOUTS[str(g.choice(WRITABLE))](empty)
        found = headway.attention(*given, **asked, **part)
        out, lse = found if isinstance(found, tuple) else (found, None)
        what = f"queries {rows.start} to {rows.stop} of {tokens}, {order}, {count} threads"
        for place, b in enumerate(order):
            if poisoned[place]:
                continue
            assert_same_bits(out[place], expected[b, :, rows], what)
            if lse is not None:
                assert_same_bits(lse[place], expected_lse[b, :, rows], f"lse, {what}")


def sized(dtype: str, number: int, batch: int = 2) -> Problem:
    """Return the problem of one of the sizes."""
    heads, tokens, width, value_width = SIZES[number % len(SIZES)]
    return Problem(dtype, batch, heads, tokens, width, value_width)


@EACH_ISA
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_options(dtype: str, name: str, isa: str) -> None:
    """Every option in every dtype; the sizes take turns."""
    number = 3 * list(NAMES).index(name) + DTYPES.index(dtype) + headway.available_isas().index(isa)
    check(sized(dtype, number), NAMES[name], number)


@EACH_ISA
@pytest.mark.parametrize("number", range(len(SIZES)))
@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes(dtype: str, number: int, isa: str) -> None:
    """Every size in every dtype, without options."""
    check(sized(dtype, number), (), 100 + number, 12)


#: Sets of options that a packed call takes, by name.
PACKED = {
    name: names
    for name, names in NAMES.items()
    if not any("mask" in each or each in ("lengths", "dropout") for each in names)
} | {"many": ("two-sided", "softcap", "batch-alibi", "sinks", "all-keys", "entry-aligns")}


@EACH_ISA
@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("dtype", DTYPES)
def test_packed(dtype: str, name: str, isa: str) -> None:
    """Pieces of two prefills in one packed call, single queries among them, in any order."""
    number = list(PACKED).index(name) + DTYPES.index(dtype) + headway.available_isas().index(isa)
    problem, g = sized(dtype, number), np.random.default_rng(number)
    options, (q, k, v) = problem.options(PACKED[name]), problem.arrays()
    headway.set_num_threads(1)
    expected, expected_lse = attend(q, k, v, **options)
    starts = starts_of(problem.shape, options)
    members = [(b, rows) for b in range(2) for rows in cuts(g, problem.tokens[0], 5)]
    g.shuffle(members)
    order = [b for b, _ in members]
    keys = [keys_so_far(options, starts[b : b + 1], rows, problem.tokens[1]) for b, rows in members]
    part = entries_of(options, order)
    part["align"] = [starts[b] + rows.start for b, rows in members]
    packed_q = np.concatenate([q[b, :, rows].swapaxes(0, 1) for b, rows in members])
    packed_k, packed_v = (
        np.concatenate([x[b, :, :n].swapaxes(0, 1) for b, n in zip(order, keys, strict=True)])
        for x in (k, v)
    )
    ends = np.cumsum([0, *(rows.stop - rows.start for _, rows in members)])
    for count in (1, 3):
        headway.set_num_threads(count)
        given = packed_q, packed_k, packed_v, ends, np.cumsum([0, *keys])
        out, lse = headway.attention_varlen(*given, return_lse=True, **part)
        assert_same_bits(headway.attention_varlen(*given, **part), out, "without the lse")
        for (b, rows), start in zip(members, ends, strict=False):
            own = slice(start, start + rows.stop - rows.start)
            what = f"queries {rows.start} to {rows.stop} of entry {b}, {count} threads"
            assert_same_bits(out[own].swapaxes(0, 1), expected[b, :, rows], what)
            assert_same_bits(lse[:, own], expected_lse[b, :, rows], f"lse, {what}")
