"""Gradients of the operators: their formula for PyTorch, and the ways that lead to it."""

from typing import Any

import torch
from torch import Tensor

from ._torch_ops import (
    BACKWARD_NAME,
    FORWARD_NAME,
    attend,
    attend_backward,
    attend_operator,
    backward_operator,
    library,
)

_NUM_TENSOR_OPTIONS = 6  # of the operators, before those that are none
# By is_grads_batched of torch.autograd.grad: the dispatcher takes such a tensor apart.
_is_batched: Any = getattr(
    getattr(torch._C, "_functorch", None), "is_legacy_batchedtensor", lambda _: False
)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    first = 3 + _NUM_TENSOR_OPTIONS
    ctx.save_for_backward(*inputs[:first], *output)
    ctx.options = inputs[first:]
    ctx.set_materialize_grads(False)


def _backward(
    ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None, run: Any = None
) -> tuple[Any, ...]:
    query, key, value, *tensors, out, lse = ctx.saved_tensors
    none = (None,) * (_NUM_TENSOR_OPTIONS + len(ctx.options))
    if grad_out is None:
        if grad_lse is None:
            return None, None, None, *none
        grad_out = torch.zeros_like(out)
    needed = (*ctx.needs_input_grad, *none)  # shorter where options were left out
    mask_grad, sinks_grad = bool(needed[3]), bool(needed[5])
    *grads, by_sinks, by_mask = (run or backward_operator)(
        grad_out,
        grad_lse,
        query,
        key,
        value,
        out,
        lse,
        sinks_grad,
        mask_grad,
        *tensors,
        *ctx.options,
    )
    sinks = by_sinks if sinks_grad else None
    mask = by_mask if mask_grad else None
    return (*grads, mask, None, sinks, *none[3:])


class EagerAttention(torch.autograd.Function):  # type: ignore[misc]
    """The operator's autograd for plain tensors outside of any mode, without the dispatcher."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        """(out, lse) of the operator's arguments, all of them."""
        output = attend(*inputs)
        _setup_context(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
        """Gradients by the operator's arguments."""
        recorded = torch.is_grad_enabled()  # for a second derivative, which the operator refuses
        batched = any(x is not None and _is_batched(x) for x in (grad_out, grad_lse))
        return _backward(ctx, grad_out, grad_lse, None if recorded or batched else attend_backward)


def _refuse_second(ctx: Any, *grads: Any) -> None:
    raise NotImplementedError(
        "scaled_dot_product_attention: expected at most one derivative, got a second one "
        "(create_graph=True); take PyTorch's function under "
        "torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH) for it"
    )


def refuse_forward_mode(tensors: list[Tensor]) -> None:
    """Raise if a tensor carries a derivative of forward mode: PyTorch would drop it silently."""
    forward_ad = torch.autograd.forward_ad
    if any(forward_ad.unpack_dual(x).tangent is not None for x in tensors):
        raise NotImplementedError(
            "scaled_dot_product_attention: expected tensors without a derivative of forward mode, "
            "got one; take gradients backward, or PyTorch's function under "
            "torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)"
        )


class TransformedAttention(torch.autograd.Function):  # type: ignore[misc]
    """The operator under torch.func.grad and its kin, which do not see the operator's autograd."""

    generate_vmap_rule = True
    setup_context = staticmethod(_setup_context)

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, Tensor]:
        """(out, lse) of the operator's arguments, all of them."""
        output: tuple[Tensor, Tensor] = attend_operator(*inputs)
        return output

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
        """Gradients by the operator's arguments."""
        return _backward(ctx, grad_out, grad_lse, _TransformedGradients.apply)


class _TransformedGradients(torch.autograd.Function):  # type: ignore[misc]
    generate_vmap_rule = True
    backward = staticmethod(_refuse_second)

    @staticmethod
    def forward(*inputs: Any) -> Any:
        return backward_operator(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept: there is no second derivative."""


torch.library.register_autograd(FORWARD_NAME, _backward, setup_context=_setup_context, lib=library)
torch.library.register_autograd(BACKWARD_NAME, _refuse_second, lib=library)
