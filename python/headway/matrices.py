"""The matrices that the fused pass never stores, to look at: scores and weights."""

from . import _core
from .arrays import Align, Array, ArrayInput, Integers, Numbers, Window, empty_result, head_first
from .calls import check_attention
from .checks import check_stage

__all__ = ["attention_scores", "attention_weights"]


def attention_weights(
    q: ArrayInput,
    k: ArrayInput,
    *,
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
) -> Array:
    """Attention weights: the softmax of the scores, the matrix that :func:`attention` never stores.

    Parameters
    ----------
    q, k, causal, align, scale, mask, window, softcap, alibi_slopes, sinks, kv_lengths, layout
        As in :func:`attention`.
    dropout, seed
        As in :func:`attention`: the same weights are dropped, those that are kept are scaled.

    Returns
    -------
    ndarray, (B, H, Tq, Tk)
        Weights in the dtype of q, C-contiguous, head-first in every layout: (H, Tq, Tk) for 3-D
        input, (Tq, Tk) for 2-D input. Without dropout a row sums to 1, or to less where there is a
        sink; a hidden key has weight 0, and a query that sees no key has a row of 0.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As in :func:`attention`.

    Notes
    -----
    Memory: the result has B * H * Tq * Tk elements. This is for looking at weights; to get context
    vectors, :func:`attention` is faster and needs no such matrix. The formula is that of Vaswani et
    al., "Attention Is All You Need" (2017), section 3.2.

    Examples
    --------
    >>> import numpy as np
    >>> import headway
    >>> headway.attention_weights(np.zeros((2, 4)), np.zeros((2, 4)))
    array([[1. , 0. ],
           [0.5, 0.5]])

    A sink of 0 takes the weight of one key more; a window of 1 leaves each query its own key.

    >>> headway.attention_weights(np.zeros((2, 4)), np.zeros((2, 4)), sinks=[0.0], window=1)
    array([[0.5, 0. ],
           [0. , 0.5]])

    Dropout of one weight in two; the others count twice.

    >>> headway.attention_weights(np.zeros((2, 4)), np.zeros((2, 4)), dropout=0.5, seed=3)
    array([[2., 0.],
           [0., 1.]])
    """
    given = mask, window, softcap, alibi_slopes, sinks, kv_lengths
    call = check_attention(q, k, k, causal, align, scale, layout, given, dropout=dropout, seed=seed)
    weights = empty_result((*call.q.shape[:3], call.k.shape[2]), call.q.dtype)
    if weights.size:
        q4, k4, _, kind, _, factor, hides, _, options = call
        _core.attention_weights(q4, k4, weights, kind, factor, hides, call.offsets, options)
    return head_first(weights, call.rank)


def attention_scores(
    q: ArrayInput,
    k: ArrayInput,
    *,
    stage: str = "masked",
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
) -> Array:
    """Attention scores, before the softmax.

    Parameters
    ----------
    q, k, causal, align, scale, mask, window, softcap, alibi_slopes, sinks, kv_lengths, layout
        As in :func:`attention`.
    stage : {"masked", "capped", "scaled"}, default "masked"
        "scaled": ``scale * q.k`` for every pair of query and key. "capped": after the soft cap.
        "masked": after ALiBi and a mask of numbers, too, and ``-inf`` where the key is hidden from
        the query. An option that acts later changes nothing; sinks are no scores of a key.

    Returns
    -------
    ndarray, (B, H, Tq, Tk)
        Scores in the accumulation dtype: float64 for float64 input, else float32. C-contiguous,
        head-first in every layout: (H, Tq, Tk) for 3-D input, (Tq, Tk) for 2-D input.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As in :func:`attention`.

    Notes
    -----
    Memory: the result has B * H * Tq * Tk elements. The formula is that of Vaswani et al.,
    "Attention Is All You Need" (2017), section 3.2.

    Examples
    --------
    >>> import numpy as np
    >>> import headway
    >>> headway.attention_scores(np.ones((2, 4)), np.ones((2, 4)))
    array([[  2., -inf],
           [  2.,   2.]])
    >>> headway.attention_scores(np.ones((2, 4)), np.ones((2, 4)), alibi_slopes=[0.5])
    array([[ 2. , -inf],
           [ 1.5,  2. ]])
    >>> headway.attention_scores(np.ones((1, 4)), np.ones((1, 4)), softcap=1.0).round(3)
    array([[0.964]])
    """
    check_stage(stage)
    given = mask, window, softcap, alibi_slopes, sinks, kv_lengths
    call = check_attention(q, k, k, causal, align, scale, layout, given)
    scores = empty_result((*call.q.shape[:3], call.k.shape[2]), call.wide)
    if scores.size:
        q4, k4, _, kind, _, factor, hides, _, options = call
        _core.attention_scores(q4, k4, scores, kind, factor, hides, call.offsets, options, stage)
    return head_first(scores, call.rank)
