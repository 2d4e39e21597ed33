"""PyTorch: scaled_dot_product_attention, Linear, and the two modules made of them."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from inputs import Array, Inputs, added, allowed
from options import PLAIN
from rows import Row

from . import Prepare, Prepared, Unsupported, fastest
from .copies import cold_copies, rotating
from .folding import quicker

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


def masks_of(row: Row, inputs: Inputs) -> dict[str, dict[str, Any]]:
    """The ways to say what each query sees, and what is added to the scores."""
    if row.kind == "decode":
        return {"no mask": {}}
    if row.options == PLAIN and row.num_queries == row.num_keys:
        return {"is_causal": {"is_causal": True}}
    seen = torch.from_numpy(allowed(row, inputs))[None, None]
    bias = added(row, inputs)
    if row.options.sinks:  # one key more: its score is the sink, its value 0
        bias = np.zeros((1, row.num_queries, row.num_keys), np.float32) if bias is None else bias
        column = np.broadcast_to(
            inputs["sinks"][:, None, None], (row.num_heads, row.num_queries, 1)
        )
        wide = np.broadcast_to(bias, (row.num_heads, *bias.shape[1:]))
        bias = np.concatenate([wide, column], axis=2)
        seen = torch.nn.functional.pad(seen, (0, 1), value=True)
    dtype = tensor(inputs["q"]).dtype
    if bias is not None:
        whole = tensor(np.ascontiguousarray(bias)).to(dtype)[None]
        return {"additive mask": {"attn_mask": whole.masked_fill(~seen, float("-inf"))}}
    both = {"boolean mask": seen, "additive mask": additive(seen, dtype)}
    return {name: {"attn_mask": made} for name, made in both.items()}


def additive(mask: Any, dtype: Any) -> Any:
    return torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, float("-inf"))


def sdpa(row: Row, inputs: Inputs) -> Prepared:
    """Options by the mask that says the same, made before the clock starts."""
    if row.options.softcap:
        raise Unsupported("no soft cap")
    attend = torch.nn.functional.scaled_dot_product_attention
    q = tensor(inputs["q"])
    group = row.num_heads // row.num_kv_heads

    def call_with(options: dict[str, Any], repeat: bool) -> Callable[[], Any]:
        """A call on keys and values; in a decode row on a copy of them, which is its cache."""
        decode = row.kind == "decode"
        k, v = (tensor(inputs[name].copy() if decode else inputs[name]) for name in "kv")
        if row.options.sinks:
            k, v = (torch.nn.functional.pad(x, (0, 0, 0, 1)) for x in (k, v))
        if not repeat:
            return inferring(lambda: attend(q, k, v, **options))

        def repeated() -> Any:
            return attend(q, *(x.repeat_interleave(group, 1) for x in (k, v)), **options)

        return inferring(repeated)

    ways: list[tuple[str, dict[str, Any], bool]] = []
    for name, options in masks_of(row, inputs).items():
        if group == 1:
            ways.append((name, options, False))
        else:
            ways.append((f"{name}, enable_gqa", {**options, "enable_gqa": True}, False))
            ways.append((f"{name}, repeated heads", options, True))
    candidates = [
        (name, rotating(row, partial(call_with, options, repeat))) for name, options, repeat in ways
    ]
    note, call = fastest(candidates)
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
    "torch": quicker(sdpa),
    "torch-module": module,
    "torch-mha": multihead,
    "torch-linear": linear,
}
