"""Gradients to the bit, however the queries were cut and whatever went with them.

The gradient of a query depends on that query and on the keys that it sees; those of keys and
values are sums over the queries of the call, in their order, whatever lies beside them.
"""

from __future__ import annotations

import numpy as np
import pytest
from gradients import NAMES as GRADIENTS
from gradients import Step
from helpers import DTYPES, assert_same_bits, attend, make
from layouts import LAYOUTS
from option_table import EACH_ISA, Options, part_of, starts_of
from test_cuts import LAYOUT_NAMES, NAMES, company, cuts, entries_of, keys_so_far, sized

import headway

pytestmark = pytest.mark.usefixtures("any_threads")

OF_QUERIES = ("q", "out", "lse", "grad_out", "grad_lse")


def step_of(number: int, dtype: str, names: tuple[str, ...]) -> tuple[Step, Options]:
    """Return a step on this instruction set, and its options."""
    problem = sized(dtype, number)
    options, (q, k, v) = problem.options(names), problem.arrays()
    out, lse = attend(q, k, v, **options)
    grad_out = problem.numbers(11, out.shape)
    grad_lse = make((number, 12), lse.shape).astype(lse.dtype)
    return Step(q, k, v, out, lse, grad_out, grad_lse, options), options


@EACH_ISA
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_options(dtype: str, name: str, isa: str) -> None:
    """Every option in every dtype: pieces of the queries, entries of the batch."""
    number = list(NAMES).index(name) + DTYPES.index(dtype) + headway.available_isas().index(isa)
    g = np.random.default_rng(number)
    headway.set_num_threads(1)
    step, options = step_of(number, dtype, NAMES[name])
    expected = step.backward()
    bare = headway.attention_backward(*step.arrays, grad_lse=step.grad_lse, **options)
    for gradient, x in zip(GRADIENTS, bare, strict=True):
        assert_same_bits(x, expected[gradient], f"{gradient}, asked for alone")
    starts = starts_of((*step.q.shape[:3], step.k.shape[2]), options)
    whole = slice(0, step.q.shape[2])
    for rows in [whole, *cuts(g, whole.stop, 3)]:
        keys = step.k.shape[2]
        if rows != whole and g.random() < 0.5:
            keys = keys_so_far(options, starts, rows, keys)
        part = part_of(options, rows, slice(0, keys), [start + rows.start for start in starts])
        if "kv_lengths" in part:
            part["kv_lengths"] = [min(n, keys) for n in part["kv_lengths"]]
        order, poisoned = company(g, len(step.q), options)
        given = {}
        for field in (*OF_QUERIES, "k", "v"):
            x = getattr(step, field)
            x = (x[:, :, rows] if field in OF_QUERIES else x[:, :, :keys])[order]
            if "lse" not in field:
                x[poisoned] = np.nan
                x = LAYOUTS[str(g.choice(LAYOUT_NAMES))](x)
            given[field] = x
        headway.set_num_threads(int(g.integers(1, 5)))
        found = step.changed(**given, options=entries_of(part, order)).backward()
        for place, b in enumerate(order):
            for gradient in GRADIENTS if rows == whole else ("dq",):
                wanted = expected[gradient][b]
                if not poisoned[place]:
                    what = f"{gradient}, queries {rows.start} to {rows.stop}, {order}"
                    wanted = wanted[:, rows] if gradient == "dq" else wanted
                    assert_same_bits(found[gradient][place], wanted, what)
