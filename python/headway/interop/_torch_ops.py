"""The operators ``headway::scaled_dot_product_attention`` and ``..._backward`` of PyTorch.

Defined when this module is imported, with kernels for the CPU and with shapes for tensors without
values (torch.compile, torch.export). Their autograd: `_torch_autograd`.
"""

from typing import Any

import torch
from torch import Tensor

from ..functional import attention
from ..gradients import attention_backward
from ._tensors import array_of, attend_at_once, tensor_of
from ._torch_tensors import KINDS, new_result, wide_dtype

_OPTIONS = (
    "Tensor? attn_mask=None, Tensor? alibi_slopes=None, Tensor? sinks=None, "
    "Tensor? kv_lengths=None, Tensor? positions=None, Tensor? seed=None, float dropout_p=0.0, "
    'bool is_causal=False, str align="start", float? scale=None, SymInt[]? window=None, '
    "float softcap=0.0"
)
_FORWARD = (
    f"scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, {_OPTIONS})"
    " -> (Tensor out, Tensor lse)"
)
_BACKWARD = (
    "scaled_dot_product_attention_backward(Tensor grad_out, Tensor? grad_lse, Tensor query, "
    "Tensor key, Tensor value, Tensor out, Tensor lse, bool sinks_grad, bool mask_grad, "
    f"{_OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
FORWARD_NAME = "headway::scaled_dot_product_attention"
BACKWARD_NAME = "headway::scaled_dot_product_attention_backward"


def _options(
    attn_mask: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    kv_lengths: Tensor | None = None,
    positions: Tensor | None = None,
    seed: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    align: str = "start",
    scale: float | None = None,
    window: list[int] | None = None,
    softcap: float = 0.0,
) -> dict[str, Any]:
    """The options of `headway.attention` for those of the operator."""
    options: dict[str, Any] = {
        "causal": is_causal,
        "align": align if positions is None else array_of(positions),
        "scale": scale,
        "softcap": softcap,
    }
    tensors = {
        "mask": attn_mask,
        "alibi_slopes": alibi_slopes,
        "sinks": sinks,
        "kv_lengths": kv_lengths,
    }
    options |= {name: array_of(x) for name, x in tensors.items() if x is not None}
    if window is not None:
        options["window"] = window[0] if len(window) == 1 else tuple(window)
    if dropout_p > 0:
        if seed is None:
            raise ValueError(
                "seed: expected a tensor of one int64 where dropout_p is above 0, got None; "
                "pass torch.randint(2**63 - 1, ())"
            )
        options |= {"dropout": dropout_p, "seed": int(seed) & (2**64 - 1)}
    return options


# Kernels ------------------------------------------------------------------------------------------


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    kv_lengths: Tensor | None = None,
    positions: Tensor | None = None,
    seed: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    align: str = "start",
    scale: float | None = None,
    window: list[int] | None = None,
    softcap: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """(out, lse) of (B, H, T, D) tensors, computed in place in new tensors."""
    tensors = attn_mask, alibi_slopes, sinks, kv_lengths, positions, seed
    plainly = window is None and softcap == 0 and align == "start" and dropout_p == 0
    if plainly and all(x is None for x in tensors):
        rows = query.new_empty(query.shape[:3], dtype=wide_dtype(query.dtype))
        operands = query.detach(), key.detach(), value.detach()
        plain = attend_plain(*operands, is_causal, scale, True, rows)
        if plain is not None:
            return plain, rows
    options = _options(*tensors, dropout_p, is_causal, align, scale, window, softcap)
    out = new_result(query, value.shape[3])
    arrays = array_of(query), array_of(key), array_of(value)
    _, lse = attention(*arrays, out=array_of(out), return_lse=True, **options)
    return out, tensor_of(lse)


def gradients(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    *options: Any,
    **asked: Any,
) -> list[Tensor]:
    """Those of `headway.attention_backward`; `asked` is what that takes beside the options."""
    found = attention_backward(
        array_of(grad_out),
        array_of(query),
        array_of(key),
        array_of(value),
        array_of(out),
        array_of(lse),
        **asked,
        **_options(*options),
    )
    return [tensor_of(x) for x in found]


def attend_backward(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    sinks_grad: bool,
    mask_grad: bool,
    *options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients by query, key, value, sinks and mask; the last two empty where not asked for."""
    rows = None if grad_lse is None else array_of(grad_lse)
    asked = {"grad_lse": rows, "sinks_grad": sinks_grad, "mask_grad": mask_grad}
    found = gradients(grad_out, query, key, value, out, lse, *options, **asked)
    mask = found.pop().to(options[0].dtype) if mask_grad else query.new_empty(0)
    sinks = found.pop().to(options[2].dtype) if sinks_grad else query.new_empty(0)
    return found[0], found[1], found[2], sinks, mask


# Asked of PyTorch before each call. In a version without one of them no call is taken at once.
_num_modes: Any = getattr(torch._C, "_len_torch_dispatch_stack", None)
_transforms: Any = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", None)
num_function_modes: Any = getattr(torch._C, "_len_torch_function_stack", lambda: 1)
_is_tracing: Any = getattr(torch._C, "_is_tracing", None)
_forward_ad = torch.autograd.forward_ad
_can_ask: bool = all((_num_modes, _transforms, _is_tracing, hasattr(_forward_ad, "_current_level")))


def is_eager() -> bool:
    """Does PyTorch call its kernels at once, and does nothing else want to see the call?

    False for torch.compile, torch.export, tracing, torch.func, any mode with __torch_dispatch__,
    and forward-mode automatic differentiation.
    """
    return (
        not torch.compiler.is_compiling()
        and _can_ask
        and not _num_modes()
        and _transforms() is None
        and not _is_tracing()
        and _forward_ad._current_level < 0
    )


def is_transformed() -> bool:
    """Is a transform of torch.func in force?"""
    return _transforms is not None and _transforms() is not None


def attend_plain(
    query: Any,
    key: Any,
    value: Any,
    is_causal: Any,
    scale: Any,
    grouped: Any,
    lse: Tensor | None = None,
) -> Tensor | None:
    """The everyday call without gradients in few steps; None where anything needs a closer look.

    It fills the (B, H, Tq) tensor `lse`, too.
    """
    if type(query) is not Tensor or type(key) is not Tensor or type(value) is not Tensor:
        return None
    dtype = query.dtype
    kind = KINDS.get(dtype)
    if (
        kind is None
        or key.dtype is not dtype
        or value.dtype is not dtype
        or query.requires_grad
        or key.requires_grad
        or value.requires_grad
        or (is_causal is not True and is_causal is not False)
        or (grouped is not True and grouped is not False)
        or (scale is not None and (type(scale) is not float or scale - scale != 0))
    ):
        return None
    try:
        if grouped is False and query.shape[1] != key.shape[1]:
            return None
        width = value.shape[3]
        out = torch.empty_like(query) if width == query.shape[3] else new_result(query, width)
        done = attend_at_once(query, key, value, out, out.stride(), lse, kind, is_causal, scale)
    except (IndexError, RuntimeError):
        return None  # of another rank, or not readable where it lies: the checks tell
    return out if done else None


# Shapes of tensors without values -----------------------------------------------------------------


def _shapes(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    lse = query.new_empty(query.shape[:3], dtype=wide_dtype(query.dtype))
    return new_result(query, value.shape[3]), lse


def _backward_shapes(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    sinks_grad: bool,
    mask_grad: bool,
    *options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    def new(like: Tensor) -> Tensor:
        return torch.empty_like(like, memory_format=torch.contiguous_format)

    empty = query.new_empty(0)
    sinks = new(options[2]) if sinks_grad else empty
    mask = new(options[0]) if mask_grad else query.new_empty(0)
    return new(query), new(key), new(value), sinks, mask


# Registration -------------------------------------------------------------------------------------

library = torch.library.Library("headway", "FRAGMENT")
for _schema, _name, _kernel, _fake in (
    (_FORWARD, FORWARD_NAME, attend, _shapes),
    (_BACKWARD, BACKWARD_NAME, attend_backward, _backward_shapes),
):
    library.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))
    library.impl(_name, _kernel, "CPU")
    torch.library.register_fake(_name, _fake, lib=library)
attend_operator = torch.ops.headway.scaled_dot_product_attention.default
backward_operator = torch.ops.headway.scaled_dot_product_attention_backward.default
