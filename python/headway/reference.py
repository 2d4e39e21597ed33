"""Causal multi-head attention in plain NumPy: the oracle.

Everything is computed in float64, in the order in which the formulas are read, and with whole
``(Tq, Tk)`` matrices in memory. The fast functions of the package never store those matrices;
apart from rounding they give the same numbers.

For one head, with queries ``q`` (Tq, D), keys ``k`` (Tk, D) and values ``v`` (Tk, Dv)::

    scores  = q @ k.T * scale            scale = 1 / sqrt(D) if none is given
    scores  = -inf where hidden          query i sees the keys j <= offset + i
    weights = softmax(scores)            along the keys
    context = weights @ v

(Vaswani et al., "Attention Is All You Need", 2017, section 3.2.)

A hidden key does not exist for the query: NaN or infinity there changes nothing. A query that sees
no key at all has the context 0 and the log-sum-exp ``-inf``.
"""

from typing import Any

import numpy as np

from .arrays import Array, as_array
from .checks import check_attention, check_stage

__all__ = ["attention", "attention_scores", "attention_weights"]


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
    layout: str = "BHTD",
    out: Array | None = None,
    return_lse: bool = False,
) -> Any:
    """Weighted sum of the values that each query may see, in float64 inside.

    Parameters
    ----------
    q, k, v, causal, align, scale, layout, out, return_lse
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
    check_attention(q, k, v, causal, align, scale, layout, out, return_lse)
    q, k, v = as_array("q", q), as_array("k", k), as_array("v", v)
    q4, k4, v4 = (_to_four_axes(x, layout) for x in (q, k, v))

    seen = _seen_keys(q4, k4, causal, align)
    scores = np.where(seen, _scaled_scores(q4, k4, scale), -np.inf)
    weights, lse = _softmax(scores, seen)
    context = _weighted_sum(weights, _head_of_each_query(v4, q4), seen)

    context = _drop_axes(context, q.ndim)
    if layout == "BTHD" and q.ndim > 2:
        context = context.swapaxes(-3, -2)
    if out is None:
        out = context.astype(q.dtype, order="C")
    else:
        np.copyto(out, context, casting="unsafe")
    if return_lse:
        return out, _drop_axes(lse, q.ndim).astype(_accumulation_dtype(q), order="C")
    return out


@np.errstate(all="ignore")
def attention_weights(
    q: Any,
    k: Any,
    *,
    causal: bool = True,
    align: Any = "end",
    scale: float | None = None,
    layout: str = "BHTD",
) -> Array:
    """Softmax of the scores: how much of each value goes into each context vector.

    Parameters
    ----------
    q, k, causal, align, scale, layout
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
    check_attention(q, k, k, causal, align, scale, layout)
    q, k = as_array("q", q), as_array("k", k)
    q4, k4 = _to_four_axes(q, layout), _to_four_axes(k, layout)

    seen = _seen_keys(q4, k4, causal, align)
    scores = np.where(seen, _scaled_scores(q4, k4, scale), -np.inf)
    weights, _ = _softmax(scores, seen)
    return _drop_axes(weights, q.ndim).astype(q.dtype, order="C")


@np.errstate(all="ignore")
def attention_scores(
    q: Any,
    k: Any,
    *,
    stage: str = "masked",
    causal: bool = True,
    align: Any = "end",
    scale: float | None = None,
    layout: str = "BHTD",
) -> Array:
    """Scores before the softmax: ``scale * q.k``, and ``-inf`` where hidden (stage "masked").

    Parameters
    ----------
    q, k, causal, align, scale, layout
        As in :func:`headway.attention`.
    stage : {"masked", "scaled"}, default "masked"
        "scaled": ``scale * q.k`` for every pair. "masked": ``-inf`` where hidden.

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
    check_attention(q, k, k, causal, align, scale, layout)
    check_stage(stage)
    q, k = as_array("q", q), as_array("k", k)
    q4, k4 = _to_four_axes(q, layout), _to_four_axes(k, layout)

    scores = _scaled_scores(q4, k4, scale)
    if stage == "masked":
        scores = np.where(_seen_keys(q4, k4, causal, align), scores, -np.inf)
    return _drop_axes(scores, q.ndim).astype(_accumulation_dtype(q), order="C")


# The formulas, in the order in which they are used ------------------------------------------------


def _seen_keys(q: Array, k: Array, causal: bool, align: Any) -> Array:
    """(B, 1, Tq, Tk) bool: may query i look at key j? True everywhere if not causal."""
    batch, tq, tk = q.shape[0], q.shape[2], k.shape[2]
    if not causal:
        return np.ones((batch, 1, tq, tk), dtype=bool)
    if isinstance(align, str):
        offset = [tk - tq if align == "end" else 0] * batch
    else:  # the key position at which query 0 stands, one for all or one for each batch entry
        offset = [int(n) for n in np.broadcast_to(np.asarray(align, dtype=object), (batch,))]
    # Beyond these two bounds a query sees no key, or every key: the exact distance is no matter.
    offset = [min(max(n, -tq), tk) for n in offset]
    query_position = np.reshape(np.array(offset, dtype=np.int64), (batch, 1, 1, 1))
    query_position = query_position + np.arange(tq).reshape(tq, 1)
    return np.asarray(np.arange(tk) <= query_position)


def _head_of_each_query(x: Array, q: Array) -> Array:
    """(B, H, Tk, D) from (B, Hkv, Tk, D): query head h reads key head ``h // (H // Hkv)``."""
    group = q.shape[1] // max(x.shape[1], 1)
    return np.repeat(x, group, axis=1)


def _scaled_scores(q: Array, k: Array, scale: float | None) -> Array:
    """(B, H, Tq, Tk): ``q.k * scale``; a NaN in a key stays in the column of that key."""
    if scale is None:
        scale = 1.0 / np.sqrt(q.shape[3])
    k = _head_of_each_query(k, q)
    return np.asarray((q @ k.swapaxes(2, 3)) * float(scale))


def _softmax(scores: Array, seen: Array) -> tuple[Array, Array]:
    """Weights (B, H, Tq, Tk) and log-sum-exp (B, H, Tq) of scores that are -inf where hidden.

    The largest score of a row is taken off before the exponential, so that nothing overflows:
    ``exp(s - top) / sum(exp(s - top))`` is the same fraction for any ``top``.
    """
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    top = np.where(top == -np.inf, 0.0, top)  # an empty row: exp(-inf - 0) = 0, and not NaN
    weights = np.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True)
    lse = (top + np.log(total))[..., 0]  # an empty row: log(0) = -inf
    weights = weights / np.where(total == 0.0, 1.0, total)
    return np.where(seen, weights, 0.0), lse  # a hidden key weighs 0 in a NaN row, too


def _weighted_sum(weights: Array, v: Array, seen: Array) -> Array:
    """(B, H, Tq, Dv): ``weights @ v``, to which a hidden value adds nothing, not even 0 * NaN."""
    finite = np.isfinite(v)
    context = np.asarray(weights @ np.where(finite, v, 0.0))
    if finite.all():
        return context

    # Keys whose value holds a NaN or an infinity are added by rule: a visible NaN makes NaN,
    # weight * inf is inf, 0 * inf is NaN, inf - inf is NaN. A row without any weight stays 0.
    keys = np.flatnonzero(~finite.all(axis=(0, 1, 3)))
    seen = seen[..., keys] & (weights != 0.0).any(axis=-1, keepdims=True)
    weights, v = weights[..., keys], v[:, :, keys]
    weighty = seen & (weights != 0.0)
    nan = _any_key(seen, np.isnan(v)) | _any_key(seen & (weights == 0.0), np.isinf(v))
    context = np.where(nan, np.nan, context)
    context = np.where(_any_key(weighty, v == np.inf), context + np.inf, context)
    return np.where(_any_key(weighty, v == -np.inf), context - np.inf, context)


def _any_key(a: Array, b: Array) -> Array:
    """(B, H, Tq, Dv) bool: is there a key with both ``a`` (.., Tq, key) and ``b`` (.., key, Dv)?"""
    return np.asarray(a.astype(np.float64) @ b.astype(np.float64) > 0.0)


# Shapes and dtypes --------------------------------------------------------------------------------


def _to_four_axes(x: Array, layout: str) -> Array:
    """(B, H, T, D) float64 from any rank and layout: 2-D is one head, 3-D one batch entry."""
    x = x.astype(np.float64)
    if x.ndim == 2:
        return np.asarray(x[None, None])
    if x.ndim == 3:
        x = x[None]
    return np.asarray(x.swapaxes(1, 2) if layout == "BTHD" else x)


def _drop_axes(x: Array, rank: int) -> Array:
    """From (B, H, ...) to the rank of q: 3-D input has no batch axis, 2-D input no head axis."""
    if rank == 4:
        return x
    return np.asarray(x[0] if rank == 3 else x[0, 0])


def _accumulation_dtype(q: Array) -> np.dtype[Any]:
    """float64 for float64, float32 for float32 and the 16-bit dtypes."""
    return np.dtype(np.float64 if q.dtype == np.float64 else np.float32)
