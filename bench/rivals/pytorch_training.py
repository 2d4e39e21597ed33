"""PyTorch's gradients by autograd: scaled_dot_product_attention, and a module of it and Linear."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from inputs import Array, Inputs
from row import Row

from . import Prepare, Prepared, fastest
from .pytorch import fused_weight, masks_of, tensor, threads, to_numpy, torch, versions

__all__ = ["PREPARE", "threads", "versions"]


def flat(results: Any) -> Array:
    """All numbers of the tensors, one after another, as one axis."""
    return np.concatenate([to_numpy(result).ravel() for result in results])


def wanting(array: Array) -> Any:
    """A tensor for which a gradient is wanted."""
    return tensor(array).requires_grad_()


def backward(row: Row, inputs: Inputs) -> Prepared:
    """The result and the gradients of q, k and v; or the gradients alone, the result being there.

    Options by the mask that says the same, made before the clock starts.
    """
    attend = torch.nn.functional.scaled_dot_product_attention
    q, k, v = wanted = [wanting(inputs[name]) for name in "qkv"]
    grad, group = tensor(inputs["grad_out"]), row.num_heads // row.num_kv_heads

    def call_with(options: dict[str, Any], repeat: bool) -> Callable[[], Any]:
        def forward() -> Any:
            keys, values = (x.repeat_interleave(group, 1) if repeat else x for x in (k, v))
            return attend(q, keys, values, **options)

        if row.part == "backward":
            out = forward()
            return lambda: torch.autograd.grad(out, wanted, grad, retain_graph=True)

        def both() -> Any:
            out = forward()
            return (out, *torch.autograd.grad(out, wanted, grad))

        return both

    candidates: list[tuple[str, Callable[[], Any]]] = []
    for name, options in masks_of(row, inputs).items():
        if group == 1:
            candidates.append((name, call_with(options, False)))
        else:
            shared = {**options, "enable_gqa": True}
            candidates.append((f"{name}, enable_gqa", call_with(shared, False)))
            candidates.append((f"{name}, repeated heads", call_with(options, True)))
    note, call = fastest(candidates)
    return Prepared(call, flat, note)


def linear(weight: Any) -> Any:
    """A Linear without a bias, of a weight (out, in)."""
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
    with torch.no_grad():
        layer.weight.copy_(weight)
    return layer


def step(row: Row, inputs: Inputs) -> Prepared:
    """A module's result, and the gradients of its input and its weights.

    One Linear for Q, K and V, or three, whichever is quicker.
    """
    functional = torch.nn.functional
    x, grad = wanting(inputs["x"]), tensor(inputs["grad_out"])
    fused, last = linear(fused_weight(inputs)), linear(tensor(inputs["w_out"]).T)
    apart = [linear(tensor(inputs[name]).T) for name in ("w_query", "w_key", "w_value")]
    split = (row.batch, row.num_keys, 3, row.num_heads, row.head_dim)

    def finished(q: Any, k: Any, v: Any, weights: list[Any]) -> Any:
        context = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = last(context.transpose(1, 2).reshape(x.shape))
        return (y, *torch.autograd.grad(y, [x, *weights, last.weight], grad))

    def one() -> Any:
        q, k, v = fused(x).view(split).permute(2, 0, 3, 1, 4).unbind(0)
        return finished(q, k, v, [fused.weight])

    def three() -> Any:
        q, k, v = (layer(x).view(*split[:2], *split[3:]).transpose(1, 2) for layer in apart)
        return finished(q, k, v, [layer.weight for layer in apart])

    def result(found: Any) -> Array:
        y, of_x, *of_weights, of_last = found
        of_each = of_weights if len(of_weights) == 3 else of_weights[0].chunk(3)
        return flat([y, of_x, *(of.T for of in of_each), of_last.T])

    note, call = fastest([("one Linear for Q, K and V", one), ("three", three)])
    return Prepared(call, result, note)


PREPARE: dict[str, Prepare] = {
    "torch-backward": backward,
    "torch-backward@1": backward,
    "torch-train": step,
}
