"""Kernels that take the place of PyTorch's own for attention on the CPU.

Each is called with the dispatcher's keys before the operator's arguments. What headway does not
compute goes to the kernel that stood there before, `originals`.
"""

import threading
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from ._torch_ops import attend, attend_plain, gradients
from ._torch_tensors import KINDS, has_bfloat16, wide_dtype

FORWARD = "_scaled_dot_product_flash_attention_for_cpu"
BACKWARD = "_scaled_dot_product_flash_attention_for_cpu_backward"
MATH = "_scaled_dot_product_attention_math"
MODULE = "_native_multi_head_attention"

ARGUMENTS = {
    FORWARD: "query key value dropout_p is_causal attn_mask scale",
    BACKWARD: "grad_out query key value out logsumexp dropout_p is_causal attn_mask scale",
    MATH: "query key value attn_mask dropout_p is_causal dropout_mask scale enable_gqa",
    MODULE: "query key value embed_dim num_head qkv_weight qkv_bias proj_weight proj_bias mask "
    "need_weights average_attn_weights mask_type",
}
"""What the kernels rely on: the arguments in PyTorch's schemas."""

originals: dict[tuple[str, str], Any] = {}
"""PyTorch's kernels by the operator's name and the dispatch key, while they are replaced."""

lock = threading.RLock()
tallies: list["Tally"] = []
"""Those that count at this time."""


class Tally:
    """Counts of attention: computed by headway, and left to PyTorch."""

    def __init__(self) -> None:
        self.calls = 0
        self.missed = 0


def count(served: bool) -> None:
    """Count a call in every tally; not while a graph is made, for then nothing is computed."""
    if torch.compiler.is_compiling():
        return
    with lock:
        for tally in tallies:
            if served:
                tally.calls += 1
            else:
                tally.missed += 1


def _original(name: str, key: str, keyset: Any, *args: Any, **kwargs: Any) -> Any:
    return originals[name, key].call_boxed(keyset, *args, **kwargs)


def _fits(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    scale: float | None,
) -> bool:
    """Is it what PyTorch sends here in the versions that are known, and what headway computes?"""
    return (
        dropout == 0
        and query.dtype is key.dtype is value.dtype
        and query.dtype in KINDS
        and (query.dtype is not torch.bfloat16 or has_bfloat16())
        and query.dim() == key.dim() == value.dim() == 4
        and query.shape[3] == key.shape[3] > 0
        and key.shape[:3] == value.shape[:3]
        and query.shape[0] == key.shape[0]
        and key.shape[1] > 0
        and query.shape[1] % key.shape[1] == 0
        and (mask is None or (mask.dim() in (2, 4) and _is_mask(mask.dtype)))
        and (scale is None or isfinite(scale))
    )


def _is_mask(dtype: Any) -> bool:
    return dtype is torch.bool or dtype in KINDS


def forward(
    keyset: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """(out, lse) of the fused kernel, in its places in memory."""
    if not _fits(query, key, value, attn_mask, dropout_p, scale):
        count(False)
        args = query, key, value, dropout_p, is_causal
        result: tuple[Tensor, Tensor] = _original(
            FORWARD, "CPU", keyset, *args, attn_mask=attn_mask, scale=scale
        )
        return result
    count(True)
    batch, heads, tokens, _ = query.shape  # the lse is laid out as PyTorch does
    lse = query.new_empty((batch, tokens, heads), dtype=wide_dtype(query.dtype)).transpose(1, 2)
    query, key, value = query.detach(), key.detach(), value.detach()
    if attn_mask is None:
        out = attend_plain(query, key, value, is_causal, scale, True, lse)
        if out is not None:
            return out, lse
    options = attn_mask, None, None, None, None, None, 0.0, is_causal, "start", scale
    out, rows = attend(query, key, value, *options)
    # For a row that sees nothing PyTorch has 0, not -inf: its own backward pass may follow.
    return out, lse.copy_(rows).masked_fill_(rows == -torch.inf, 0.0)


def backward(
    keyset: Any,
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the fused kernel by query, key and value."""
    if not _fits(query, key, value, attn_mask, dropout_p, scale):
        args = grad_out, query, key, value, out, logsumexp, dropout_p, is_causal
        result: tuple[Tensor, Tensor, Tensor] = _original(
            BACKWARD, "CPU", keyset, *args, attn_mask=attn_mask, scale=scale
        )
        return result
    options = attn_mask, None, None, None, None, None, 0.0, is_causal, "start", scale
    tokens_first = (x.transpose(1, 2) for x in (grad_out, query, key, value, out))
    dq, dk, dv = gradients(*tokens_first, logsumexp, *options, layout="BTHD")
    return dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)  # as PyTorch lays them out


def math(key: str) -> Any:
    """The composed attention, counted, as it stands under a dispatch key."""

    def counted(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        count(False)
        return _original(MATH, key, keyset, *args, **kwargs)

    return counted


def module(
    keyset: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The fast path of MultiheadAttention, from its input to the output projection."""
    served = (
        query is key is value
        and not need_weights
        and query.dim() == 3
        and query.dtype in KINDS
        and (query.dtype is not torch.bfloat16 or has_bfloat16())
        and qkv_weight.dtype is query.dtype
        and query.shape[2] == embed_dim > 0
        and (mask is None or mask_type in (0, 1, 2))
    )
    count(served)
    if not served:
        args = query, key, value, embed_dim, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias
        options = mask, need_weights, average_attn_weights, mask_type
        result: tuple[Tensor, Tensor | None] = _original(MODULE, "CPU", keyset, *args, *options)
        return result
    joined = torch.nn.functional.linear(query, qkv_weight, qkv_bias)
    query, key, value = joined.unflatten(2, (3, num_head, -1)).permute(2, 0, 3, 1, 4)
    allowed = None if mask is None else ~mask.bool()  # there True is hidden
    if allowed is not None and mask_type == 1:
        allowed = allowed[:, None, None, :]
    out, _ = attend(query, key, value, allowed)
    merged = out.transpose(1, 2).flatten(2)
    return torch.nn.functional.linear(merged, proj_weight, proj_bias), None


def kernels() -> dict[tuple[str, str], Any]:
    """The kernels by the operator's name and the dispatch key under which they stand.

    PyTorch reaches its composed attention below AutogradCPU, and in inference mode below CPU.
    """
    return {
        (FORWARD, "CPU"): forward,
        (BACKWARD, "CPU"): backward,
        (MATH, "AutogradCPU"): math("AutogradCPU"),
        (MATH, "CPU"): math("CPU"),
        (MODULE, "CPU"): module,
    }
