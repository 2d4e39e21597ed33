"""Errors against float64, as the accuracy table measures them: a few cases of it, on every ISA."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from bench_files import module
from helpers import DTYPES, Array, assert_same_bits, dtype_of

import headway

inputs = module("accuracy_inputs")
accuracy = module("accuracy")
accuracy_tables = module("accuracy_tables")

#: Largest and mean error allowed, in units of the last place at the row's largest number.
BOUNDS = {"float64": (24, 2), "float32": (24, 2), "float16": (0.6, 0.3), "bfloat16": (1.2, 0.4)}


@pytest.mark.parametrize("logits", ["ordinary", "1e30", "equal keys"])
@pytest.mark.parametrize("tokens", [64, 1024])
@pytest.mark.parametrize("dtype", DTYPES)
def test_errors(dtype: str, tokens: int, logits: str, isa: str) -> None:
    case = inputs.Case(dtype, tokens, logits)
    problem, chosen = inputs.make(case, 3), inputs.compared_rows(case, 3)[::4]
    wanted = inputs.truth(problem, chosen)
    out = headway.attention(problem.q, problem.k, problem.v, scale=problem.scale)
    assert isinstance(out, np.ndarray)
    errors = accuracy.errors_of(out[0][:, chosen].astype(np.float64), wanted, dtype)
    largest, mean = BOUNDS[dtype]
    assert errors["max_ulp"] <= largest, errors
    assert errors["mean_ulp"] <= mean, errors


def keys_alike(dtype: str, size: float, count: int) -> tuple[Array, Array, float]:
    """(q, k, scale): logits of this size for equal keys; by the scale where q and k cannot."""
    g = np.random.default_rng(11)
    q = (np.abs(g.standard_normal((2, 70, 24))) + 0.5).astype(dtype_of(dtype))
    row = np.abs(g.standard_normal((2, 1, 24))) + 0.5
    fits = dtype != "float16" or 1e-4 <= abs(size) <= 1e3
    k = np.repeat((row * size if fits else row).astype(dtype_of(dtype)), count, axis=1)
    return q, k, 1.0 if fits else size


@pytest.mark.parametrize("size", [1e-30, 1.0, -1.0, 1e4, -1e4, 1e30, -1e30])
@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_keys_have_the_same_weight_to_the_bit(dtype: str, size: float, isa: str) -> None:
    """64 keys, so that a weight is 1/64 in every dtype; in the fused kernel v shows the weights."""
    q, k, scale = keys_alike(dtype, size, 64)
    v = np.broadcast_to(np.eye(64, dtype=k.dtype), (2, 64, 64))
    wanted = np.full((2, 70, 64), 1 / 64, k.dtype)
    for queries in (1, 3, 70):
        asked, weights = q[:, :queries], wanted[:, :queries]
        options = {"scale": scale, "causal": False}
        assert_same_bits(headway.attention_weights(asked, k, **options), weights, "weights")
        assert_same_bits(headway.attention(asked, k, v, **options), weights, "fused")


@pytest.mark.parametrize("size", [1e-30, 1.0, -1.0, 1e4, -1e4, 1e30, -1e30])
@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_keys_among_others(dtype: str, size: float, isa: str) -> None:
    """Keys 3, 64, 199 and 1,300 of 1,301 are equal, and those that weigh most.

    Their weights are equal to the bit; in the fused kernel, which makes them in several blocks, up
    to the rounding of the factor by which a block's part is joined with the others.
    """
    places = [3, 64, 199, 1300]
    g = np.random.default_rng(12)
    q, k, scale = keys_alike(dtype, size, 1301)
    less = g.uniform(0.9, 1, (2, 1301, 1)) if size > 0 else g.uniform(1, 1.1, (2, 1301, 1))
    less[:, places] = 1
    k = (k.astype(np.float64) * less).astype(k.dtype)
    v = np.zeros((2, 1301, 4), k.dtype)
    v[:, places] = np.eye(4, dtype=k.dtype)
    for queries in (1, 70):
        options = {"scale": scale, "causal": False}
        weights = headway.attention_weights(q[:, :queries], k, **options)[:, :, places]
        assert (weights == weights[:, :, :1]).all()
        out = headway.attention(q[:, :queries], k, v, **options)
        assert isinstance(out, np.ndarray)
        wide = out.astype(np.float64)
        assert (wide > 0).all()
        step = (
            2 * float(ml_dtypes.finfo(k.dtype).eps)
            if k.dtype.itemsize == 2
            else 8 * np.finfo(k.dtype).eps
        )
        assert np.abs(wide / wide[:, :, :1] - 1).max() <= step


def row(**errors: float) -> dict[str, object]:
    """A record with one mean and largest error for each contestant."""
    names = ("mean_scale", "max_scale", "mean_ulp", "max_ulp")
    found = {who.replace("_", " "): dict.fromkeys(names, value) for who, value in errors.items()}
    start = {"dtype": "float32", "tokens": 64, "logits": "ordinary", "seeds": 1}
    return {**start, "errors": found, "skipped": {}}


def test_claims_compare_with_the_best_rival() -> None:
    assert not accuracy_tables.failures([row(headway_avx2=1.05, PyTorch=1.0, ORT_MHA=2.0)])
    failed = accuracy_tables.failures([row(headway_avx2=1.2, headway_scalar=1.6, PyTorch=1.0)])
    assert [line.split(": ")[1] for line in failed] == [
        "headway avx2",
        "headway scalar",
        "headway scalar",
    ]
    assert accuracy_tables.failures([row(headway_avx2=np.inf)])
    assert not accuracy_tables.failures([row(headway_avx2=3.0, PyTorch=np.inf)])


def test_the_table_joins_instruction_sets_of_the_same_figures() -> None:
    text = accuracy_tables.tables([row(headway_avx2=1.0, headway_amx=1.0, PyTorch=2.0)])
    assert "headway avx2, amx" in text
    marked = accuracy_tables.tables([row(headway_avx2=1.0)], markdown=True)
    assert "| ordinary | 64 | headway avx2 | 1.0e+00 |" in marked
