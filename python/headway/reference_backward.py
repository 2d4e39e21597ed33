"""Gradients of attention in plain NumPy: the oracle, re-exported by :mod:`headway.reference`.

For one head, with the names of :mod:`headway.reference`. ``grad_out`` (Tq, Dv) and ``grad_lse``
(Tq, 1) come down from the loss; ``out`` and ``lse`` are what the forward pass left::

    weights      = exp(scores - lse)                        0 where hidden
    kept         = 1, or 0 or 1 / (1 - rate) by dropout
    grad_v       = (weights * kept).T @ grad_out
    grad_weights = grad_out @ v.T * kept
    delta        = sum(grad_out * out)                      along the columns: one for each query
    grad_scores  = weights * (grad_weights - delta + grad_lse)
    grad_mask    = grad_scores                              summed where the mask is broadcast
    grad_sink    = sum(exp(sink - lse) * (grad_lse - delta))          over the queries
    grad_scaled  = grad_scores * (1 - tanh(scaled / cap) ** 2)        soft cap
    grad_q       = scale * grad_scaled @ k
    grad_k       = scale * grad_scaled.T @ q

``delta`` is ``sum(weights * grad_weights)`` along the keys: the softmax's own derivative. (Dao,
"FlashAttention-2", 2023, arXiv:2307.08691, section 2.3.)
"""

from typing import Any, NamedTuple

import numpy as np

from . import formulas
from .arrays import Array, as_array, head_first
from .calls import Call
from .gradient_calls import Saved, check_backward, check_packed_backward, dtype_of_sinks
from .options import Options

__all__ = ["attention_backward", "attention_varlen_backward"]


@np.errstate(all="ignore")
def attention_backward(
    grad_out: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    *,
    grad_lse: Any = None,
    sinks_grad: bool = False,
    mask_grad: bool = False,
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
    dropout: float = 0.0,
    seed: int | None = None,
) -> tuple[Array, ...]:
    """Gradients of a loss by q, k and v, in float64 inside.

    Parameters
    ----------
    grad_out, q, k, v, out, lse, grad_lse, sinks_grad, mask_grad
        As in :func:`headway.attention_backward`.
    causal, align, scale, mask, window, softcap, alibi_slopes, sinks, kv_lengths, layout
        As in :func:`headway.attention`.
    dropout, seed
        As in :func:`headway.attention`.

    Returns
    -------
    dq, dk, dv : ndarray
        In the shapes and dtypes of q, k and v.
    dsinks : ndarray, (H,)
        Only with `sinks_grad`.
    dmask : ndarray
        Only with `mask_grad`, in the shape of `mask`.

    Raises
    ------
    TypeError, ValueError
        As in :func:`headway.attention_backward`.

    Notes
    -----
    Memory: several arrays of B * H * Tq * Tk float64 numbers.

    Examples
    --------
    Query 0 sees one value, query 1 two, which weigh the same; so the first value counts 1.5 times.

    >>> import numpy as np
    >>> from headway import reference
    >>> q = k = np.zeros((2, 4))
    >>> v = np.array([[0.0], [1.0]])
    >>> out, lse = reference.attention(q, k, v, return_lse=True)
    >>> dq, dk, dv = reference.attention_backward(np.ones((2, 1)), q, k, v, out, lse)
    >>> dv
    array([[1.5],
           [0.5]])
    """
    given = mask, window, softcap, alibi_slopes, sinks, kv_lengths
    saved = grad_out, out, lse, grad_lse
    call, kept = check_backward(
        q, k, v, causal, align, scale, layout, given, saved, sinks_grad, mask_grad, (dropout, seed)
    )
    found = _gradients(call, kept)
    results = []
    for gradient in (found.q, found.k, found.v):
        gradient = head_first(gradient, call.rank)
        if layout == "BTHD" and call.rank > 2:
            gradient = gradient.swapaxes(-3, -2)
        results.append(gradient.astype(call.q.dtype, order="C"))
    if sinks_grad:
        results.append(found.sinks.astype(dtype_of_sinks(sinks, call)))
    if mask_grad:
        results.append(_summed(found.scores, as_array("mask", mask).shape).astype(call.wide))
    return tuple(results)


@np.errstate(all="ignore")
def attention_varlen_backward(
    grad_out: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any = None,
    *,
    grad_lse: Any = None,
    sinks_grad: bool = False,
    causal: bool = True,
    align: Any = "end",
    scale: float | None = None,
    window: Any = None,
    softcap: float | None = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    dropout: float = 0.0,
    seed: int | None = None,
) -> tuple[Array, ...]:
    """Packed sequences: :func:`attention_backward` of each one alone.

    Parameters
    ----------
    grad_out, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k, grad_lse, sinks_grad
        As in :func:`headway.attention_varlen_backward`.
    causal, align, scale, window, softcap, alibi_slopes, sinks, dropout, seed
        As in :func:`headway.attention_varlen`.

    Returns
    -------
    dq, dk, dv : ndarray
        In the shapes and dtypes of q, k and v.
    dsinks : ndarray, (H,)
        Only with `sinks_grad`: the sum of those of all sequences.

    Raises
    ------
    TypeError, ValueError
        As in :func:`headway.attention_varlen_backward`.

    Examples
    --------
    >>> import numpy as np
    >>> from headway import reference
    >>> q = k = v = np.zeros((3, 1, 1))
    >>> out, lse = reference.attention_varlen(q, k, v, [0, 1, 3], return_lse=True)
    >>> dq, dk, dv = reference.attention_varlen_backward(
    ...     np.ones((3, 1, 1)), q, k, v, out, lse, [0, 1, 3])
    >>> dv.ravel()
    array([1. , 1.5, 0.5])
    """
    given = window, softcap, alibi_slopes, sinks
    saved = grad_out, out, lse, grad_lse
    drops = dropout, seed
    call, kept, queries, keys = check_packed_backward(
        q, k, v, cu_seqlens_q, cu_seqlens_k, causal, align, scale, given, saved, sinks_grad, drops
    )
    options = call.options or Options()
    results = [np.empty(x.shape[1:], x.dtype) for x in (call.q, call.k, call.v)]
    sums = np.zeros(call.q.shape[1])
    for n, offset in enumerate(call.offsets):
        rows, columns = slice(*queries[n : n + 2]), slice(*keys[n : n + 2])
        slopes = None if options.slopes is None else options.slopes[n : n + 1]
        alone = call._replace(
            q=call.q[:, :, rows],
            k=call.k[:, :, columns],
            v=call.v[:, :, columns],
            offset=[offset],
            options=options._replace(slopes=slopes),
        )
        parts = _gradients(alone, kept.of_queries(rows), n)
        for result, where, part in zip(results, (rows, columns, columns), parts[:3], strict=True):
            result[:, where] = part[0].astype(result.dtype)
        sums += parts.sinks
    found = [np.ascontiguousarray(result.swapaxes(0, 1)) for result in results]
    if sinks_grad:
        found.append(sums.astype(dtype_of_sinks(sinks, call)))
    return tuple(found)


class _Gradients(NamedTuple):
    """All gradients of a call in float64, head-first."""

    q: Array  # (B, H, Tq, D)
    k: Array  # (B, Hkv, Tk, D)
    v: Array  # (B, Hkv, Tk, Dv)
    scores: Array  # (B, H, Tq, Tk): at the masked scores
    sinks: Array  # (H,)


def _gradients(call: Call, saved: Saved, first_entry: int = 0) -> _Gradients:
    """Of entries that count from the first."""
    options = call.options or Options()
    grad_out, out = saved.grad_out.astype(np.float64), saved.out.astype(np.float64)
    lse = saved.lse.astype(np.float64)[..., None]
    q, k, v = (x.astype(np.float64) for x in (call.q, call.k, call.v))
    k, v = formulas.head_of_each_query(k, q), formulas.head_of_each_query(v, q)

    scores, seen = formulas.scores_of(call, "masked")
    some = (scores != -np.inf).any(axis=-1, keepdims=True) & (lse != -np.inf)
    seen = seen & some  # a row whose every score is -inf has no seen key
    weights = np.where(seen, np.exp(scores - lse), 0.0)

    delta = np.where(some, (grad_out * out).sum(axis=-1, keepdims=True), 0.0)
    above = -delta if saved.grad_lse is None else saved.grad_lse[..., None] - delta
    kept = formulas.dropped(np.ones_like(weights), call.offsets, options, first_entry)
    grad_v = seen_sum((weights * kept).swapaxes(2, 3), grad_out, seen.swapaxes(2, 3))
    grad_weights = grad_out @ v.swapaxes(2, 3) * kept
    grad_scores = np.where(seen, weights * (grad_weights + above), 0.0)
    grad_sinks = _sinks(options.sinks, lse, above)

    grad_scaled = grad_scores
    if options.softcap:
        scaled, _ = formulas.scores_of(call, "scaled")
        slope = 1.0 - np.tanh(scaled / options.softcap) ** 2
        grad_scaled = np.where(seen, grad_scores * slope, 0.0)
    scale = 1.0 / np.sqrt(q.shape[3]) if call.scale is None else call.scale
    grad_q = scale * seen_sum(grad_scaled, k, seen)
    grad_k = scale * seen_sum(grad_scaled.swapaxes(2, 3), q, seen.swapaxes(2, 3))
    heads = call.k.shape[1]
    return _Gradients(
        grad_q, _of_key_heads(grad_k, heads), _of_key_heads(grad_v, heads), grad_scores, grad_sinks
    )


def seen_sum(factors: Array, rows: Array, seen: Array) -> Array:
    """(B, H, M, W): ``factors @ rows``, to which a hidden row adds nothing, not even 0 * NaN.

    ``factors`` and ``seen`` are (B, H, M, N), ``rows`` is (B, H, N, W). A factor is 0 where hidden.
    """
    finite = np.asarray(np.isfinite(rows).all(axis=3, keepdims=True))
    total = np.asarray(factors @ np.where(finite, rows, 0.0))
    for n in np.flatnonzero(~finite.all(axis=(0, 1, 3))):
        one = slice(n, n + 1)
        wanted = seen[..., one] & ~finite[:, :, one]
        total = total + np.where(wanted, factors[..., one] * rows[:, :, one], 0.0)
    return total


def _sinks(sinks: Array | None, lse: Array, above: Array) -> Array:
    """(H,): a sink of -inf is none, and a query without a key has its sink as its lse."""
    if sinks is None:
        return np.zeros(lse.shape[1])
    sinks = sinks[:, None, None]
    weights = np.exp(sinks - lse)
    counts = (sinks != -np.inf) & (lse != -np.inf)
    return np.asarray(np.where(counts, weights * above, 0.0).sum(axis=(0, 2, 3)))


def _of_key_heads(x: Array, heads: int) -> Array:
    """(B, Hkv, T, W) from (B, H, T, W): the query heads that read one key head, summed."""
    batch, num_heads, tokens, width = x.shape
    group = num_heads // max(heads, 1)
    return np.asarray(x.reshape(batch, heads, group, tokens, width).sum(axis=2))


def _summed(gradient: Array, shape: tuple[int, ...]) -> Array:
    """(B, H, Tq, Tk) summed along the axes that an array of this shape was broadcast along."""
    full = (1,) * (4 - len(shape)) + shape
    axes = tuple(n for n, length in enumerate(full) if length == 1)
    return np.asarray(gradient.sum(axis=axes, keepdims=True).reshape(shape))
