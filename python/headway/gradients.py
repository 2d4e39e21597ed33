"""Gradients of attention: the backward pass, for training."""

from collections.abc import Callable
from typing import Any

import numpy as np

from . import _core
from .arrays import (
    Align,
    Array,
    ArrayInput,
    Integers,
    Numbers,
    Window,
    as_array,
    empty_result,
    result_shape,
    with_four_axes,
)
from .calls import Call
from .float_mode import UsualFloatMode
from .gradient_calls import (
    Saved,
    check_backward,
    check_packed_backward,
    dtype_of_sinks,
    write_gradients,
)
from .mask_gradients import mask_gradient

__all__ = ["attention_backward", "attention_varlen_backward"]


def attention_backward(
    grad_out: ArrayInput,
    q: ArrayInput,
    k: ArrayInput,
    v: ArrayInput,
    out: ArrayInput,
    lse: ArrayInput,
    *,
    grad_lse: ArrayInput | None = None,
    sinks_grad: bool = False,
    mask_grad: bool = False,
    causal: bool = True,
    align: Align = "end",
    scale: float | None = None,
    mask: ArrayInput | None = None,
    window: Window | None = None,
    softcap: float | None = None,
    alibi_slopes: Numbers | None = None,
    sinks: Numbers | None = None,
    kv_lengths: Integers | None = None,
    layout: str = "BHTD",
    dropout: float = 0.0,
    seed: int | None = None,
) -> tuple[Array, ...]:
    """Gradients of a loss by q, k and v, and by sinks and a float mask where asked for.

    The weights are computed anew, tile by tile, from `lse`; no (Tq, Tk) matrix is stored.

    Parameters
    ----------
    grad_out : array, (B, H, Tq, Dv)
        Gradient of the loss by the result of :func:`attention`, in its shape, layout and dtype:
        that of q, or float32 for 16-bit q.
    q, k, v : array
        The inputs of the forward pass: (B, H, Tq, D), (B, Hkv, Tk, D), (B, Hkv, Tk, Dv), as in
        :func:`attention`.
    out : array, (B, H, Tq, Dv)
        The result of the forward pass, in the dtype of `grad_out`. For 16-bit q a result in float32
        (``out=`` of the forward pass) makes the gradients more precise.
    lse : array, (B, H, Tq)
        The log-sum-exp that the forward pass returned with ``return_lse=True``: float64 for float64
        q, else float32. Head-first in every layout.
    grad_lse : array, (B, H, Tq), optional
        Gradient of the loss by `lse`, in its shape and dtype. Default: the loss does not use it.
    sinks_grad : bool, default False
        Return the gradient by `sinks`, too.
    mask_grad : bool, default False
        Return the gradient by a float `mask`, too.
    causal, align, scale, mask, window, softcap, alibi_slopes, sinks, kv_lengths, layout
        Those of the forward pass, as in :func:`attention`.
    dropout, seed
        Those of the forward pass: the same weights are dropped again.

    Returns
    -------
    dq, dk, dv : ndarray
        Gradients in the shape, layout and dtype of q, k and v; C-contiguous. Those of a key head
        are sums over the query heads that read it. A query that sees no key, and a key that no
        query sees, have gradients of exactly 0.
    dsinks : ndarray, (H,)
        Only with `sinks_grad`; in the dtype of `sinks` if they are an array of floats, else in the
        accumulation dtype (float64 for float64 q, else float32). 0 for a head without a sink.
    dmask : ndarray
        Only with `mask_grad`; in the shape of `mask` as it was given, summed over the axes along
        which it was broadcast, in the accumulation dtype. 0 where the key is hidden.

    Raises
    ------
    TypeError
        As in :func:`attention`; or if `grad_out`, `out`, `lse` or `grad_lse` is no array or of the
        wrong dtype.
    ValueError
        As in :func:`attention`; or if one of them has another shape than the forward pass gives,
        if `sinks_grad` is asked for without sinks, or `mask_grad` without a float mask.
    MemoryError
        If a result does not fit in memory.

    Notes
    -----
    With ``s`` the scores after every option, ``p = exp(s - lse)`` the weights, and ``sum`` along a
    row::

        dv = p.T @ grad_out
        ds = p * (grad_out @ v.T - sum(grad_out * out) + grad_lse)       (dmask)
        dx = ds * (1 - tanh(x / softcap) ** 2), where x = scale * q.k    (dx = ds without a cap)
        dq = scale * dx @ k
        dk = scale * dx.T @ q
        dsinks = sum over the queries of exp(sink - lse) * (grad_lse - sum(grad_out * out))

    Dropout multiplies ``p`` in the first line, and ``grad_out @ v.T``, by 0 or
    ``1 / (1 - dropout)``.

    Dao, "FlashAttention-2" (2023, arXiv:2307.08691), section 2.3 and algorithm 2; the softmax's
    derivative by one number for each row: Rabe and Staats (2021, arXiv:2112.05682) and Dao et al.,
    "FlashAttention" (2022, arXiv:2205.14135), appendix B.

    What is hidden from a query does not exist for it: a NaN there reaches no gradient by way of it.
    A `lse` of ``-inf`` says that the row sees nothing. `out` and `lse` may belong to more keys than
    k and v hold, as joined by :func:`merge_partials`: dq is then the share of these keys.

    The weights are as exact as `lse`: where that is large, ``abs(lse) * 6e-8`` is their relative
    error in float32. Hide rows by a mask of bools, not by adding -1e9 to all of their scores.

    Sums are kept in float32 (float64 for float64 input), and rounded once, to the dtype of q. Bits
    do not depend on the number of threads, on the batch, or on strides. Arrays are read as by
    :func:`attention`. The instruction set "amx" multiplies float32 and float16 numbers in three
    parts of bfloat16, which are exact, and takes sums below ``2**-126`` for 0.

    Memory: beyond inputs, results and copied inputs O(T): a few numbers for each query and head,
    and a fixed amount for each thread. `mask_grad` costs another pass over the scores and, if the
    mask was broadcast, an array of its size in float64 and blocks of a few MiB, or of 16 queries of
    all heads where these are larger.

    Examples
    --------
    Query 0 sees one value, query 1 two, which weigh the same; so the first value counts 1.5 times.

    >>> import numpy as np
    >>> import headway
    >>> q = k = np.zeros((2, 4), np.float32)
    >>> v = np.array([[0.0], [1.0]], np.float32)
    >>> out, lse = headway.attention(q, k, v, return_lse=True)
    >>> grad_out = np.ones((2, 1), np.float32)
    >>> dq, dk, dv = headway.attention_backward(grad_out, q, k, v, out, lse)
    >>> dv
    array([[1.5],
           [0.5]], dtype=float32)

    The gradient by a mask of numbers: more of the second key raises the second query's result.

    >>> mask = np.zeros((2, 2), np.float32)
    >>> *_, dmask = headway.attention_backward(
    ...     grad_out, q, k, v, out, lse, mask=mask, mask_grad=True)
    >>> dmask
    array([[ 0.  ,  0.  ],
           [-0.25,  0.25]], dtype=float32)
    """
    given = mask, window, softcap, alibi_slopes, sinks, kv_lengths
    given_rows = grad_out, out, lse, grad_lse
    call, saved = check_backward(
        q,
        k,
        v,
        causal,
        align,
        scale,
        layout,
        given,
        given_rows,
        sinks_grad,
        mask_grad,
        (dropout, seed),
    )
    with UsualFloatMode():
        results = _gradients(_core.attention_backward, call, saved, layout, sinks_grad, sinks)
        if mask_grad:
            results.append(mask_gradient(call, saved, as_array("mask", mask).shape))
    return tuple(results)


def attention_varlen_backward(
    grad_out: ArrayInput,
    q: ArrayInput,
    k: ArrayInput,
    v: ArrayInput,
    out: ArrayInput,
    lse: ArrayInput,
    cu_seqlens_q: Integers,
    cu_seqlens_k: Integers | None = None,
    *,
    grad_lse: ArrayInput | None = None,
    sinks_grad: bool = False,
    causal: bool = True,
    align: Align = "end",
    scale: float | None = None,
    window: Window | None = None,
    softcap: float | None = None,
    alibi_slopes: Numbers | None = None,
    sinks: Numbers | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
) -> tuple[Array, ...]:
    """Gradients of a loss by packed q, k and v: :func:`attention_backward` of each sequence alone.

    Parameters
    ----------
    grad_out : array, (total_q, H, Dv)
        Gradient of the loss by the result of :func:`attention_varlen`, in the dtypes of
        :func:`attention_backward`.
    q, k, v : array
        The inputs of the forward pass: (total_q, H, D), (total_k, Hkv, D), (total_k, Hkv, Dv).
    out : array, (total_q, H, Dv)
        The result of the forward pass, in the dtype of `grad_out`.
    lse : array, (H, total_q)
        The log-sum-exp that the forward pass returned with ``return_lse=True``.
    cu_seqlens_q, cu_seqlens_k
        Where the sequences begin and end, as in :func:`attention_varlen`.
    grad_lse : array, (H, total_q), optional
        Gradient of the loss by `lse`, in its dtype. Default: the loss does not use it.
    sinks_grad : bool, default False
        Return the gradient by `sinks`, too.
    causal, align, scale, window, softcap, alibi_slopes, sinks, dropout, seed
        Those of the forward pass, as in :func:`attention_varlen`.

    Returns
    -------
    dq, dk, dv : ndarray
        Gradients in the shapes and the dtype of q, k and v; C-contiguous.
    dsinks : ndarray, (H,)
        Only with `sinks_grad`: summed over all sequences, in the dtype that
        :func:`attention_backward` gives.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As in :func:`attention_backward`, and for the offsets as in :func:`attention_varlen`.

    Notes
    -----
    Formulas (Dao, "FlashAttention-2", 2023, arXiv:2307.08691) and memory are those of
    :func:`attention_backward`, with a few numbers for each sequence.

    Examples
    --------
    Two sequences, of 1 and of 2 tokens.

    >>> import numpy as np
    >>> import headway
    >>> q = k = v = np.zeros((3, 1, 1), np.float32)
    >>> out, lse = headway.attention_varlen(q, k, v, [0, 1, 3], return_lse=True)
    >>> dq, dk, dv = headway.attention_varlen_backward(
    ...     np.ones((3, 1, 1), np.float32), q, k, v, out, lse, [0, 1, 3])
    >>> dv.ravel()
    array([1. , 1.5, 0.5], dtype=float32)
    """
    given = window, softcap, alibi_slopes, sinks
    given_rows = grad_out, out, lse, grad_lse
    call, saved, queries, keys = check_packed_backward(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        causal,
        align,
        scale,
        given,
        given_rows,
        sinks_grad,
        (dropout, seed),
    )
    function = _core.attention_varlen_backward
    with UsualFloatMode():
        return tuple(_gradients(function, call, saved, "BTHD", sinks_grad, sinks, queries, keys))


def _gradients(
    function: Callable[..., None],
    call: Call,
    saved: Saved,
    layout: str,
    sinks_grad: bool,
    sinks: Any,
    *cuts: Array,
) -> list[Array]:
    """dq, dk and dv, and dsinks if asked for, as a function of the core gives them."""
    q, rank = call.q, call.rank
    make = empty_result if q.size else np.zeros  # without a query no key is seen: all are 0
    results = []
    for x in (q, call.k, call.v):
        results.append(make(result_shape(rank, layout, *x.shape), q.dtype))
    dsinks = np.zeros(q.shape[1]) if sinks_grad else None
    places = [with_four_axes(x, layout) for x in results]
    write_gradients(function, call, saved, places, dsinks, *cuts)
    if dsinks is not None:
        with np.errstate(all="ignore"):  # a gradient may pass the range of 16 bits
            results.append(dsinks.astype(dtype_of_sinks(sinks, call)))
    return results
