"""What the backward pass takes beside a checked call, checked; and what it asks for."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .arrays import (
    Array,
    as_array,
    dtype_text,
    elementwise_readable,
    kind_of,
    readable,
    result_shape,
    with_four_axes,
)
from .calls import Call, check_attention, check_packed
from .checks import check_flag
from .options import Options

_FORWARD = "pass what the forward pass returned with return_lse=True"


class Saved(NamedTuple):
    """What comes down from the loss and what the forward pass left, as the core can read it."""

    grad_out: Array  # (B, H, Tq, Dv)
    out: Array  # (B, H, Tq, Dv), in the dtype of grad_out
    lse: Array  # (B, H, Tq), in the accumulation dtype
    grad_lse: Array | None  # the same
    kind: str  # the name of the dtype of grad_out and out

    def of_queries(self, rows: slice) -> "Saved":
        """Views of some of the queries."""
        grad_lse = None if self.grad_lse is None else self.grad_lse[:, :, rows]
        grad_out, out, lse = self.grad_out[:, :, rows], self.out[:, :, rows], self.lse[:, :, rows]
        return Saved(grad_out, out, lse, grad_lse, self.kind)


def check_backward(
    q: Any,
    k: Any,
    v: Any,
    causal: Any,
    align: Any,
    scale: Any,
    layout: Any,
    given: tuple[Any, Any, Any, Any, Any, Any],
    saved: tuple[Any, Any, Any, Any],
    sinks_grad: Any,
    mask_grad: Any,
    drops: tuple[Any, Any],
) -> tuple[Call, Saved]:
    """Check one call of the backward pass.

    ``given`` is as for :func:`check_attention`; ``saved`` is grad_out, out, lse and grad_lse;
    ``drops`` is dropout and seed.
    """
    call = check_attention(q, k, v, causal, align, scale, layout, given, None, False, *drops)
    _check_wanted(call.options, sinks_grad, mask_grad)
    return call, _check_saved(call, str(layout), saved)


def check_packed_backward(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    causal: Any,
    align: Any,
    scale: Any,
    given: tuple[Any, Any, Any, Any],
    saved: tuple[Any, Any, Any, Any],
    sinks_grad: Any,
    drops: tuple[Any, Any],
) -> tuple[Call, Saved, Array, Array]:
    """Check one call of the backward pass on packed sequences, as :func:`check_packed` does."""
    call, queries, keys = check_packed(
        q, k, v, cu_seqlens_q, cu_seqlens_k, causal, align, scale, given, None, False, *drops
    )
    _check_wanted(call.options, sinks_grad, False)
    return call, _check_saved(call, "BTHD", saved), queries, keys


def _check_wanted(options: Options | None, sinks_grad: Any, mask_grad: Any) -> None:
    """There is something to be differentiated by."""
    check_flag("sinks_grad", sinks_grad)
    check_flag("mask_grad", mask_grad)
    if sinks_grad and (options is None or options.sinks is None):
        raise ValueError(
            "sinks_grad: expected a call with sinks, got none; pass sinks, or sinks_grad=False"
        )
    kind = "" if options is None else options.mask_kind
    if mask_grad and kind in ("", "bool"):
        got = "a mask of bool" if kind else "none"
        raise ValueError(
            f"mask_grad: expected a call with a mask of numbers, got {got}; "
            "pass a float mask, or mask_grad=False"
        )


def _check_saved(call: Call, layout: str, saved: tuple[Any, Any, Any, Any]) -> Saved:
    """Shapes and dtypes are those that the forward pass gives for this call."""
    batch, num_heads, tq, _ = call.q.shape
    contexts = result_shape(call.rank, layout, batch, num_heads, tq, call.v.shape[3])
    rows = (batch, num_heads, tq)[4 - call.rank :]
    grad_out, out = as_array("grad_out", saved[0]), as_array("out", saved[1])
    kind = _check_context("grad_out", grad_out, contexts, call)
    other = _check_context("out", out, contexts, call)
    if other != kind:
        raise TypeError(
            f"out: expected {kind} like grad_out, got {other}; "
            f"convert with out.astype({dtype_text(kind, 'grad_out')})"
        )
    lse = _check_rows("lse", saved[2], rows, call)
    grad_lse = None if saved[3] is None else _check_rows("grad_lse", saved[3], rows, call)
    grad4, out4 = readable(with_four_axes(grad_out, layout)), readable(with_four_axes(out, layout))
    return Saved(grad4, out4, lse, grad_lse, kind)


def _check_context(name: str, x: Array, shape: tuple[int, ...], call: Call) -> str:
    """The dtype's name: that of q, or float32 where q has 16 bits."""
    kind = kind_of(name, x)
    half = call.kind in ("float16", "bfloat16")
    if kind != call.kind and not (half and kind == "float32"):
        wanted = f"{call.kind} like q" + (", or float32" if half else "")
        fix = f"{name}.astype({dtype_text(call.kind)})"
        raise TypeError(f"{name}: expected {wanted}, got {kind}; convert with {fix}")
    if x.shape != shape:
        fix = "pass the gradient at the result of the forward pass"
        raise ValueError(
            f"{name}: expected shape {shape}, that of the result, got {x.shape}; "
            f"{fix if name == 'grad_out' else _FORWARD}"
        )
    return kind


def _check_rows(name: str, x: Any, shape: tuple[int, ...], call: Call) -> Array:
    """A (B, H, Tq) view of one number for each row, in the accumulation dtype."""
    array = as_array(name, x)
    kind = kind_of(name, array)
    wanted = np.dtype(call.wide).name
    if kind != wanted:
        raise TypeError(
            f"{name}: expected {wanted} for q of {call.kind}, got {kind}; "
            f"convert with {name}.astype(np.{wanted})"
        )
    if array.shape != shape:
        fix = "pass the gradient at the lse" if name == "grad_lse" else _FORWARD
        raise ValueError(
            f"{name}: expected shape {shape}, one number for each query and head, got "
            f"{array.shape}; {fix}"
        )
    return elementwise_readable(array)[(None,) * (4 - call.rank)]


def dtype_of_sinks(sinks: Any, call: Call) -> np.dtype[Any]:
    """That of the given sinks if they are an array of floats, else the accumulation dtype."""
    dtype: np.dtype[Any] = np.dtype(call.wide)
    if hasattr(sinks, "__array__") or hasattr(sinks, "__dlpack__"):
        given = as_array("sinks", sinks).dtype
        if given.name in ("float32", "float64", "float16", "bfloat16"):
            dtype = given.newbyteorder("=")
    return dtype


def write_gradients(
    function: Callable[..., None],
    call: Call,
    saved: Saved,
    places: Sequence[Array],
    dsinks: Array | None,
    *cuts: Array,
) -> None:
    """Let a function of the core write dq, dk and dv to (B, H, T, D) views; dsinks to float64."""
    q, k, v, kind, _, factor, hides, _, options = call
    if not q.size:
        return
    function(
        saved.grad_out,
        q,
        k,
        v,
        saved.out,
        saved.lse,
        saved.grad_lse,
        *places,
        dsinks,
        kind,
        saved.kind,
        factor,
        hides,
        call.offsets,
        options,
        *cuts,
    )
