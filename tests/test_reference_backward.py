"""The gradients of the reference: central differences, torch, and rules that have exact answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gradients import differences
from helpers import Array, make
from hypothesis import given, settings
from hypothesis import strategies as st
from option_table import Problem
from test_reference_options import OPTIONS, problem

from headway import reference

INF = np.inf


def gradients(q: Array, k: Array, v: Array, **options: Any) -> tuple[Array, ...]:
    """Return the gradients of a loss that takes both out and lse, of all that can be asked for."""
    grad_out = make(31, (*q.shape[:3], v.shape[3]))
    grad_lse = make(32, q.shape[:3])
    out, lse = reference.attention(q, k, v, return_lse=True, **options)
    found: tuple[Array, ...] = reference.attention_backward(
        *(grad_out, q, k, v, out, lse),
        grad_lse=grad_lse,
        sinks_grad="sinks" in options,
        mask_grad="mask" in options and np.asarray(options["mask"]).dtype != bool,
        **options,
    )
    return found


def check_differences(q: Array, k: Array, v: Array, options: dict[str, Any]) -> None:
    """Compare every gradient with central differences of the forward pass."""
    options = dict(options)
    if "sinks" in options:
        options["sinks"] = np.array(options["sinks"], np.float64)
    found = gradients(q, k, v, **options)
    weights = make(31, (*q.shape[:3], v.shape[3])), make(32, q.shape[:3])
    expected = differences(*weights, q, k, v, options)
    assert len(found) == len(expected)
    for name, got, wanted in zip(expected, found, expected.values(), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", OPTIONS)
def test_central_differences(name: str) -> None:
    check_differences(*problem(), OPTIONS[name])


MASKS = (None, "bool-mask", "padding-mask", "float-mask", "row-mask")
WINDOWS = (None, "window", "two-sided")
SLOPES = (None, "alibi", "batch-alibi")
ALIGNS = (None, "start", "int-align", "entry-aligns")
SINGLE = ("softcap", "sinks", "lengths", "all-keys", "scale")


@settings(max_examples=25)
@given(
    st.tuples(*map(st.sampled_from, (MASKS, WINDOWS, SLOPES, ALIGNS))),
    st.sets(st.sampled_from(SINGLE)),
    st.sampled_from([(5, 7), (4, 4), (7, 3), (1, 6)]),
    st.sampled_from([(4, 2), (3, 1), (2, 2)]),
    st.integers(0, 1000),
)
def test_central_differences_of_any_mix(
    chosen: tuple[str | None, ...],
    more: set[str],
    tokens: tuple[int, int],
    heads: tuple[int, int],
    seed: int,
) -> None:
    p = Problem("float64", heads=heads, tokens=tokens, head_dim=3, value_dim=2, seed=seed)
    names = [name for name in chosen if name is not None] + sorted(more)
    check_differences(*p.arrays(), p.options(names))
