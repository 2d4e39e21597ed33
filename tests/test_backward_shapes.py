"""Gradients of calls of many sizes: around every block length, long ones, and empty ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gradients import GRADIENT_TOLERANCE, NAMES, assert_gradient, check_step, step_of
from helpers import DTYPES, Array, dtype_of
from option_table import EACH_ISA, Problem

import headway

#: (Tq, Tk), heads, D, Dv, options: past the block lengths 64, 128 and 512.
LONG: list[tuple[tuple[int, int], tuple[int, int], int, int, tuple[str, ...]]] = [
    ((300, 300), (2, 1), 64, 64, ()),
    ((1100, 1100), (1, 1), 64, 64, ()),
    ((520, 1030), (1, 1), 80, 24, ("window", "sinks")),
    ((1030, 520), (1, 1), 17, 40, ("all-keys", "alibi")),
    ((2, 1100), (4, 2), 128, 128, ("softcap",)),
    ((600, 600), (1, 1), 32, 32, ("float-mask",)),
]
HEAD_DIMS = (1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 48, 64, 65, 80, 96, 100, 128, 160, 192, 256, 257)


@EACH_ISA
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", LONG, ids=str)
def test_long(size: Any, dtype: str, isa: str, some_threads: int) -> None:
    tokens, heads, head_dim, value_dim, names = size
    problem = Problem(dtype, 1, heads, tokens, head_dim, value_dim)
    step = step_of(problem, names)
    check_step(step, step.backward(), str(size))


@EACH_ISA
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_head_dims(head_dim: int, isa: str) -> None:
    """Every width of rows, beside another width of values, in each dtype."""
    for n, dtype in enumerate(DTYPES):
        width = HEAD_DIMS[(HEAD_DIMS.index(head_dim) + 5 * n) % len(HEAD_DIMS)]
        problem = Problem(dtype, 1, (2, 1), (66, 67), head_dim, width)
        step = step_of(problem)
        check_step(step, step.backward(), f"{dtype}, {head_dim} and {width} columns")


@EACH_ISA
@pytest.mark.parametrize("queries", [1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129])
def test_numbers_of_tokens(queries: int, isa: str) -> None:
    """Around every tile, with as many keys, with a few more and with a few less."""
    for n, keys in enumerate((queries, queries + 1, max(queries - 3, 1), 2 * queries + 5)):
        problem = Problem(DTYPES[(n + queries) % 4], 1, (2, 2), (queries, keys), 16, 24)
        step = step_of(problem, ("all-keys",) if n == 3 else ())
        check_step(step, step.backward(), f"{problem.dtype}, {queries} and {keys} tokens")


@EACH_ISA
@pytest.mark.parametrize("heads", [(3, 1), (5, 1), (7, 1), (6, 2), (9, 3), (8, 8)])
def test_groups_with_options_of_each_query_head(
    heads: tuple[int, int], isa: str, some_threads: int
) -> None:
    """Slopes, sinks and a mask of each query head, while dk and dv are sums over the group."""
    for n, dtype in enumerate(DTYPES):
        problem = Problem(dtype, 2, heads, (33, 40), 8, 8, seed=n)
        step = step_of(problem, ("float-mask", "batch-alibi", "sinks"))
        check_step(step, step.backward(), f"{dtype}, {heads}")


@pytest.mark.parametrize("module", [headway, headway.reference], ids=["headway", "reference"])
@pytest.mark.parametrize("empty", ["batch", "heads", "queries", "keys", "value_dim"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_empty_axes(dtype: str, empty: str, module: Any) -> None:
    """Nothing to sum gives 0: keys without a query, queries without a key."""
    sizes = {"batch": 2, "heads": 4, "queries": 3, "keys": 5, "value_dim": 6} | {empty: 0}
    b, h, tq, tk, width = sizes.values()

    def ones(*shape: int) -> Array:
        return np.ones(shape).astype(dtype_of(dtype))

    q, k, v = ones(b, h, tq, 8), ones(b, h // 2, tk, 8), ones(b, h // 2, tk, width)
    mask, sinks = np.zeros((1, tk)), np.zeros(h)
    given = {"mask": mask, "sinks": sinks}
    out, lse = module.attention(q, k, v, return_lse=True, **given)
    found = module.attention_backward(
        np.ones_like(out), q, k, v, out, lse, sinks_grad=True, mask_grad=True, **given
    )
    for x, like in zip(found, (q, k, v, sinks, mask), strict=True):
        assert x.shape == like.shape
        assert not x.any()
    column = np.zeros((tq, 1))
    *_, dmask = module.attention_backward(
        np.ones_like(out), q, k, v, out, lse, mask_grad=True, mask=column
    )
    assert dmask.shape == (tq, 1)
    assert not dmask.any()


@pytest.mark.parametrize("module", [headway, headway.reference], ids=["headway", "reference"])
def test_no_heads_need_no_key_heads(module: Any) -> None:
    for kv_heads in (0, 1, 3):
        q, k = np.ones((2, 0, 5, 8)), np.ones((2, kv_heads, 7, 8))
        out, lse = module.attention(q, k, k, return_lse=True)
        found = module.attention_backward(out, q, k, k, out, lse)
        assert [x.shape for x in found] == [q.shape, k.shape, k.shape]
        assert not found[1].any()


@EACH_ISA
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_step_of_a_sequence(dtype: str, isa: str, threads: int) -> None:
    """One token that sees itself: its value gets the whole gradient, its score none."""
    problem = Problem(dtype, 3, (4, 4), (1, 1), 16, 16)
    step = step_of(problem, lse=False, wide=True)
    got = step.backward()
    allowed = GRADIENT_TOLERANCE[dtype]
    assert_gradient(got["dv"], step.grad_out.astype(np.float64), allowed, 0.0, "dv")
    scale = {"float64": 1e-13, "float32": 1e-4}.get(dtype, 0.1)
    for name in NAMES[:2]:
        np.testing.assert_allclose(got[name].astype(np.float64), 0, atol=scale)


def test_a_result_beyond_all_memory_is_an_exception() -> None:
    row = np.ones((1, 1, 1, 64), np.float32)
    q = np.broadcast_to(row, (1, 1, 2**40, 64))
    lse = np.broadcast_to(row[0, 0, 0, 0], (1, 1, 2**40))
    with pytest.raises(MemoryError):
        headway.attention_backward(q, q, row, row, q, lse)
    out, lse = headway.attention(row, row, row, return_lse=True)
    assert headway.attention_backward(row, row, row, row, out, lse)[2][0, 0, 0, 0] == 1.0
