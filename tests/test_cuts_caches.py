"""Decoding from a cache, token by token or in pieces, has the bits of one call on everything.

Every kind of cache in every dtype, 8 bits too; modules that are fed through one. The histories
cross the span of 1,024 keys.
"""

from __future__ import annotations

import numpy as np
import pytest
from cache_kinds import KINDS, QUANTISED, STORED, Sequences, fed, full_call, source_of
from helpers import DTYPES, assert_same_bits, make
from module_helpers import CLASSES, Module, build
from option_table import EACH_ISA, Options, Problem, part_of

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


def pieces_of(g: np.random.Generator, tokens: int) -> list[int]:
    """Return sizes: a piece up to the last keys of the first span, then short ones."""
    pieces = [int(g.integers(1005, 1023))]
    while (left := tokens - sum(pieces)) > 0:
        pieces.append(min(left, int(g.choice([1, 1, 1, 2, 3, 7, 20]))))
    return pieces


@EACH_ISA
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", STORED)
def test_caches(dtype: str, kind: str, isa: str) -> None:
    """Keys and values appended and attended piece by piece; options and sizes take turns."""
    number = 5 * STORED.index(dtype) + KINDS.index(kind) + headway.available_isas().index(isa)
    g, tokens = np.random.default_rng(number), 1060
    heads, width, v_width = SIZES[number % len(SIZES)]
    problem = Problem(source_of(dtype), 2, heads, (tokens, tokens), width, v_width)
    options = problem.options(list(NAMES.values())[number % len(NAMES)])
    q, k, v = problem.arrays()
    headway.set_num_threads(1)
    whole = full_call(q, k, v, dtype, **options)
    sequences = Sequences(kind, tokens, (2, heads[1], width, v_width), dtype)

    def part(rows: slice) -> Options:
        headway.set_num_threads(int(g.integers(1, 4)))
        return part_of(options, rows, slice(0, rows.stop), "end")

    pieces = pieces_of(g, tokens)
    for found, expected, what in zip(
        fed(sequences, q, k, v, pieces, part), whole, ("out", "lse"), strict=True
    ):
        assert_same_bits(found, expected, f"{what}, {options.keys()}, pieces {pieces}")


@EACH_ISA
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cls", CLASSES)
def test_modules(cls: type[Module], dtype: str, isa: str) -> None:
    """Projections, cache and attention: pieces of x give the rows of one call, also of 8 bits."""
    module, g = build(cls, dtype), np.random.default_rng(DTYPES.index(dtype))
    x = make(5, (2, 1040, 6), dtype)
    headway.set_num_threads(1)
    for kind in (dtype, *(QUANTISED if dtype != "float64" else ())):
        caches = [KVCache(2, module.num_kv_heads, 1040, module.head_dim, dtype=kind) for _ in "ab"]
        expected = module(x) if kind == dtype else module(x, cache=caches[0])
        start = 0
        for size in pieces_of(g, 1040):
            headway.set_num_threads(int(g.integers(1, 4)))
            piece = slice(start, start + size)
            found = module(x[:, piece], cache=caches[1])
            assert_same_bits(found, expected[:, piece], f"{kind}, tokens {start} to {start + size}")
            start += size
