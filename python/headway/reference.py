"""Causal multi-head attention in plain NumPy: the oracle.

Everything is computed in float64, in the order in which the formulas are read, and with whole
``(Tq, Tk)`` matrices in memory. The fast functions of the package never store those matrices;
apart from rounding they give the same numbers.

For one head, with queries ``q`` (Tq, D), keys ``k`` (Tk, D) and values ``v`` (Tk, Dv); query i
stands at the key position ``p = offset + i``::

    scores  = q @ k.T * scale            scale = 1 / sqrt(D) if none is given
    scores  = cap * tanh(scores / cap)   soft cap
    scores -= slope * |p - j|            ALiBi
    scores += mask                       a mask of numbers
    scores  = -inf where hidden          causal: j > p; window, lengths, a mask of bools, -inf
    weights = softmax(scores)            along the keys; a sink is one score more, without a value
    context = weights @ v

Each step is a function of :mod:`headway.formulas`.

(Vaswani et al., "Attention Is All You Need", 2017, section 3.2; Gemma Team, "Gemma 2", 2024,
section 2, for the soft cap; Press et al., "Train Short, Test Long", 2022, for ALiBi; Xiao et al.,
"Efficient Streaming Language Models with Attention Sinks", 2024, and OpenAI, "gpt-oss model card",
2025, for sinks.)

A hidden key does not exist for the query: NaN or infinity there changes nothing. A query that sees
no key at all has the context 0 and the log-sum-exp ``-inf``, or its sink.
"""

from typing import Any

import numpy as np

from . import formulas
from .arrays import Array, head_first
from .calls import check_attention, check_packed
from .checks import check_stage
from .options import Options
from .reference_backward import attention_backward, attention_varlen_backward
from .reference_rotary import rotary_embedding

__all__ = [
    "attention",
    "attention_backward",
    "attention_scores",
    "attention_varlen",
    "attention_varlen_backward",
    "attention_weights",
    "rotary_embedding",
]


def __dir__() -> list[str]:
    return __all__


@np.errstate(all="ignore")
def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = True,
    align: Any = "end",
    scale: float | None = None,
    mask: Any = None,
    window: Any = None,
    softcap: float | None = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    kv_lengths: Any = None,
    layout: str = "BHTD",
    out: Array | None = None,
    return_lse: bool = False,
) -> Any:
    """Weighted sum of the values that each query may see, in float64 inside.

    Parameters
    ----------
    q, k, v, causal, align, scale, mask, window, softcap, alibi_slopes, sinks, kv_lengths
        As in :func:`headway.attention`.
    layout, out, return_lse
        As in :func:`headway.attention`.

    Returns
    -------
    out : ndarray, (B, H, Tq, Dv)
        Context vectors in the rank, layout and dtype of q, or `out` itself.
    lse : ndarray, (B, H, Tq)
        Only with `return_lse`: the log-sum-exp of each row's scores, head-first in every layout.

    Raises
    ------
    TypeError, ValueError
        As in :func:`headway.attention`.

    Notes
    -----
    Memory: several arrays of B * H * Tq * Tk float64 numbers.

    Examples
    --------
    With ``q = 0`` every visible key has the same weight, so the result is a mean.

    >>> import numpy as np
    >>> from headway import reference
    >>> q = k = np.zeros((3, 4))
    >>> v = np.array([[0.0], [1.0], [2.0]])
    >>> reference.attention(q, k, v)
    array([[0. ],
           [0.5],
           [1. ]])
    """
    given = mask, window, softcap, alibi_slopes, sinks, kv_lengths
    call = check_attention(q, k, v, causal, align, scale, layout, given, out, return_lse)
    scores, seen = formulas.scores_of(call, "masked")
    weights, lse = formulas.softmax(scores, seen, (call.options or Options()).sinks)
    seen = seen & (scores != -np.inf).any(axis=-1, keepdims=True)
    v = call.v.astype(np.float64)
    context = formulas.weighted_sum(weights, formulas.head_of_each_query(v, call.q), seen)

    context = head_first(context, call.rank)
    if layout == "BTHD" and call.rank > 2:
        context = context.swapaxes(-3, -2)
    if out is None:
        out = context.astype(call.q.dtype, order="C")
    else:
        np.copyto(out, context, casting="unsafe")
    if return_lse:
        return out, head_first(lse, call.rank).astype(call.wide, order="C")
    return out


@np.errstate(all="ignore")
def attention_weights(
    q: Any,
    k: Any,
    *,
    causal: bool = True,
    align: Any = "end",
    scale: float | None = None,
    mask: Any = None,
    window: Any = None,
    softcap: float | None = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    kv_lengths: Any = None,
    layout: str = "BHTD",
) -> Array:
    """Softmax of the scores: how much of each value goes into each context vector.

    Parameters
    ----------
    q, k, causal, align, scale, mask, window, softcap, alibi_slopes, sinks, kv_lengths, layout
        As in :func:`headway.attention`.

    Returns
    -------
    ndarray, (B, H, Tq, Tk)
        Weights in the dtype of q, head-first in every layout.

    Raises
    ------
    TypeError, ValueError
        As in :func:`headway.attention`.

    Examples
    --------
    >>> import numpy as np
    >>> from headway import reference
    >>> reference.attention_weights(np.zeros((2, 4)), np.zeros((2, 4)))
    array([[1. , 0. ],
           [0.5, 0.5]])
    """
    given = mask, window, softcap, alibi_slopes, sinks, kv_lengths
    call = check_attention(q, k, k, causal, align, scale, layout, given)
    sinks = (call.options or Options()).sinks
    weights, _ = formulas.softmax(*formulas.scores_of(call, "masked"), sinks)
    return head_first(weights, call.rank).astype(call.q.dtype, order="C")


@np.errstate(all="ignore")
def attention_scores(
    q: Any,
    k: Any,
    *,
    stage: str = "masked",
    causal: bool = True,
    align: Any = "end",
    scale: float | None = None,
    mask: Any = None,
    window: Any = None,
    softcap: float | None = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    kv_lengths: Any = None,
    layout: str = "BHTD",
) -> Array:
    """Scores before the softmax, at one of three stages.

    Parameters
    ----------
    q, k, causal, align, scale, mask, window, softcap, alibi_slopes, sinks, kv_lengths, layout
        As in :func:`headway.attention`.
    stage : {"masked", "scaled", "capped"}, default "masked"
        "scaled": ``scale * q.k`` for every pair. "capped": after the soft cap. "masked": after
        ALiBi and a mask of numbers, too, and ``-inf`` where hidden.

    Returns
    -------
    ndarray, (B, H, Tq, Tk)
        Scores in float64 for float64 input, else float32, head-first in every layout.

    Raises
    ------
    TypeError, ValueError
        As in :func:`headway.attention`.

    Examples
    --------
    >>> import numpy as np
    >>> from headway import reference
    >>> reference.attention_scores(np.ones((2, 4)), np.ones((2, 4)))
    array([[  2., -inf],
           [  2.,   2.]])
    """
    check_stage(stage)
    given = mask, window, softcap, alibi_slopes, sinks, kv_lengths
    call = check_attention(q, k, k, causal, align, scale, layout, given)
    scores, _ = formulas.scores_of(call, stage)
    return head_first(scores, call.rank).astype(call.wide, order="C")


def attention_varlen(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any = None,
    *,
    causal: bool = True,
    align: Any = "end",
    scale: float | None = None,
    window: Any = None,
    softcap: float | None = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    out: Array | None = None,
    return_lse: bool = False,
) -> Any:
    """Packed sequences: :func:`attention` of each one alone.

    Parameters
    ----------
    q, k, v, cu_seqlens_q, cu_seqlens_k, causal, align, scale, window, softcap, alibi_slopes, sinks
        As in :func:`headway.attention_varlen`.
    out, return_lse
        As in :func:`headway.attention_varlen`.

    Returns
    -------
    out : ndarray, (total_q, H, Dv)
        Context vectors in the dtype of q, or `out` itself.
    lse : ndarray, (H, total_q)
        Only with `return_lse`: the log-sum-exp of each row's scores.

    Raises
    ------
    TypeError, ValueError
        As in :func:`headway.attention_varlen`.

    Examples
    --------
    >>> import numpy as np
    >>> from headway import reference
    >>> q = k = np.zeros((5, 1, 4))
    >>> reference.attention_varlen(q, k, np.arange(5.0).reshape(5, 1, 1), [0, 2, 5]).ravel()
    array([0. , 0.5, 2. , 2.5, 3. ])
    """
    given = window, softcap, alibi_slopes, sinks
    call, queries, keys = check_packed(
        q, k, v, cu_seqlens_q, cu_seqlens_k, causal, align, scale, given, out, return_lse
    )
    slopes = (call.options or Options()).slopes
    _, num_heads, total_q, _ = call.q.shape
    if out is None:
        out = np.empty((total_q, num_heads, call.v.shape[3]), call.q.dtype)
    lse = np.empty((num_heads, total_q), call.wide)
    for n, offset in enumerate(call.offsets):
        rows, columns = slice(*queries[n : n + 2]), slice(*keys[n : n + 2])
        _, lse[:, rows] = attention(
            call.q[0, :, rows],
            call.k[0, :, columns],
            call.v[0, :, columns],
            causal=causal,
            align=offset,
            scale=scale,
            window=window,
            softcap=softcap,
            alibi_slopes=None if slopes is None else slopes[n],
            sinks=sinks,
            out=out[rows].swapaxes(0, 1),
            return_lse=True,
        )
    return (out, lse) if return_lse else out
