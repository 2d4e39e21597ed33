"""Packed gradients: each sequence as it is alone, to the bit, whatever lies beside it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from gradients import NAMES, Step, named_gradients, step_of
from helpers import DTYPES, Array, assert_close, assert_same_bits, make
from layouts import step_two
from option_table import EACH_ISA, Problem
from poisons import POISONS, poison

import headway

#: Tokens of the sequences: queries, and the keys of each.
SIZES_Q = (70, 3, 0, 130, 1, 0, 40)
SIZES_K = (70, 0, 5, 150, 90, 0, 33)
CU_Q, CU_K = (np.cumsum([0, *sizes]) for sizes in (SIZES_Q, SIZES_K))

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "all-keys": {"causal": False},
    "start": {"align": "start"},
    "aligns": {"align": [0, 3, 1, -2, 50, 9, 10]},
    "window": {"window": 20, "scale": 0.4},
    "two-sided": {"window": (11, 6), "causal": False},
    "many": {
        "window": 33,
        "softcap": 1.5,
        "sinks": np.array([0.5, -np.inf, 2.0, -1.0]),
        "alibi_slopes": np.abs(make(40, (len(SIZES_Q), 4))),
    },
}

pytestmark = [EACH_ISA, pytest.mark.usefixtures("any_threads")]


def packed(dtype: str, name: str) -> tuple[tuple[Array, ...], Array, dict[str, Any]]:
    """Return the arrays of a packed step, grad_lse and the options."""
    problem = Problem(dtype, 1, tokens=(int(CU_Q[-1]), int(CU_K[-1])), head_dim=20)
    step = step_of(problem)
    grad_out, q, k, v, _, _ = (
        np.ascontiguousarray(x[0].swapaxes(0, 1)) for x in (*step.arrays[:5], step.q)
    )
    options = OPTIONS[name]
    out, lse = headway.attention_varlen(q, k, v, CU_Q, CU_K, return_lse=True, **options)
    grad_lse = make(41, lse.shape).astype(lse.dtype)
    return (grad_out, q, k, v, out, lse), grad_lse, options


def backward(arrays: Any, grad_lse: Array | None, options: dict[str, Any]) -> dict[str, Array]:
    """Return the gradients by name."""
    given = *arrays, CU_Q, CU_K
    return named_gradients(headway.attention_varlen_backward, given, options, grad_lse)


def alone(n: int, arrays: Any, grad_lse: Array, options: dict[str, Any]) -> Step:
    """Return the step of one sequence, in the layout "BTHD" seen in "BHTD"."""
    rows, columns = slice(*CU_Q[n : n + 2]), slice(*CU_K[n : n + 2])
    own = dict(options)
    if "alibi_slopes" in own:
        own["alibi_slopes"] = own["alibi_slopes"][n]
    if isinstance(own.get("align"), list):
        own["align"] = own["align"][n]
    grad_out, q, k, v, out, lse = arrays
    cut = [x[rows].swapaxes(0, 1)[None] for x in (q, out, grad_out)]
    keys = [x[columns].swapaxes(0, 1)[None] for x in (k, v)]
    return Step(cut[0], *keys, cut[1], lse[None, :, rows], cut[2], grad_lse[None, :, rows], own)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_each_sequence_alone(dtype: str, name: str, isa: str) -> None:
    """dq, dk and dv to the bit, with any number of threads; dsinks is the sum."""
    headway.set_num_threads(1)
    arrays, grad_lse, options = packed(dtype, name)
    got = backward(arrays, grad_lse, options)
    sums = np.zeros(4)
    for n, (rows, columns) in enumerate(zip(pairwise(CU_Q), pairwise(CU_K), strict=True)):
        own = alone(n, arrays, grad_lse, options).backward()
        for part, cut in zip(NAMES, (rows, columns, columns), strict=True):
            found = got[part][slice(*cut)].swapaxes(0, 1)
            assert_same_bits(found, own[part][0], f"{part} of sequence {n}")
        sums += own.get("dsinks", np.zeros(4))
    if "dsinks" in got:
        assert_close(got["dsinks"], sums, 1e-12 if dtype == "float64" else 2e-5, "dsinks")
    for part in NAMES:
        assert got[part].flags.c_contiguous
    for count in (2, 3):
        headway.set_num_threads(count)
        for part, x in backward(arrays, grad_lse, options).items():
            assert_same_bits(x, got[part], f"{part}, {count} threads")


@pytest.mark.parametrize("name", ["plain", "two-sided", "many"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_neighbours(dtype: str, name: str, isa: str) -> None:
    """Whatever stands in the other sequences changes no bit."""
    arrays, grad_lse, options = packed(dtype, name)
    expected = backward(arrays, grad_lse, options)
    for kind, n in zip(POISONS, (0, 3, 3, 4, 6), strict=True):
        rows, columns = slice(*CU_Q[n : n + 2]), slice(*CU_K[n : n + 2])
        changed = [x.copy() for x in arrays]
        for x, cut in zip(changed[:5], (rows, rows, columns, columns, rows), strict=True):
            poison(x[cut], kind)
        got = backward(changed, grad_lse, options)
        for part, cut in zip(NAMES, (rows, columns, columns), strict=True):
            kept = np.ones(len(got[part]), bool)
            kept[cut] = False
            assert_same_bits(got[part][kept], expected[part][kept], f"{part}, {kind} in {n}")


@pytest.mark.parametrize("dtype", DTYPES)
def test_against_the_reference(dtype: str, isa: str) -> None:
    """The reference packs, too; strided arrays and offsets of any integer dtype."""
    for name in ("plain", "aligns", "many"):
        arrays, grad_lse, options = packed(dtype, name)
        wide = [x.astype(np.float64) for x in arrays]
        expected = named_gradients(
            headway.reference.attention_varlen_backward,
            (*wide, CU_Q.tolist(), CU_K.astype(np.uint16)),
            options,
            grad_lse.astype(np.float64),
        )
        got = backward([step_two(x) for x in arrays], step_two(grad_lse), options)
        same = backward(arrays, grad_lse, options)
        for part, x in got.items():
            allowed = {"float64": 1e-12, "float32": 3e-5}.get(x.dtype.name, 2.0**-5)
            assert_same_bits(x, same[part], f"{part} of strided arrays, {name}")
            if dtype == "float16" and part in NAMES:
                allowed = 2.0**-8
            elif dtype != "float64" and part == "dsinks":
                allowed = 2.0**-8 if dtype == "bfloat16" else 2e-5
            assert_close(x, expected[part], allowed, f"{part}, {name}")


@pytest.mark.parametrize("module", [headway, headway.reference], ids=["headway", "reference"])
def test_nothing_at_all(module: Any, isa: str) -> None:
    """No sequence, no query, no key, no head, no column."""
    for queries, keys, cu_q, cu_k, heads, width in (
        (0, 0, [0], [0], 4, 6),
        (0, 3, [0, 0], [0, 3], 4, 6),
        (3, 0, [0, 3], [0, 0], 4, 6),
        (5, 5, [0, 5], [0, 5], 0, 6),
        (5, 5, [0, 5], [0, 5], 4, 0),
    ):
        q, k = np.ones((queries, heads, 8)), np.ones((keys, heads // 2, 8))
        v = np.ones((keys, heads // 2, width))
        sinks = np.zeros(heads)
        out, lse = module.attention_varlen(q, k, v, cu_q, cu_k, sinks=sinks, return_lse=True)
        found = module.attention_varlen_backward(
            np.ones(out.shape), q, k, v, out, lse, cu_q, cu_k, sinks=sinks, sinks_grad=True
        )
        assert [x.shape for x in found] == [q.shape, k.shape, v.shape, sinks.shape]
        assert not found[0].any()
        assert not found[1].any()
        assert heads * width == 0 or queries * keys == 0
        assert not found[2].any()
