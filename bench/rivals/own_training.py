"""headway's backward pass, with and without the forward pass; and a step of a module."""

from __future__ import annotations

from typing import Any

import backward_memory
import memory
import numpy as np
from inputs import Array, Inputs
from row import Row

import headway

from . import Prepared


def flat(arrays: Any) -> Array:
    """All numbers of the arrays, one after another, as one axis."""
    return np.concatenate([np.asarray(array, np.float32).ravel() for array in arrays])


def backward(row: Row, inputs: Inputs, given: dict[str, Any]) -> Prepared:
    """The result and the gradients of q, k and v; or the gradients alone, the result being there.

    A long row says how much memory the backward pass takes, with its tokens and with a quarter.
    """
    q, k, v, grad = (inputs[name] for name in ("q", "k", "v", "grad_out"))
    out, lse = headway.attention(q, k, v, return_lse=True, **given)

    def gradients() -> tuple[Array, ...]:
        return headway.attention_backward(grad, q, k, v, out, lse, **given)

    def both() -> tuple[Array, ...]:
        found, sums = headway.attention(q, k, v, return_lse=True, **given)
        return (found, *headway.attention_backward(grad, q, k, v, found, sums, **given))

    facts = {}
    if row.long and memory.RESET.exists():
        sizes = (row.num_heads, row.num_kv_heads, row.head_dim)
        for name, tokens in (("extra", row.num_keys), ("extra-quarter", row.num_keys // 4)):
            facts[name] = backward_memory.in_a_process(tokens, *sizes, row.dtype)
    return Prepared(gradients if row.part == "backward" else both, flat, facts=facts)


def step(layer: headway.MultiHeadAttention, inputs: Inputs, assign: bool = False) -> Prepared:
    """The module's result, and the gradients of its input and its weights.

    With `assign` every weight is assigned first, as a step of training does, and packed anew.
    """
    x, grad, weights = inputs["x"], inputs["grad_out"], layer.parameters()

    def call() -> tuple[Array, headway.Gradients]:
        if assign:
            layer.assign(weights)
        return layer.forward(x, save=True), layer.backward(grad)

    def result(found: tuple[Array, headway.Gradients]) -> Array:
        y, gradients = found
        of_weights = (gradients.weights[f"w_{name}"] for name in ("query", "key", "value", "out"))
        return flat([y, gradients.x, *of_weights])

    return Prepared(call, result)
