"""The formulas of attention in plain NumPy, one function each, in the order in which they are used.

:mod:`headway.reference` puts them together. Everything is float64 and written for whole (Tq, Tk)
matrices: q is (B, H, Tq, D), k is (B, Hkv, Tk, D), v is (B, Hkv, Tk, Dv), scores and weights are
(B, H, Tq, Tk).
"""

import numpy as np

from .arrays import Array
from .calls import Call
from .options import FAR, Options
from .philox import kept_weights


def relative_positions(q: Array, k: Array, offsets: list[int]) -> Array:
    """(B, 1, Tq, Tk) int64: position of the query minus position of the key, 0 for its own.

    Query i of batch entry b stands at the key position ``offsets[b] + i``.
    """
    first = np.reshape(np.array(offsets, dtype=np.int64), (-1, 1, 1, 1))
    return first + np.arange(q.shape[2])[:, None] - np.arange(k.shape[2])


def seen_keys(ahead: Array, causal: bool, options: Options) -> Array:
    """Bool, broadcasts to (B, H, Tq, Tk): may query i look at key j? Every rule has to agree."""
    seen = np.ones(ahead.shape, dtype=bool)
    if causal:
        seen &= ahead >= 0
    if options.left < FAR:
        seen &= ahead <= options.left
    if options.right < FAR:
        seen &= ahead >= -options.right
    if options.lengths is not None:
        lengths = np.reshape(np.array(options.lengths, dtype=np.int64), (-1, 1, 1, 1))
        seen = seen & (np.arange(ahead.shape[3]) < lengths)
    if options.mask is not None:
        seen = seen & (options.mask if options.mask_kind == "bool" else options.mask != -np.inf)
    return seen


def head_of_each_query(x: Array, q: Array) -> Array:
    """(B, H, Tk, D) from (B, Hkv, Tk, D): query head h reads key head ``h // (H // Hkv)``."""
    group = q.shape[1] // max(x.shape[1], 1)
    return np.repeat(x, group, axis=1)


def dot_products(q: Array, k: Array) -> Array:
    """``q.k`` of every pair; a NaN in a key stays in the column of that key."""
    return np.asarray(q @ head_of_each_query(k, q).swapaxes(2, 3))


def scaled_scores(q: Array, k: Array, scale: float | None) -> Array:
    """``q.k * scale``; no scale is ``1 / sqrt(head_dim)``."""
    if scale is None:
        scale = 1.0 / np.sqrt(q.shape[3])
    return dot_products(q, k) * float(scale)


def capped_scores(scores: Array, cap: float) -> Array:
    """``cap * tanh(score / cap)``, between -cap and cap; a cap of 0 is none."""
    return scores if cap == 0.0 else cap * np.tanh(scores / cap)


def biased_scores(scores: Array, ahead: Array, options: Options) -> Array:
    """The scores with all that is added to them: ALiBi, which grows with the distance; the mask."""
    if options.slopes is not None:
        scores = scores - options.slopes[:, :, None, None] * abs(ahead)
    if options.mask is not None and options.mask_kind != "bool":
        scores = scores + options.mask.astype(np.float64)
    return scores


def scores_of(call: Call, stage: str) -> tuple[Array, Array]:
    """Scores of a call up to a stage, and the keys that are seen; both (B, H, Tq, Tk)."""
    options = call.options or Options()
    q, k = call.q.astype(np.float64), call.k.astype(np.float64)
    ahead = relative_positions(q, k, call.offsets)
    seen = seen_keys(ahead, call.causal, options)
    scores = scaled_scores(q, k, call.scale)
    if stage != "scaled":
        scores = capped_scores(scores, options.softcap)
    if stage == "masked":
        scores = biased_scores(scores, ahead, options)
        scores = np.where(seen, scores, -np.inf)
    return scores, np.broadcast_to(seen, scores.shape)


def softmax(scores: Array, seen: Array, sinks: Array | None) -> tuple[Array, Array]:
    """Weights (B, H, Tq, Tk) and log-sum-exp (B, H, Tq) of scores that are -inf where hidden.

    The largest score of a row is taken off before the exponential, so that nothing overflows:
    ``exp(s - top) / sum(exp(s - top))`` is the same fraction for any ``top``. A sink is one score
    more in the sum; its share of the weight goes to no value.
    """
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        sinks = sinks[:, None, None]
        top = np.maximum(top, sinks)
    top = np.where(top == -np.inf, 0.0, top)  # an empty row: exp(-inf - 0) = 0, and not NaN
    weights = np.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks - top)
    lse = (top + np.log(total))[..., 0]  # an empty row: log(0) = -inf
    weights = weights / np.where(total == 0.0, 1.0, total)
    return np.where(seen, weights, 0.0), lse  # a hidden key weighs 0 in a NaN row, too


def dropped(
    weights: Array,
    offsets: list[int],
    options: Options,
    first_entry: int = 0,
    first_head: int = 0,
) -> Array:
    """The weights times 0 or, where dropout keeps them, times ``1 / (1 - dropout)``."""
    if options.dropout == 0.0:
        return weights
    rate, seed = options.dropout, options.seed
    kept = kept_weights(weights.shape, offsets, rate, seed, first_entry, first_head)
    return np.asarray(weights * kept / (1.0 - rate))


def weighted_sum(weights: Array, v: Array, seen: Array) -> Array:
    """(B, H, Tq, Dv): ``weights @ v``, to which a hidden value adds nothing, not even 0 * NaN.

    ``v`` has H heads, and ``seen`` the shape of the weights; a row whose every score is -inf has
    no seen key.
    """
    finite = np.isfinite(v)
    context = np.asarray(weights @ np.where(finite, v, 0.0))
    if finite.all():
        return context

    # Keys whose value holds a NaN or an infinity are added by rule: a visible NaN makes NaN,
    # weight * inf is inf, 0 * inf is NaN, inf - inf is NaN.
    keys = np.flatnonzero(~finite.all(axis=(0, 1, 3)))
    seen, weights, v = seen[..., keys], weights[..., keys], v[:, :, keys]
    weighty = seen & (weights != 0.0)
    nan = _any_key(seen, np.isnan(v)) | _any_key(seen & (weights == 0.0), np.isinf(v))
    context = np.where(nan, np.nan, context)
    context = np.where(_any_key(weighty, v == np.inf), context + np.inf, context)
    return np.where(_any_key(weighty, v == -np.inf), context - np.inf, context)


def _any_key(a: Array, b: Array) -> Array:
    """(B, H, Tq, Dv) bool: is there a key with both ``a`` (.., Tq, key) and ``b`` (.., key, Dv)?"""
    return np.asarray(a.astype(np.float64) @ b.astype(np.float64) > 0.0)
