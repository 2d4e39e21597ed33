"""Random calls of scaled_dot_product_attention, and what PyTorch gives for them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch_cases import assert_same_outcome, made, outcome

torch = pytest.importorskip("torch")
interop = import_module("headway.interop.torch")

sdpa = torch.nn.functional.scaled_dot_product_attention
MATH = torch.nn.attention.SDPBackend.MATH

SIZES = st.integers(1, 4)


@st.composite
def calls(draw: Any) -> tuple[list[Any], dict[str, Any]]:
    """Query, key and value whose axes are broadcast at random, and the other arguments."""
    rank = draw(st.integers(2, 5))
    lead = [draw(SIZES) for _ in range(rank - 2)]
    tq, tk, width, value_width = (draw(st.integers(1, 7)) for _ in range(4))
    options: dict[str, Any] = {"is_causal": draw(st.booleans())}
    options["scale"] = draw(st.sampled_from([None, 0.5, -0.25]))

    def part() -> list[int]:
        return [n if draw(st.booleans()) else 1 for n in lead]

    shapes = [[*part(), tokens, d] for tokens, d in ((tq, width), (tk, width), (tk, value_width))]
    shapes[0][:-2] = lead  # PyTorch adds the mask in place: the scores have every axis
    if rank > 2 and draw(st.booleans()):
        options["enable_gqa"] = True
        shapes[1][-3] = shapes[2][-3] = draw(SIZES)
        shapes[0][-3] = shapes[1][-3] * draw(SIZES)
    inputs = [made(torch, tuple(shape), n) for n, shape in enumerate(shapes)]
    if not options["is_causal"] and draw(st.booleans()):
        full = [*shapes[0][:-2], tq, tk]
        axes = [n if draw(st.booleans()) else 1 for n in full]
        mask = made(torch, tuple(axes[draw(st.integers(0, rank - 2)) :]), 3)
        options["attn_mask"] = mask > -0.3 if draw(st.booleans()) else mask
    if draw(st.booleans()):
        inputs = [x.mT.contiguous().mT for x in inputs]
    wanted = [draw(st.booleans()) for _ in inputs]
    return [x.requires_grad_(grad) for x, grad in zip(inputs, wanted, strict=True)], options


@given(calls())
def test_the_same_as_pytorch(call: tuple[list[Any], dict[str, Any]]) -> None:
    inputs, options = call
    with torch.nn.attention.sdpa_kernel(MATH):
        wanted = outcome(torch, sdpa, inputs, **options)
    assert_same_outcome(
        outcome(torch, interop.scaled_dot_product_attention, inputs, **options), wanted, 1e-12
    )
