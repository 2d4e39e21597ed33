"""Gradients of numbers far from 1: tiny and huge ones, alone and among others, and what is hidden.

Where products are made in parts of numbers, only those of moderate size are; the others by
themselves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gradients import Step, assert_gradient, check_step
from helpers import Array, assert_close, assert_same_bits, make
from option_table import EACH_ISA

import headway

SHAPE = (1, 2, 200, 40)
PARTS = ("grad_out", "q", "k", "v")
OPTIONS: list[dict[str, Any]] = [{}, {"window": (50, 0), "softcap": 20.0}, {"causal": False}]


def step_of(changes: dict[str, Array], seed: int = 0, **options: Any) -> Step:
    """Random numbers of a usual size, but for `changes`; out and lse by the reference."""
    x = {name: make((seed, n), SHAPE, "float32") for n, name in enumerate(PARTS)} | changes
    wide = [x[name].astype(np.float64) for name in PARTS[1:]]
    out, lse = headway.reference.attention(*wide, return_lse=True, **options)
    out, lse = out.astype(np.float32), lse.astype(np.float32)
    return Step(x["q"], x["k"], x["v"], out, lse, x["grad_out"], None, options)


def numbers(which: str, seed: int = 0) -> Array:
    return make((seed, PARTS.index(which)), SHAPE, "float32")


@EACH_ISA
@pytest.mark.parametrize("power", [-100, -70, 20, 40, 90])
@pytest.mark.parametrize("which", ["grad_out", "v"])
def test_gradients_of_any_size(which: str, power: int, isa: str, some_threads: int) -> None:
    for options in OPTIONS:
        step = step_of({which: np.ldexp(numbers(which), power)}, **options)
        check_step(step, step.backward(), f"{which} * 2^{power}, {options}")


@EACH_ISA
@pytest.mark.parametrize("power", [-105, -40, 30, 60])
def test_keys_against_queries(power: int, isa: str) -> None:
    """Queries times a power of two, keys divided by it: scores as before; or by the scale."""
    q, k = numbers("q"), numbers("k")
    for options in OPTIONS:
        step = step_of({"q": np.ldexp(q, power), "k": np.ldexp(k, -power)}, **options)
        check_step(step, step.backward(), f"q * 2^{power}, {options}")
    step = step_of(
        {"q": np.ldexp(q, power)}, scale=0.15 * 2.0**-power
    )  # in two factors beyond 2^100
    check_step(step, step.backward(), f"q * 2^{power}, and the scale")


@EACH_ISA
def test_scores_of_numbers_far_apart(isa: str) -> None:
    """Queries so small that their parts would be lost, keys as large. dk is as small as they."""
    for options in OPTIONS:
        step = step_of(
            {"q": np.ldexp(numbers("q"), -118), "k": np.ldexp(numbers("k"), 118)}, **options
        )
        got = step.backward()
        for name in ("dq", "dv"):
            assert_gradient(got[name], step.expected[name], 2e-5, step.terms[name], name)


@EACH_ISA
@pytest.mark.parametrize("size", [2.0**31, 2.0**-101, 2.0**-126, 1e-45])
@pytest.mark.parametrize("which", PARTS)
def test_single_numbers(which: str, size: float, isa: str, some_threads: int) -> None:
    """Some numbers of an array far larger, or smaller, than the others."""
    for seed, options in enumerate(OPTIONS):
        changed = numbers(which, seed).copy()
        places = np.random.default_rng(seed).random(SHAPE) < 0.001
        assert places.any()
        changed[places] *= np.float32(size)
        if size > 1 and which in ("q", "k"):  # what it meets is as small, and scores are not huge
            other = "k" if which == "q" else "q"
            met = numbers(other, seed).copy()
            met[..., places.any(axis=(0, 1, 2))] *= np.float32(1 / size)
            step = step_of({which: changed, other: met}, seed, **options)
        else:
            step = step_of({which: changed}, seed, **options)
        check_step(step, step.backward(), f"{which}, {size}, {options}")


@EACH_ISA
def test_rows_of_tiny_gradients_beside_others(isa: str) -> None:
    """dq of a query is as exact as its own numbers are, whatever those beside it are."""
    grad_out = numbers("grad_out").copy()
    grad_out[:, :, 1::2] = np.ldexp(grad_out[:, :, 1::2], -105)
    for options in OPTIONS:
        step = step_of({"grad_out": grad_out}, **options)
        got, wanted = (x["dq"][:, :, 3::2] for x in (step.backward(), step.expected))
        assert np.abs(got - wanted).max() <= 2e-6 * np.abs(wanted).max(), options


@EACH_ISA
@pytest.mark.parametrize("size", [3e38, 2.0**31, 1e-36, np.nan, -np.inf])
def test_hidden_numbers_of_any_size_change_nothing(size: float, isa: str) -> None:
    """Keys from 120 on are hidden from the queries before: those keep the bits of dq."""
    step = step_of({})
    changed = {name: numbers(name).copy() for name in ("k", "v")}
    with np.errstate(all="ignore"):
        for x in changed.values():
            x[:, :, 120:] *= np.float32(size)
    got, wanted = (x.backward()["dq"][:, :, :120] for x in (step.changed(**changed), step))
    assert_same_bits(got, wanted, f"{size}")


@EACH_ISA
def test_a_far_number_leaves_the_others_their_bits(isa: str) -> None:
    """dv depends on grad_out by columns, and does not depend on values."""
    for options in OPTIONS:
        step = step_of({}, **options)
        plain = step.backward()["dv"]
        grad_out = step.grad_out.copy()
        grad_out[0, 1, 150, 3] = 2.0**35
        got = step.changed(grad_out=grad_out).backward()["dv"]
        others = np.arange(SHAPE[-1]) != 3
        assert_same_bits(got[..., others], plain[..., others], "dv, other columns")
        assert (got[0, 1, 101:151, 3] != plain[0, 1, 101:151, 3]).all()
        values = step.v.copy()
        values[0, 0, 5] = 2.0**31
        assert_same_bits(step.changed(v=values).backward()["dv"], plain, "dv")


@EACH_ISA
def test_large_scores_round_as_in_the_forward_pass(isa: str) -> None:
    """Each query is its own key, far ahead of all others: so dv is grad_out."""
    q = numbers("q") * np.float32(20)  # scores of some thousands
    out, lse = headway.attention(q, q, numbers("v"), return_lse=True)
    grads = headway.attention_backward(numbers("grad_out"), q, q, numbers("v"), out, lse)
    assert_close(grads[2], numbers("grad_out"), 2e-4)  # the lse is rounded, too
