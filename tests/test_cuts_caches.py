"""Decoding from a cache, token by token or in pieces, has the bits of one call on everything.

Every kind of cache in every dtype, 8 bits too; modules that are fed through one. The histories
cross the span of 1,024 keys.
"""

from __future__ import annotations

import numpy as np
import pytest
from cache_kinds import KINDS, QUANTISED, STORED, Sequences, full_call, source_of
from helpers import DTYPES, assert_same_bits, make
from module_helpers import CLASSES, Module, build
from option_table import EACH_ISA, Problem, part_of

import headway
from headway import KVCache

#: Sets of options that say the same of a history and of its end.
NAMES = {
    "plain": (),
    "window": ("window", "scale"),
    "shaped": ("softcap", "alibi", "sinks"),
    "bool-mask": ("bool-mask", "sinks"),
    "float-mask": ("float-mask", "two-sided", "batch-alibi"),
    "row-mask": ("row-mask", "softcap"),
}
#: (H, Hkv), D, Dv.
SIZES = [((2, 2), 32, 32), ((4, 1), 64, 64), ((6, 2), 17, 20), ((8, 1), 40, 24), ((9, 1), 16, 33)]

pytestmark = pytest.mark.usefixtures("any_threads")


#: Keys that are there before the first query is compared, and such queries.
PAST, QUERIES = 1000, 60


def pieces_of(g: np.random.Generator) -> list[slice]:
    """Return pieces of the queries, most often single ones."""
    pieces = [slice(0, 0)]
    while (start := pieces[-1].stop) < QUERIES:
        size = int(g.choice([1, 1, 1, 2, 3, 7, 20]))
        pieces.append(slice(start, min(start + size, QUERIES)))
    return pieces[1:]


@EACH_ISA
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", STORED)
def test_caches(dtype: str, kind: str, isa: str) -> None:
    """Keys and values appended and attended piece by piece; options and sizes take turns."""
    number = 5 * STORED.index(dtype) + KINDS.index(kind) + headway.available_isas().index(isa)
    g, tokens = np.random.default_rng(number), PAST + QUERIES
    heads, width, v_width = SIZES[number % len(SIZES)]
    problem = Problem(source_of(dtype), 2, heads, (QUERIES, tokens), width, v_width)
    options = problem.options(list(NAMES.values())[number % len(NAMES)])
    q, k, v = problem.arrays()
    headway.set_num_threads(1)
    expected, expected_lse = full_call(q, k, v, dtype, **options)
    sequences = Sequences(kind, tokens, (2, heads[1], width, v_width), dtype, used=False)
    sequences.append(k[:, :, :PAST], v[:, :, :PAST])
    for rows in pieces_of(g):
        new = slice(PAST + rows.start, PAST + rows.stop)
        sequences.append(k[:, :, new], v[:, :, new])
        headway.set_num_threads(int(g.integers(1, 4)))
        part = part_of(options, rows, slice(0, new.stop), "end")
        out, lse = sequences.attend(q[:, :, rows], **part)
        what = f"queries {rows.start} to {rows.stop}, {list(options)}"
        assert_same_bits(out, expected[:, :, rows], what)
        assert_same_bits(lse, expected_lse[:, :, rows], f"lse, {what}")


@EACH_ISA
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cls", CLASSES)
def test_modules(cls: type[Module], dtype: str, isa: str) -> None:
    """Projections, cache and attention: pieces of x give the rows of one call, also of 8 bits."""
    module, g = build(cls, dtype), np.random.default_rng(DTYPES.index(dtype))
    tokens = PAST + QUERIES
    x = make(5, (2, tokens, 6), dtype)
    headway.set_num_threads(1)
    for kind in (dtype, *(QUANTISED if dtype != "float64" else ())):
        sizes = 2, module.num_kv_heads, tokens, module.head_dim
        whole, pieces = (KVCache(*sizes, dtype=kind) for _ in "ab")
        expected = module(x) if kind == dtype else module(x, cache=whole)
        module(x[:, :PAST], cache=pieces)
        for rows in pieces_of(g):
            headway.set_num_threads(int(g.integers(1, 4)))
            new = slice(PAST + rows.start, PAST + rows.stop)
            found = module(x[:, new], cache=pieces)
            assert_same_bits(found, expected[:, new], f"{kind}, tokens {new.start} to {new.stop}")
