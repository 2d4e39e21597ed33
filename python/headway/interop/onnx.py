"""The operator Attention of ONNX, opsets 23 to 25, on NumPy arrays and for ONNX's evaluator.

:func:`attention` has the operator's inputs and attributes, and needs no other package.
``headway.interop.onnx.Attention`` is the operator as a class for
``onnx.reference.ReferenceEvaluator``; it needs the package onnx (``pip install 'headway[onnx]'``)::

    from onnx.reference import ReferenceEvaluator
    from headway.interop.onnx import Attention
    evaluator = ReferenceEvaluator(model, new_ops=[Attention])
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arrays import Array, ArrayInput, as_array, empty_result
from ..functional import attention as fused
from ..matrices import attention_scores, attention_weights
from ._onnx_inputs import (
    check_attributes,
    checked_mask,
    checked_past,
    checked_valid,
    split_heads,
    working_dtype,
)

if TYPE_CHECKING:
    Attention: type[Any]

__all__ = ["Attention", "attention"]

Results = tuple[Array, Array | None, Array | None, Array | None]

_STAGES = ("scaled", "capped", "masked")  # of the scores, by the number of the mode; 3: the weights


def __dir__() -> list[str]:
    return __all__


def attention(
    Q: ArrayInput,
    K: ArrayInput,
    V: ArrayInput,
    attn_mask: ArrayInput | None = None,
    past_key: ArrayInput | None = None,
    past_value: ArrayInput | None = None,
    nonpad_kv_seqlen: ArrayInput | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int | None = None,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
) -> Results:
    """ONNX's operator Attention, with its names, shapes and defaults.

    Parameters
    ----------
    Q : array, (B, H, Tq, D) or (B, Tq, H * D)
        Queries; float32, float64, float16 or bfloat16.
    K : array, (B, Hkv, Tk, D) or (B, Tk, Hkv * D)
        Keys, in the dtype and the rank of Q.
    V : array, (B, Hkv, Tk, Dv) or (B, Tk, Hkv * Dv)
        Values, in the rank of Q; one of the four dtypes, not always that of Q.
    attn_mask : array that broadcasts to (B, H, Tq, total), optional
        ``total = P + Tk``. bool: True where the query may attend; numbers: added to the scores,
        after the soft cap. A last axis that is shorter than total is filled up with forbidden keys.
    past_key, past_value : array, (B, Hkv, P, D) and (B, Hkv, P, Dv), optional
        Keys and values that stand before K and V; both or neither.
    nonpad_kv_seqlen : (B,) ints from 0 to Tk, optional
        K and V are a whole cache, of which only so many entries count. Not together with a past.
    is_causal : int, default 0
        1: query i sees the keys up to ``i + offset``. The offset is P with a past,
        ``nonpad_kv_seqlen - Tq`` with lengths, and else 0, even where Tq and Tk differ.
    q_num_heads, kv_num_heads : int, optional
        H and Hkv: wanted for inputs of three axes, where they say how to split the last one.
    left_window_size, right_window_size : int, default -1
        A query at ``p = i + offset`` sees the keys ``p - left`` to ``p + right``; -1 is no limit.
    qk_matmul_output_mode : {0, 1, 2, 3}, optional
        What the fourth result holds: 0 the scores ``scale * Q K^T``; 1 those after the soft cap;
        2 those after the mask, too, ``-inf`` where a key is forbidden; 3 the weights. None: the
        fourth result is None.
    scale : float, optional
        Factor on ``Q K^T``. Default ``1 / sqrt(D)``.
    softcap : float, default 0
        Makes a score ``softcap * tanh(score / softcap)``; 0 is none.
    softmax_precision : {1, 10, 11, 16}, optional
        Type of the softmax by ONNX's numbers: float32, float16, float64, bfloat16. It is computed
        at least as precisely: in float64 for 11, else in float32 or, for float64 input, float64.

    Returns
    -------
    Y : ndarray, (B, H, Tq, Dv) or (B, Tq, H * Dv)
        Context vectors in the rank and dtype of Q. A query without a key has the context 0.
    present_key, present_value : ndarray or None, (B, Hkv, total, D) and (B, Hkv, total, Dv)
        The past and the new ones, joined; None without a past.
    qk_matmul_output : ndarray or None, (B, H, Tq, total)
        As the mode says, in the dtype of Q; None without a mode.

    Raises
    ------
    TypeError
        If an input or attribute is of the wrong kind or dtype.
    ValueError
        If a shape or a range is wrong, or inputs are given that exclude each other.

    Notes
    -----
    The semantics are those of ONNX 1.23, for opsets 23 to 25: causality counts from the past or
    the lengths, the mask is added after the soft cap, a row without a key is 0. Opset 25 asks for
    numbers of heads with three axes only; with four they may be given where they agree.

    Memory: as :func:`headway.attention`, plus the joined arrays; (B, H, Tq, total) numbers only for
    the fourth result. V of another dtype than Q, and 11 for the softmax, cost converted copies.

    Source: the ONNX operator Attention, https://onnx.ai/onnx/operators/onnx__Attention.html.

    Examples
    --------
    >>> import numpy as np
    >>> from headway.interop import onnx
    >>> Q, K, V = np.zeros((1, 2, 4)), np.zeros((1, 2, 4)), np.arange(4.0).reshape(1, 2, 2)
    >>> Y, present_key, present_value, weights = onnx.attention(
    ...     Q, K, V, q_num_heads=2, kv_num_heads=2, is_causal=1, qk_matmul_output_mode=3
    ... )
    >>> Y
    array([[[0., 1.],
            [1., 2.]]])
    >>> present_key is None
    True
    >>> weights[0, 0]
    array([[1. , 0. ],
           [0.5, 0.5]])
    """
    mode = qk_matmul_output_mode
    check_attributes(is_causal, left_window_size, right_window_size, mode, softmax_precision)
    inputs = as_array("Q", Q), as_array("K", K), as_array("V", V)
    q, k, v = split_heads(inputs, q_num_heads, kv_num_heads)
    past = checked_past(past_key, past_value, k, v)
    if past is not None:
        k, v = np.concatenate([past[0], k], axis=2), np.concatenate([past[1], v], axis=2)
    lengths = checked_valid(nonpad_kv_seqlen, past is not None, q.shape[0], k.shape[2])
    working = working_dtype(q, v, softmax_precision)
    query, key, value = (x.astype(working, copy=False) for x in (q, k, v))

    shape = q.shape[0], q.shape[1], q.shape[2], k.shape[2]
    offset: Any = 0 if past is None else past[0].shape[2]
    options: dict[str, Any] = {
        "causal": bool(is_causal),
        "align": offset if lengths is None else "end",
        "kv_lengths": lengths,
        "scale": scale,
        "softcap": softcap,
        "mask": None if attn_mask is None else checked_mask(attn_mask, shape, working),
    }
    if (left_window_size, right_window_size) != (-1, -1):
        options["window"] = left_window_size, right_window_size
    out = fused(query, key, value, out=_result(inputs[0].ndim, query, value), **options)
    if inputs[0].ndim == 3:
        batch, heads, tokens, width = out.shape
        out = out.swapaxes(1, 2).reshape(batch, tokens, heads * width)
    product: Array | None = None
    if mode is not None:
        if mode == 3:
            product = attention_weights(query, key, **options)
        else:
            product = attention_scores(query, key, stage=_STAGES[mode], **options)
        with np.errstate(over="ignore"):  # a score may pass the range of float16
            product = product.astype(q.dtype, copy=False)
    present = (None, None) if past is None else (k, v)
    return out.astype(q.dtype, copy=False), *present, product


def _result(rank: int, q: Array, v: Array) -> Array:
    """A new (B, H, Tq, Dv) array whose memory has the order of the axes that the result has."""
    batch, heads, tokens, _ = q.shape
    if rank == 4:
        return empty_result((batch, heads, tokens, v.shape[3]), q.dtype)
    return empty_result((batch, tokens, heads, v.shape[3]), q.dtype).swapaxes(1, 2)


def __getattr__(name: str) -> Any:
    if name == "Attention":
        return _operator()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def _operator() -> type[Any]:
    """The class for ``new_ops`` of an evaluator; made when it is asked for."""
    try:
        from onnx.reference.op_run import OpRun
    except ImportError:
        raise ImportError(
            "interop.onnx.Attention needs the package onnx: pip install 'headway[onnx]'"
        ) from None

    class Attention(OpRun):  # type: ignore[misc, unused-ignore]
        """The operator Attention, opsets 23 to 25, by :func:`headway.interop.onnx.attention`."""

        op_domain = ""

        def _run(self, *inputs: Any, **attributes: Any) -> Results:
            """All four results; None for one that the node leaves out."""
            names = list(self.onnx_node.output)
            given = {name: x for name, x in attributes.items() if x is not None}
            mode = given.pop("qk_matmul_output_mode", 0)
            if names[3:] and names[3]:
                given["qk_matmul_output_mode"] = mode
            out, key, value, product = attention(*inputs, **given)
            if key is None and any(names[1:3]):  # without a past, what is present is the new
                heads = given.get("q_num_heads"), given.get("kv_num_heads")
                _, key, value = split_heads(inputs[:3], *heads)
            return out, key, value, product

        def _check_and_fix_outputs(self, results: Any) -> Any:
            """Let None pass: under the name "", an array would be a later node's absent input."""
            return results

    Attention.__module__, Attention.__qualname__ = __name__, "Attention"
    return Attention
