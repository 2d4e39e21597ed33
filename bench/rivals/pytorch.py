"""PyTorch: scaled_dot_product_attention, Linear, and the two modules made of them."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from inputs import Array, Inputs
from rows import Row

from . import Prepare, Prepared, fastest
from .copies import cold_copies

torch: Any = importlib.import_module("torch")


def versions() -> dict[str, str]:
    return {"torch": str(torch.__version__)}


def threads() -> int:
    return int(torch.get_num_threads())


def tensor(array: Array) -> Any:
    """A tensor on the array's memory, strides and all."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_numpy(result: Any) -> Array:
    found: Array = result.detach().float().numpy()
    return found


def inferring(call: Callable[[], Any]) -> Callable[[], Any]:
    def inner() -> Any:
        with torch.inference_mode():
            return call()

    return inner


def causal_mask(row: Row) -> Any:
    """True where a query sees a key; None where ``is_causal`` says the same."""
    if row.num_queries == row.num_keys:
        return None
    ones = torch.ones(row.num_queries, row.num_keys, dtype=torch.bool)
    return ones.tril(row.num_keys - row.num_queries)


def additive(mask: Any, dtype: Any) -> Any:
    return torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, float("-inf"))


def sdpa(row: Row, inputs: Inputs) -> Prepared:
    q, k, v = (tensor(inputs[name]) for name in "qkv")
    attend = torch.nn.functional.scaled_dot_product_attention
    mask = causal_mask(row)
    masks: dict[str, dict[str, Any]] = {"is_causal": {"is_causal": True}}
    if mask is not None:
        both = {"boolean mask": mask, "additive mask": additive(mask, q.dtype)}
        masks = {name: {"attn_mask": made} for name, made in both.items()}
    group = row.num_heads // row.num_kv_heads
    candidates = []
    for name, options in masks.items():
        if group == 1:
            candidates.append((name, lambda o=options: attend(q, k, v, **o)))
            continue
        candidates.append(
            (f"{name}, enable_gqa", lambda o=options: attend(q, k, v, enable_gqa=True, **o))
        )

        def repeated(o: dict[str, Any] = options) -> Any:
            wide = (x.repeat_interleave(group, 1) for x in (k, v))
            return attend(q, *wide, **o)

        candidates.append((f"{name}, repeated heads", repeated))
    note, call = fastest([(name, inferring(call)) for name, call in candidates])
    return Prepared(call, to_numpy, note)


def fused_weight(inputs: Inputs) -> Any:
    """The weight of one Linear for Q, K and V, (out, in)."""
    names = ("w_query", "w_key", "w_value")
    return torch.cat([tensor(inputs[name]).T for name in names]).contiguous()


def module(row: Row, inputs: Inputs) -> Prepared:
    functional = torch.nn.functional
    w_qkv, w_out = fused_weight(inputs), tensor(inputs["w_out"]).T.contiguous()
    x = tensor(inputs["x"])
    split = (row.batch, row.num_keys, 3, row.num_heads, row.head_dim)

    def call() -> Any:
        q, k, v = functional.linear(x, w_qkv).view(split).permute(2, 0, 3, 1, 4).unbind(0)
        context = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return functional.linear(context.transpose(1, 2).reshape(x.shape), w_out)

    return Prepared(inferring(call), to_numpy)


def multihead(row: Row, inputs: Inputs) -> Prepared:
    x = tensor(inputs["x"])
    layer = torch.nn.MultiheadAttention(
        row.width, row.num_heads, bias=False, batch_first=True, dtype=x.dtype
    ).eval()
    with torch.no_grad():
        layer.in_proj_weight.copy_(fused_weight(inputs))
        layer.out_proj.weight.copy_(tensor(inputs["w_out"]).T)
    square = torch.nn.Transformer.generate_square_subsequent_mask
    mask = square(row.num_keys, dtype=x.dtype)
    options = {"need_weights": False, "is_causal": True, "attn_mask": mask}
    return Prepared(inferring(lambda: layer(x, x, x, **options)[0]), to_numpy)


def linear(row: Row, inputs: Inputs) -> Prepared:
    x = tensor(inputs["x"])
    weights = [tensor(w).T.contiguous() for w in cold_copies(row, inputs["weight"])]
    following = itertools.cycle(weights).__next__
    product = torch.nn.functional.linear
    return Prepared(inferring(lambda: product(x, following())), to_numpy)


PREPARE: dict[str, Prepare] = {
    "torch": sdpa,
    "torch-module": module,
    "torch-mha": multihead,
    "torch-linear": linear,
}
