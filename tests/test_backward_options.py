"""Gradients against the reference: every option, every pair of them, many at once."""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from gradients import Step, check_step, named_gradients, step_of
from helpers import DTYPES, Array
from option_table import EACH_COUNT, EACH_ISA, OPTIONS, Problem
from pairwise import Row, all_pairs
from test_option_pairs import EXCLUDED

import headway

#: What a call may have besides options: fewer key heads, other forms, no gradient at the lse.
SHAPES = ("grouped", "layout", "packed", "no-lse")
FEATURES = (*OPTIONS, *SHAPES)
PAIRS = [
    pair for pair in combinations(FEATURES, 2) if not any(set(pair) <= group for group in EXCLUDED)
]
#: (Tq, Tk): a prefill of more than one tile, a chunk, one query, queries before the first key.
TOKENS = [(65, 100), (3, 100), (1, 70), (90, 33)]


def check_features(
    names: Collection[str], dtype: str, tokens: tuple[int, int], seed: int, **sizes: int
) -> None:
    """Compare a step that has all these features; an odd seed gives 16 bits a wide output."""
    heads = (4, 2) if "grouped" in names else (2, 2)
    sizes = {"head_dim": 12, "value_dim": 9} | sizes
    problem = Problem(dtype, heads=heads, tokens=tokens, seed=seed, **sizes)
    options = tuple(name for name in OPTIONS if name in names)
    step = step_of(problem, options, wide=seed % 2 > 0, lse="no-lse" not in names)
    if "packed" in names:
        found = packed_gradients(step)
    else:
        found = swapped_gradients(step) if "layout" in names else step.backward()
    check_step(step, found, f"{dtype}, {tokens}")


def swapped_gradients(step: Step) -> dict[str, Array]:
    """Return the gradients of the same step in the layout "BTHD", seen in "BHTD"."""
    *arrays, lse = step.arrays
    arrays = [x.swapaxes(1, 2).copy() for x in arrays]
    options = step.options | {"layout": "BTHD"}
    found = named_gradients(headway.attention_backward, (*arrays, lse), options, step.grad_lse)
    for name in ("dq", "dk", "dv"):
        assert found[name].flags.c_contiguous
        found[name] = found[name].swapaxes(1, 2)
    return found


def packed_gradients(step: Step) -> dict[str, Array]:
    """Return the gradients of a packed call whose sequences are the batch entries."""
    *arrays, lse = step.arrays
    batch, tq, tk = len(step.q), step.q.shape[2], step.k.shape[2]
    grad_out, q, k, v, out = (x.swapaxes(1, 2).reshape(-1, x.shape[1], x.shape[3]) for x in arrays)

    def rows(x: Array) -> Array:
        return x.swapaxes(0, 1).reshape(x.shape[1], -1)

    found = named_gradients(
        headway.attention_varlen_backward,
        (grad_out, q, k, v, out, rows(lse), *(np.arange(batch + 1) * n for n in (tq, tk))),
        step.options,
        None if step.grad_lse is None else rows(step.grad_lse),
    )
    for name, x in (("dq", step.q), ("dk", step.k), ("dv", step.v)):
        heads, width = x.shape[1::2]
        found[name] = found[name].reshape(batch, -1, heads, width).swapaxes(1, 2)
    return found


@EACH_ISA
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["plain", *FEATURES])
def test_each(name: str, dtype: str, isa: str, some_threads: int) -> None:
    """Each feature alone, with shared key heads, in every dtype."""
    for tokens in TOKENS:
        check_features({name, "grouped"}, dtype, tokens, some_threads)


# The pair is the outermost loop, so that its problems are made once and then forgotten.
@EACH_ISA
@pytest.mark.parametrize("pair", PAIRS, ids=["+".join(pair) for pair in PAIRS])
def test_pair(pair: tuple[str, str], isa: str, some_threads: int) -> None:
    """Two features at once; the dtypes take turns."""
    number = PAIRS.index(pair)
    dtype = DTYPES[(number // 2 + headway.available_isas().index(isa)) % 4]
    check_features(pair, dtype, TOKENS[number % 2], number)


MANY: dict[str, tuple[Any, ...]] = {
    "mask": (None, "bool-mask", "padding-mask", "float-mask", "row-mask"),
    "align": (None, "start", "int-align", "entry-aligns"),
    "window": (None, "window", "two-sided"),
    "slopes": (None, "alibi", "batch-alibi"),
    "softcap": (None, "softcap"),
    "sinks": (None, "sinks"),
    "lengths": (None, "lengths"),
    "causal": (None, "all-keys"),
    "scale": (None, "scale"),
    "heads": ("grouped", None),
    "lse": (None, "no-lse"),
    "layout": (None, "layout"),
    "dtype": DTYPES,
    "tokens": (*TOKENS, (70, 150)),
    "head_dim": (8, 1, 17, 64),
    "value_dim": (8, 33, 1),
}
ROWS = all_pairs(MANY)


@EACH_COUNT
@EACH_ISA
@pytest.mark.parametrize("row", ROWS, ids=[str(n) for n in range(len(ROWS))])
def test_many(row: Row, isa: str, threads: int) -> None:
    """Few combinations of many in which any two choices meet."""
    *names, dtype, tokens, head_dim, value_dim = row.values()
    features = {name for name in names if name is not None}
    check_features(
        *(features, dtype, tokens, ROWS.index(row)), head_dim=head_dim, value_dim=value_dim
    )


def test_all_pairs_are_there() -> None:
    """So many there are of these features, less those that cannot be asked for at once."""
    assert len(FEATURES) == 21
    assert len(PAIRS) == 21 * 20 // 2 - 6 - 1 - 1 - 3 - 6
