"""zentorch, AMD's plugin for PyTorch: its own kernel for scaled dot product attention."""

from __future__ import annotations

import importlib
from importlib.metadata import version

from inputs import Inputs, allowed
from rows import Row

from . import Prepare, Prepared
from .pytorch import additive, inferring, tensor, threads, to_numpy, torch

importlib.import_module("zentorch")

__all__ = ["PREPARE", "threads", "versions"]


def versions() -> dict[str, str]:
    return {"zentorch": version("zentorch"), "torch": str(torch.__version__)}


def attention(row: Row, inputs: Inputs) -> Prepared:
    q, k, v = (tensor(inputs[name]) for name in "qkv")
    kernel = torch.ops.zentorch.zentorch_sdpa
    if row.num_queries == row.num_keys:
        return Prepared(inferring(lambda: kernel(q, k, v, 0.0, True)[0]), to_numpy)
    added = additive(torch.from_numpy(allowed(row, inputs)), q.dtype)
    call = inferring(lambda: kernel(q, k, v, 0.0, False, attn_mask=added)[0])
    return Prepared(call, to_numpy)


PREPARE: dict[str, Prepare] = {"zentorch": attention}
