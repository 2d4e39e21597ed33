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
    weights = 0 or weights / (1 - rate)  dropout, at random, rate being its probability
    context = weights @ v

Each step is a function of :mod:`headway.formulas`.

(Vaswani et al., "Attention Is All You Need", 2017, section 3.2; Gemma Team, "Gemma 2", 2024,
section 2, for the soft cap; Press et al., "Train Short, Test Long", 2022, for ALiBi; Xiao et al.,
"Efficient Streaming Language Models with Attention Sinks", 2024, and OpenAI, "gpt-oss model card",
2025, for sinks; Srivastava et al., "Dropout", JMLR 15, 2014.)

A hidden key does not exist for the query: NaN or infinity there changes nothing. A query that sees
no key at all has the context 0 and the log-sum-exp ``-inf``, or its sink.
"""

from typing import Any

import numpy as np

from . import formulas
from .arrays import Array, head_first
from .calls import Call, check_attention, check_packed
from .reference_backward import attention_backward, attention_varlen_backward
from .reference_matrices import attention_scores, attention_weights, options_of, scores_of
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
    dropout: float = 0.0,
    seed: int | None = None,
) -> Any:
    """Weighted sum of the values that each query may see, in float64 inside.

    Parameters
    ----------
    q, k, v, causal, align, scale, mask, window, softcap, alibi_slopes, sinks, kv_lengths
        As in :func:`headway.attention`.
    layout, out, return_lse, dropout, seed
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
    call = check_attention(
        q, k, v, causal, align, scale, layout, given, out, return_lse, dropout, seed
    )
    context, lse = _context(call)
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
    dropout: float = 0.0,
    seed: int | None = None,
) -> Any:
    """Packed sequences: :func:`attention` of each one alone, as the batch entry of its place.

    Parameters
    ----------
    q, k, v, cu_seqlens_q, cu_seqlens_k, causal, align, scale, window, softcap, alibi_slopes, sinks
        As in :func:`headway.attention_varlen`.
    out, return_lse, dropout, seed
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
        *(q, k, v, cu_seqlens_q, cu_seqlens_k, causal, align, scale, given, out, return_lse),
        *(dropout, seed),
    )
    options = options_of(call)
    _, num_heads, total_q, _ = call.q.shape
    if out is None:
        out = np.empty((total_q, num_heads, call.v.shape[3]), call.q.dtype)
    lse = np.empty((num_heads, total_q), call.wide)
    for n, offset in enumerate(call.offsets):
        rows, columns = slice(*queries[n : n + 2]), slice(*keys[n : n + 2])
        slopes = None if options.slopes is None else options.slopes[n : n + 1]
        alone = call._replace(
            q=call.q[:, :, rows],
            k=call.k[:, :, columns],
            v=call.v[:, :, columns],
            offset=offset,
            options=options._replace(slopes=slopes),
        )
        context, lse[:, rows] = (x[0] for x in _context(alone, n))
        np.copyto(out[rows], context.swapaxes(0, 1), casting="unsafe")
    return (out, lse) if return_lse else out


def _context(call: Call, first_entry: int = 0) -> tuple[Array, Array]:
    """Context (B, H, Tq, Dv) and log-sum-exp (B, H, Tq) of entries that count from the first."""
    scores, seen = scores_of(call, "masked")
    weights, lse = formulas.softmax(scores, seen, options_of(call).sinks)
    weights = formulas.dropped(weights, call.offsets, options_of(call), first_entry)
    seen = seen & (scores != -np.inf).any(axis=-1, keepdims=True)
    v = call.v.astype(np.float64)
    return formulas.weighted_sum(weights, formulas.head_of_each_query(v, call.q), seen), lse
