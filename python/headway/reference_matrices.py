"""The matrices of attention in plain NumPy: scores and weights; part of the oracle."""

from typing import Any

import numpy as np

from . import formulas
from .arrays import Array, head_first
from .calls import Call, check_attention
from .checks import check_stage
from .options import Options


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
    dropout: float = 0.0,
    seed: int | None = None,
) -> Array:
    """Softmax of the scores: how much of each value goes into each context vector.

    Parameters
    ----------
    q, k, causal, align, scale, mask, window, softcap, alibi_slopes, sinks, kv_lengths, layout
        As in :func:`headway.attention`.
    dropout, seed
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
    call = check_attention(q, k, k, causal, align, scale, layout, given, dropout=dropout, seed=seed)
    weights, _ = formulas.softmax(*scores_of(call, "masked"), options_of(call).sinks)
    weights = formulas.dropped(weights, call.offsets, options_of(call))
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
    scores, _ = scores_of(call, stage)
    return head_first(scores, call.rank).astype(call.wide, order="C")


def options_of(call: Call) -> Options:
    """The options of a call, those that say nothing where it has none."""
    return call.options or Options()


def scores_of(call: Call, stage: str) -> tuple[Array, Array]:
    """Scores up to a stage, and the keys that are seen; both (B, H, Tq, Tk)."""
    options = options_of(call)
    q, k = call.q.astype(np.float64), call.k.astype(np.float64)
    ahead = formulas.relative_positions(q, k, call.offsets)
    seen = formulas.seen_keys(ahead, call.causal, options)
    scores = formulas.scaled_scores(q, k, call.scale)
    if stage != "scaled":
        scores = formulas.capped_scores(scores, options.softcap)
    if stage == "masked":
        scores = formulas.biased_scores(scores, ahead, options)
        scores = np.where(seen, scores, -np.inf)
    return scores, np.broadcast_to(seen, scores.shape)
