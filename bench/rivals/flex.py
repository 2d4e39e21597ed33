"""PyTorch's flex_attention, compiled."""

from __future__ import annotations

import importlib
from typing import Any

from inputs import Inputs
from rows import Row

from . import Prepare, Prepared
from .pytorch import tensor, threads, to_numpy, torch, versions

__all__ = ["PREPARE", "threads", "versions"]


def attention(row: Row, inputs: Inputs) -> Prepared:
    flex: Any = importlib.import_module("torch.nn.attention.flex_attention")
    torch._dynamo.reset()  # else it gives up after a few shapes
    q, k, v = (tensor(inputs[name]) for name in "qkv")
    past = row.num_keys - row.num_queries

    def visible(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return query + past >= key

    sizes = (row.num_queries, row.num_keys)
    mask = flex.create_block_mask(visible, None, None, *sizes, device="cpu")
    compiled = torch.compile(flex.flex_attention, dynamic=False)
    grouped = row.num_heads != row.num_kv_heads

    def call() -> Any:
        with torch.no_grad():
            return compiled(q, k, v, block_mask=mask, enable_gqa=grouped)

    return Prepared(call, to_numpy)


PREPARE: dict[str, Prepare] = {"torch-flex": attention}
