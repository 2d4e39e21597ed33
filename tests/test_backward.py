"""Gradients with answers found by hand, and figures worked out by another program (autograd)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gradients import NAMES, assert_gradient
from helpers import FULL, Array, attend
from test_hidden_blocks import band, ways

import headway

#: Error allowed to figures of six decimals.
ALLOWED = {"rtol": 1e-5, "atol": 2e-6}


def backward(grad_out: Array, q: Array, k: Array, v: Array, **options: Any) -> dict[str, Array]:
    """Run both passes; return the gradients by name."""
    out, lse = attend(q, k, v, **options)
    found = headway.attention_backward(grad_out, q, k, v, out, lse, **options)
    return dict(zip(NAMES, found, strict=True))


def normal(seed: int, dtype: str, *shapes: tuple[int, ...]) -> list[Array]:
    """Return normal random numbers of these shapes, drawn one after another."""
    g = np.random.default_rng(seed)
    return [g.standard_normal(shape).astype(dtype) for shape in shapes]


def check(found: Array, wanted: list[float], what: str) -> None:
    np.testing.assert_allclose(found, wanted, **ALLOWED, err_msg=what)


@pytest.mark.parametrize(
    ("tq", "tk", "options"),
    [
        *((tq, tk, {"align": align}) for tq, tk in ((2, 5), (1, 4), (3, 3), (5, 2), (70, 69))
          for align in ("end", "start")),
        *((tq, 90, {}) for tq in (*range(2, 10), 90)),
        (3, 5, {"align": 1}),
        (3, 5, {"align": -2}),
        (3, 5, {"causal": False}),
        *((70, 100, {"window": window}) for window in (1, 3, 64, 99, 100)),
        (70, 100, {"window": (5, 9), "causal": False}),
        (70, 100, {"mask": np.arange(100) % 3 > 0}),
        (70, 100, {"kv_lengths": [80]}),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("dtype", FULL)
def test_probe(
    dtype: str, tq: int, tk: int, options: dict[str, Any], isa: str, threads: int
) -> None:
    """Equal scores: dq is the variance of the numbers of the visible keys, dv counts the queries.

    With q = 0, k[j] = v[j] = j and a gradient of 1 each of the n keys that a query sees weighs 1/n,
    and the gradient at its score is (j - mean) / n.
    """
    numbers = np.arange(tk).astype(dtype).reshape(1, 1, tk, 1)
    q, ones = np.zeros((1, 1, tq, 1), dtype), np.ones((1, 1, tq, 1), dtype)
    seen = np.isfinite(headway.reference.attention_scores(q, numbers, **options)[0, 0])
    count = np.maximum(seen.sum(axis=1), 1)
    mean = (seen * np.arange(tk)).sum(axis=1) / count
    deviations = np.where(seen, np.arange(tk) - mean[:, None], 0.0)
    found = backward(ones, q, numbers, numbers, scale=1, **options)
    variance = (deviations**2).sum(axis=1) / count
    allowed = 1e-11 if dtype == "float64" else 1e-3  # of the largest; a wrong key counts far more
    assert_gradient(found["dq"][0, 0, :, 0], variance, allowed, 1.0, "dq")
    check(found["dv"][0, 0, :, 0], (seen / count[:, None]).sum(axis=0), "dv")
    assert not found["dk"].any()
    assert not found["dq"][0, 0, ~seen.any(axis=1)].any()
    assert not found["dv"][0, 0, ~seen.any(axis=0)].any()

    found = backward(ones, ones, 0 * numbers, numbers, scale=0.5, **options)
    wanted = 0.5 * (deviations / count[:, None]).sum(axis=0)
    assert_gradient(found["dk"][0, 0, :, 0], wanted, allowed, 1.0, "dk")
    assert not found["dq"].any()


@pytest.mark.parametrize("dtype", FULL)
def test_few_queries_over_many_keys(dtype: str, isa: str, threads: int) -> None:
    """The diagonal ends at the last key, or begins at the first one."""
    arrays = normal(101, dtype, (2, 3, 3, 8), (2, 3, 7, 8), (2, 3, 7, 8), (2, 3, 3, 8))
    *arrays, grad_out = arrays
    found = backward(grad_out, *arrays)
    check(found["dq"][1, 2, 0, :3], [-0.455455, 0.033110, -0.798922], "dq")
    check(found["dk"][1, 2, 1, :3], [-0.022920, 0.063811, 0.010087], "dk")
    check(found["dv"][1, 2, 2, :3], [-0.123233, -0.108409, 0.435358], "dv")
    check(found["dv"][0, 0, 6, :3], [-0.026154, 0.119212, 0.030825], "dv of the last key")
    found = backward(grad_out, *arrays, align="start")
    np.testing.assert_allclose(found["dq"][:, :, 0], 0, atol=2e-6)  # it sees one key
    check(found["dk"][1, 2, 1, :3], [-0.164514, 0.191046, 0.166831], "dk from the start")
    check(found["dv"][1, 2, 2, :3], [-0.065958, 0.153829, 0.035527], "dv from the start")
    assert not found["dk"][:, :, 3:].any()
    assert not found["dv"][:, :, 3:].any()


@pytest.mark.parametrize("dtype", FULL)
def test_a_query_that_sees_nothing(dtype: str, isa: str, threads: int) -> None:
    """Gradients of 0, and nothing from it to others, by a mask of bools and of numbers."""
    *arrays, grad_out = normal(102, dtype, *[(1, 2, 4, 8)] * 4)
    mask = np.ones((1, 1, 4, 4), bool)
    mask[:, :, 2] = False
    for given in (mask, np.where(mask, 0, -np.inf).astype(dtype)):
        found = backward(grad_out, *arrays, mask=given, causal=False)
        assert not found["dq"][:, :, 2].any()
        check(found["dq"][0, 0, 0, :3], [-0.586209, -0.317027, 0.382903], "dq")
        check(found["dk"][0, 1, 2, :3], [-0.049217, -0.086806, 0.081371], "dk")
        check(found["dv"][0, 0, 3, :3], [0.013422, 0.704866, -0.322491], "dv")
        sums = [np.abs(x).sum() for x in found.values()]
        check(np.array(sums), [8.930472, 13.576569, 18.851836], "sums")


@pytest.mark.parametrize("dtype", FULL)
def test_long_keys_whose_first_blocks_are_hidden(dtype: str, isa: str, threads: int) -> None:
    *arrays, grad_out = normal(103, dtype, *[(1, 1, 640, 4)] * 4)
    figures = {
        "dq": ([0, -0.126903, -0.345471, 0.071495], 573.300420),
        "dk": ([-2.526175, -0.384584, 0.394594, 0.053562], 590.378934),
        "dv": ([-1.435103, 0.060576, -0.460767, -0.027390], 792.182677),
    }
    for options in (*ways(band(640, 10), dtype), {"window": 10}):
        found = backward(grad_out, *arrays, **options)
        for name, (wanted, total) in figures.items():
            check(found[name][0, 0, [0, 9, 511, 639], 0], wanted, name)
            np.testing.assert_allclose(np.abs(found[name]).sum(), total, rtol=1e-5)


@pytest.mark.parametrize("dtype", FULL)
def test_views_of_one_array(dtype: str, isa: str, threads: int) -> None:
    g = np.random.default_rng(104)
    qkv = g.standard_normal((2, 6, 3, 4, 8)).astype(np.float32)
    q, k, v = (qkv[:, :, n].transpose(0, 2, 1, 3).astype(dtype) for n in range(3))
    grad_out = g.standard_normal((2, 4, 6, 8)).astype(np.float32).astype(dtype)
    if dtype == "float32":
        q, k, v = (qkv[:, :, n].transpose(0, 2, 1, 3) for n in range(3))
    found = backward(grad_out, q, k, v)
    check(found["dq"][1, 3, 4, :3], [-0.025908, -0.210413, 0.622018], "dq")
    check(found["dk"][1, 3, 4, :3], [0.478482, 0.169289, 0.234837], "dk")
    check(found["dv"][1, 3, 4, :3], [-0.543601, 0.049343, 0.296569], "dv")
    sums = [np.abs(x).sum() for x in found.values()]
    check(np.array(sums), [69.850078, 73.422557, 191.392822], "sums")
    np.testing.assert_allclose(found["dk"].sum(axis=2), 0, atol=1e-5)  # a row of ds sums to 0


@pytest.mark.parametrize("dtype", FULL)
def test_soft_cap(dtype: str, isa: str, threads: int) -> None:
    """The gradient at a score carries the factor 1 - tanh(x / cap) ** 2."""
    q = np.full((1, 1, 1, 1), 10.0, dtype)
    k = np.array([1, 2, -1], dtype).reshape(1, 1, 3, 1)
    grad_out = np.array([1, 0, 0], dtype).reshape(1, 1, 1, 3)
    found = backward(grad_out, q, k, np.eye(3, dtype=dtype)[None, None], scale=1, softcap=2)
    np.testing.assert_allclose(found["dq"].item(), 4.620452e-05, rtol=2e-3)
    wanted = [4.539199e-04, -2.023905e-08, -8.165755e-06]
    np.testing.assert_allclose(found["dk"].ravel(), wanted, rtol=2e-3, atol=5e-8)
    check(found["dv"][0, 0, :, 0], [0.495416, 0.495506, 0.009077], "dv")
    assert not found["dv"][0, 0, :, 1:].any()

    arrays = normal(105, dtype, (1, 1, 1, 8), (1, 1, 65, 8), (1, 1, 65, 2))
    found = backward(np.ones((1, 1, 1, 2), dtype), *arrays, softcap=1)
    check(found["dq"][0, 0, 0, :3], [-0.035412, -0.017327, 0.020943], "dq")
    check(found["dk"][0, 0, 64, :3], [-4.443633e-05, 8.748111e-04, 1.392184e-03], "dk")
    check(found["dv"][0, 0, [0, 64], 0], [0.022746, 0.029164], "dv")


@pytest.mark.parametrize("dtype", FULL)
def test_shared_key_heads(dtype: str, isa: str, threads: int) -> None:
    """Gradients of a key head are the sum over its group, of neighbours."""
    shapes = (2, 6, 4, 8), (2, 3, 4, 8), (2, 3, 4, 8), (2, 6, 4, 8)
    *arrays, grad_out = normal(106, dtype, *shapes)
    found = backward(grad_out, *arrays)
    check(found["dq"][1, 4, 3, :3], [-0.252351, 0.474008, -0.110131], "dq")
    check(found["dk"][1, 2, 0, :3], [-0.479871, 0.146158, -0.043219], "dk")
    check(found["dv"][1, 2, 0, :3], [0.214989, -0.540702, 1.991288], "dv")
    for heads, group in (((7, 1), 7), ((9, 3), 3), ((5, 1), 5), ((10, 2), 5)):
        q, grad_out = normal(107, dtype, *[(1, heads[0], 70, 8)] * 2)
        k, v = normal(108, dtype, *[(1, heads[1], 90, 8)] * 2)
        found = backward(grad_out, q, k, v)
        alone = backward(grad_out, q, np.repeat(k, group, axis=1), np.repeat(v, group, axis=1))
        np.testing.assert_array_equal(found["dq"], alone["dq"])
        for name in ("dk", "dv"):
            summed = alone[name].reshape(1, heads[1], group, 90, 8).sum(axis=2)
            np.testing.assert_allclose(found[name], summed, rtol=1e-5, atol=1e-5)
