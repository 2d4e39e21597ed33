"""One head, step by step, in plain NumPy: from queries, keys and values to context vectors.

Every step is a formula of :mod:`headway.formulas`, in the accumulation type, on whole (Tq, Tk)
matrices.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from . import formulas
from .arrays import Array
from .options import FAR, Options
from .trace_steps import Step, number, record


class Head(NamedTuple):
    """Head n of a call: its arrays in the accumulation type, and what acts on its scores."""

    n: int  # from 1
    q: Array  # (B, Tq, D)
    k: Array  # (B, Tk, D)
    v: Array  # (B, Tk, Dv)
    scale: float | None  # None: 1 / sqrt(D)
    causal: bool
    offsets: list[int]  # (B): the key position of query 0
    options: Options  # of this head alone: its slopes (B, 1), its sink (1,), its mask
    batched: bool  # whether the steps have a batch axis


def options_of_head(options: Options, h: int) -> Options:
    """The part of the options that is about query head h, from 0."""
    slopes, sinks, mask = options.slopes, options.sinks, options.mask
    return options._replace(
        slopes=None if slopes is None else slopes[:, h : h + 1],
        sinks=None if sinks is None else sinks[h : h + 1],
        mask=None if mask is None else mask[:, h : h + 1],
    )


def head_steps(head: Head) -> list[Step]:
    """Scores, scaled, capped and biased scores, mask, sink, weights, dropped weights, and Z_n."""
    with np.errstate(all="ignore"):
        return list(_steps(head))


def _steps(head: Head) -> Iterator[Step]:
    n, options, wide = head.n, head.options, head.q.dtype
    q, k, v = (x[:, None] for x in (head.q, head.k, head.v))  # (B, 1, T, D), as the formulas say

    scores = formulas.dot_products(q, k)
    yield _step(head, "scores", scores, f"Q_{n} @ K_{n}.T", _SCORES, "queries keys")

    root = math.sqrt(head.q.shape[2])
    factor = 1.0 / root if head.scale is None else float(head.scale)
    scores, last = scores * factor, "scaled"
    by = f"/ sqrt({head.q.shape[2]})" if head.scale is None else f"* {number(factor)}"
    yield _step(head, last, scores, f"scores_{n} {by}", _SCALED, "queries keys")

    if options.softcap:
        cap = number(options.softcap)
        scores = formulas.capped_scores(scores, options.softcap)
        text = f"{cap} * tanh({last}_{n} / {cap})"
        last = "capped"
        yield _step(head, last, scores, text, f"No score passes {cap} either way.", "queries keys")

    ahead = formulas.relative_positions(q, k, head.offsets)
    added = _added(options)
    if added:
        scores = _narrow(formulas.biased_scores(scores, ahead, options), wide)
        text = f"{last}_{n} {added}"
        last = "biased"
        yield _step(head, last, scores, text, _BIASED, "queries keys")

    seen = np.broadcast_to(formulas.seen_keys(ahead, head.causal, options), scores.shape)
    yield _step(head, "mask", seen, _rules(head), _mask_words(head), "queries keys")

    sink = None if options.sinks is None else options.sinks.astype(wide)
    if sink is not None:
        yield Step(f"sink_{n}", record(sink), "", _SINK, ("sink",), n)
    scores = np.where(seen, scores, wide.type(-np.inf))
    weights, lse = formulas.softmax(scores, seen, sink)
    with_sink = "" if sink is None else f" and sink_{n}"
    text = f"softmax({last}_{n} where mask_{n}{with_sink})"
    words = _WEIGHTS if sink is None else _WEIGHTS_AND_SINK
    yield _step(head, "weights", weights, text, words, "queries keys")
    if sink is not None:
        share = np.where(lse == -np.inf, 0.0, np.exp(sink[:, None] - lse)).astype(wide)[..., None]
        text = f"exp(sink_{n}) / (the sum in the softmax)"
        yield _step(head, "sink_weights", share, text, _SINK_SHARE, "queries sink")

    last = "weights"
    if options.dropout:
        weights = formulas.dropped(weights, head.offsets, options, 0, n - 1).astype(wide)
        last = "dropped_weights"
        text = f"weights_{n} * kept / (1 - {number(options.dropout)})"
        yield _step(head, last, weights, text, _DROPPED, "queries keys")

    seen = seen & (scores != -np.inf).any(axis=-1, keepdims=True)
    context = formulas.weighted_sum(weights, v, seen).astype(wide, copy=False)
    yield _step(head, "Z", context, f"{last}_{n} @ V_{n}", _CONTEXT, "queries head_dim")


def _step(head: Head, kind: str, array: Array, formula: str, about: str, axes: str) -> Step:
    """A step from an array (B, 1, ...)."""
    array = array[:, 0] if head.batched else array[0, 0]
    names = ("batch", *axes.split()) if head.batched else tuple(axes.split())
    return Step(f"{kind}_{head.n}", record(array), formula, about, names, head.n)


def _narrow(scores: Array, wide: np.dtype[Any]) -> Array:
    """Scores in the accumulation type, in which a finite number stays one."""
    largest = float(np.finfo(wide).max)
    return np.where(np.isinf(scores), scores, np.clip(scores, -largest, largest)).astype(wide)


# Words --------------------------------------------------------------------------------------------

_SCORES = "How well each query (row) fits each key (column)."
_SCALED = "Scaled, so that longer vectors do not make the softmax sharper."
_BIASED = "What is added to a score: less for keys far away, or numbers of a mask."
_SINK = "One score more in the sum of every row, without a key and a value."
_WEIGHTS = "Each row is spread over the keys its query sees and sums to 1; what is hidden has none."
_WEIGHTS_AND_SINK = (
    "Each row is spread over the keys its query sees and the sink; what is hidden has none."
)
_DROPPED = "Dropout sets some weights to 0, at random by the seed, and makes the others larger."
_SINK_SHARE = "What each row gives to the sink, and so to no value."
_CONTEXT = "The context vectors: for each query the weighted sum of the values it sees."


def _added(options: Options) -> str:
    """What is added to the scores, as in a formula."""
    parts = []
    if options.slopes is not None:
        slopes = np.unique(options.slopes)
        parts.append(f"- {number(slopes[0]) if slopes.size == 1 else 'slope'} * |p - j|")
    if options.mask is not None and options.mask_kind != "bool":
        parts.append("+ mask")
    return " ".join(parts)


def _rules(head: Head) -> str:
    """What has to hold for query position p to see key j."""
    options = head.options
    rules = []
    if options.left < FAR:
        rules.append(f"p - {options.left} <= j" if options.left else "p <= j")
    if head.causal or options.right == 0:
        rules.append("j <= p")
    elif options.right < FAR:
        rules.append(f"j <= p + {options.right}")
    if options.lengths is not None:
        lengths = set(options.lengths)
        rules.append(f"j < {lengths.pop() if len(lengths) == 1 else 'length'}")
    if options.mask is not None:
        rules.append("mask" if options.mask_kind == "bool" else "mask > -inf")
    return " and ".join(rules) or "every key is seen"


def _mask_words(head: Head) -> str:
    offsets = set(head.offsets)
    if offsets == {0} or not offsets:
        place = "p = i"
    elif len(offsets) == 1:
        start = offsets.pop()
        place = f"p = i {'+' if start > 0 else '-'} {abs(start)}"
    else:
        place = "p = i + the start of its batch entry"
    return f"Which keys j a query may look at; query i stands at {place}."
