"""PyTorch's flex_attention, compiled; options as functions of scores and of what is seen."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from inputs import Inputs
from rows import Row

from . import Prepare, Prepared
from .copies import rotating
from .pytorch import tensor, threads, to_numpy, torch, versions

__all__ = ["PREPARE", "threads", "versions"]


def visible_of(row: Row, inputs: Inputs) -> Callable[..., Any]:
    """Whether a query sees a key. With a sink key 0 is the sink, and the others move up by one."""
    past = 0 if row.options.length is not None else row.num_keys - row.num_queries
    window, length, shift = row.options.window, row.options.length, int(row.options.sinks)
    mask = None
    if row.options.mask in ("keys", "pairs"):
        mask = torch.nn.functional.pad(tensor(inputs["mask"])[0, 0], (shift, 0), value=True)

    def visible(batch: Any, head: Any, query: Any, key: Any) -> Any:
        seen = query + past >= key - shift
        if window is not None:
            seen = seen & (query + past - (key - shift) <= window)
        if length is not None:
            seen = seen & (key - shift < length)
        if mask is not None:
            seen = seen & (mask[0, key] if row.options.mask == "keys" else mask[query, key])
        return seen | (key < shift) if shift else seen

    return visible


def score_of(row: Row, inputs: Inputs) -> Callable[..., Any] | None:
    """What becomes of a score; None where it stays as it is."""
    options = row.options
    if not (options.softcap or options.alibi or options.sinks or options.mask == "bias"):
        return None
    past = 0 if options.length is not None else row.num_keys - row.num_queries
    slopes, sinks = (tensor(inputs[n]) if n in inputs.arrays else None for n in ("slopes", "sinks"))
    bias = tensor(inputs["mask"])[0, 0] if options.mask == "bias" else None
    shift = int(options.sinks)

    def changed(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
        if options.softcap:
            score = options.softcap * torch.tanh(score / options.softcap)
        if slopes is not None:
            score = score - slopes[head] * torch.abs(query + past - (key - shift))
        if bias is not None:
            score = score + bias[query, key]
        return score if sinks is None else torch.where(key < shift, sinks[head], score)

    return changed


def attention(row: Row, inputs: Inputs) -> Prepared:
    flex: Any = importlib.import_module("torch.nn.attention.flex_attention")
    torch._dynamo.reset()  # else it gives up after a few shapes
    compiled = torch.compile(flex.flex_attention, dynamic=False)
    options: dict[str, Any] = {"enable_gqa": row.num_heads != row.num_kv_heads}
    q, k, v = (tensor(inputs[name]) for name in "qkv")
    if row.kind == "decode":  # a query at the end sees every key

        def make() -> Callable[[], Any]:
            keys, values = k.clone(), v.clone()
            return silent(lambda: compiled(q, keys, values, **options))

        return Prepared(rotating(row, make), to_numpy)
    if row.options.sinks:
        k, v = (torch.nn.functional.pad(x, (0, 0, 1, 0)) for x in (k, v))
    visible, changed = visible_of(row, inputs), score_of(row, inputs)
    mask = flex.create_block_mask(visible, None, None, q.shape[2], k.shape[2], device="cpu")
    options |= {"score_mod": changed, "block_mask": mask}
    return Prepared(silent(lambda: compiled(q, k, v, **options)), to_numpy)


def silent(call: Callable[[], Any]) -> Callable[[], Any]:
    """The call without a record for gradients."""

    def inner() -> Any:
        with torch.no_grad():
            return call()

    return inner


PREPARE: dict[str, Prepare] = {"torch-flex": attention}
