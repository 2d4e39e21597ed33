"""Attention over sequences of several lengths that lie packed, one after another."""

from typing import Literal, overload

from . import _core
from .arrays import Align, Array, ArrayInput, Integers, Numbers, Window, head_first
from .calls import check_packed, lse_of, target_of

__all__ = ["attention_varlen"]


@overload
def attention_varlen(
    q: ArrayInput,
    k: ArrayInput,
    v: ArrayInput,
    cu_seqlens_q: Integers,
    cu_seqlens_k: Integers | None = ...,
    *,
    causal: bool = ...,
    align: Align = ...,
    scale: float | None = ...,
    window: Window | None = ...,
    softcap: float | None = ...,
    alibi_slopes: Numbers | None = ...,
    sinks: Numbers | None = ...,
    out: Array | None = ...,
    return_lse: Literal[False] = ...,
    dropout: float = ...,
    seed: int | None = ...,
) -> Array: ...


@overload
def attention_varlen(
    q: ArrayInput,
    k: ArrayInput,
    v: ArrayInput,
    cu_seqlens_q: Integers,
    cu_seqlens_k: Integers | None = ...,
    *,
    causal: bool = ...,
    align: Align = ...,
    scale: float | None = ...,
    window: Window | None = ...,
    softcap: float | None = ...,
    alibi_slopes: Numbers | None = ...,
    sinks: Numbers | None = ...,
    out: Array | None = ...,
    return_lse: Literal[True],
    dropout: float = ...,
    seed: int | None = ...,
) -> tuple[Array, Array]: ...


@overload
def attention_varlen(
    q: ArrayInput,
    k: ArrayInput,
    v: ArrayInput,
    cu_seqlens_q: Integers,
    cu_seqlens_k: Integers | None = ...,
    *,
    causal: bool = ...,
    align: Align = ...,
    scale: float | None = ...,
    window: Window | None = ...,
    softcap: float | None = ...,
    alibi_slopes: Numbers | None = ...,
    sinks: Numbers | None = ...,
    out: Array | None = ...,
    return_lse: bool,
    dropout: float = ...,
    seed: int | None = ...,
) -> Array | tuple[Array, Array]: ...


def attention_varlen(
    q: ArrayInput,
    k: ArrayInput,
    v: ArrayInput,
    cu_seqlens_q: Integers,
    cu_seqlens_k: Integers | None = None,
    *,
    causal: bool = True,
    align: Align = "end",
    scale: float | None = None,
    window: Window | None = None,
    softcap: float | None = None,
    alibi_slopes: Numbers | None = None,
    sinks: Numbers | None = None,
    out: Array | None = None,
    return_lse: bool = False,
    dropout: float = 0.0,
    seed: int | None = None,
) -> Array | tuple[Array, Array]:
    """Attention of each sequence of a packed batch to itself, or to the keys packed beside it.

    The tokens of n sequences lie one after another, without padding: sequence i has the queries
    ``q[cu_seqlens_q[i]:cu_seqlens_q[i + 1]]`` and the keys and values from ``cu_seqlens_k[i]`` to
    ``cu_seqlens_k[i + 1]``, and sees nothing else. Its result is that of :func:`attention` on it
    alone, and the time of the call is about the sum of theirs.

    Parameters
    ----------
    q : array, (total_q, H, D)
        Queries of all sequences, in the dtypes of :func:`attention`.
    k : array, (total_k, Hkv, D)
        Keys of all sequences, in the dtype of q.
    v : array, (total_k, Hkv, Dv)
        Values of all sequences, in the dtype of q.
    cu_seqlens_q : (n + 1,) ints
        Where each sequence begins in q, and total_q: 0 and then the running sum of the lengths.
        Any integer dtype, or a sequence of ints. A sequence may be empty, and n may be 0.
    cu_seqlens_k : (n + 1,) ints, optional
        The same for k and v. Default: `cu_seqlens_q`.
    causal, scale, window, softcap, sinks
        As in :func:`attention`.
    align : {"end", "start"}, int or (n,) ints, default "end"
        The key position, within the sequence, at which its query 0 stands; see :func:`attention`.
    alibi_slopes : (H,) or (n, H) real numbers, optional
        As in :func:`attention`; several rows are one for each sequence.
    out : ndarray, (total_q, H, Dv), optional
        Array that takes the result, as in :func:`attention`.
    return_lse : bool, default False
        Return the log-sum-exp of each row, too.
    dropout, seed
        As in :func:`attention`; a sequence counts as the batch entry of its place.

    Returns
    -------
    out : ndarray, (total_q, H, Dv)
        Context vectors in the dtype of q; C-contiguous, or `out` itself.
    lse : ndarray, (H, total_q)
        Only with `return_lse`: natural logarithm of the sum of ``exp(score)``, as in
        :func:`attention`.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As in :func:`attention`; ValueError, too, if the offsets do not begin with 0, fall, do not
        end with the number of tokens, or are not equally many for q and k.

    Notes
    -----
    Memory: as in :func:`attention`, and a few numbers for each sequence.

    Examples
    --------
    Two sequences, of 2 and of 3 tokens. With ``q = 0`` a result is the mean of the values seen.

    >>> import numpy as np
    >>> import headway
    >>> q = k = np.zeros((5, 1, 4), np.float32)
    >>> v = np.arange(5, dtype=np.float32).reshape(5, 1, 1)
    >>> headway.attention_varlen(q, k, v, [0, 2, 5]).ravel()
    array([0. , 0.5, 2. , 2.5, 3. ], dtype=float32)
    """
    given = window, softcap, alibi_slopes, sinks
    call, queries, keys = check_packed(
        *(q, k, v, cu_seqlens_q, cu_seqlens_k, causal, align, scale, given, out, return_lse),
        *(dropout, seed),
    )
    result, place, filled, out_kind = target_of(call, out, "BTHD")
    lse = lse_of(call) if return_lse else None
    if call.q.size:
        q4, k4, v4, kind, _, factor, hides, _, options = call
        _core.attention_varlen(
            q4,
            k4,
            v4,
            filled,
            lse,
            kind,
            out_kind,
            factor,
            hides,
            call.offsets,
            options,
            queries,
            keys,
        )
    if filled is not place:
        place[...] = filled
    return result if lse is None else (result, head_first(lse, call.rank))
