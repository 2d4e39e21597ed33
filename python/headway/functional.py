"""Causal multi-head attention on NumPy arrays, with every option."""

from typing import Literal, overload

from . import _core
from .arrays import Align, Array, ArrayInput, Integers, Numbers, Window, head_first
from .calls import check_attention, lse_of, target_of

__all__ = ["attention"]

_END, _BHTD, _BTHD = "end", "BHTD", "BTHD"  # the very objects that defaults and literals are
_NONE_DROPPED = 0.0


@overload
def attention(
    q: ArrayInput,
    k: ArrayInput,
    v: ArrayInput,
    *,
    causal: bool = ...,
    align: Align = ...,
    scale: float | None = ...,
    mask: ArrayInput | None = ...,
    window: Window | None = ...,
    softcap: float | None = ...,
    alibi_slopes: Numbers | None = ...,
    sinks: Numbers | None = ...,
    kv_lengths: Integers | None = ...,
    layout: str = ...,
    out: Array | None = ...,
    return_lse: Literal[False] = ...,
    dropout: float = ...,
    seed: int | None = ...,
) -> Array: ...


@overload
def attention(
    q: ArrayInput,
    k: ArrayInput,
    v: ArrayInput,
    *,
    causal: bool = ...,
    align: Align = ...,
    scale: float | None = ...,
    mask: ArrayInput | None = ...,
    window: Window | None = ...,
    softcap: float | None = ...,
    alibi_slopes: Numbers | None = ...,
    sinks: Numbers | None = ...,
    kv_lengths: Integers | None = ...,
    layout: str = ...,
    out: Array | None = ...,
    return_lse: Literal[True],
    dropout: float = ...,
    seed: int | None = ...,
) -> tuple[Array, Array]: ...


@overload
def attention(
    q: ArrayInput,
    k: ArrayInput,
    v: ArrayInput,
    *,
    causal: bool = ...,
    align: Align = ...,
    scale: float | None = ...,
    mask: ArrayInput | None = ...,
    window: Window | None = ...,
    softcap: float | None = ...,
    alibi_slopes: Numbers | None = ...,
    sinks: Numbers | None = ...,
    kv_lengths: Integers | None = ...,
    layout: str = ...,
    out: Array | None = ...,
    return_lse: bool,
    dropout: float = ...,
    seed: int | None = ...,
) -> Array | tuple[Array, Array]: ...


def attention(
    q: ArrayInput,
    k: ArrayInput,
    v: ArrayInput,
    *,
    causal: bool = True,
    align: Align = _END,
    scale: float | None = None,
    mask: ArrayInput | None = None,
    window: Window | None = None,
    softcap: float | None = None,
    alibi_slopes: Numbers | None = None,
    sinks: Numbers | None = None,
    kv_lengths: Integers | None = None,
    layout: str = _BHTD,
    out: Array | None = None,
    return_lse: bool = False,
    dropout: float = _NONE_DROPPED,
    seed: int | None = None,
) -> Array | tuple[Array, Array]:
    """Causal multi-head attention: ``softmax(scale * q @ k.T) @ v`` over the keys a query may see.

    Each query attends to the keys up to its own position. All heads and batch entries are computed
    in one fused pass over tiles of the keys; the (Tq, Tk) matrices of scores and weights are never
    stored.

    Parameters
    ----------
    q : array, (B, H, Tq, D)
        Queries; float32, float64, float16 or bfloat16 (the dtype of ``ml_dtypes``). Also
        (H, Tq, D), or (Tq, D) for one head. D is at least 1; every other size may be 0.
    k : array, (B, Hkv, Tk, D)
        Keys, in the dtype and the rank of q. H is a multiple of Hkv, and query head h reads key
        head ``h // (H // Hkv)``.
    v : array, (B, Hkv, Tk, Dv)
        Values, in the dtype and the rank of q. Dv may differ from D.
    causal : bool, default True
        A query sees the keys up to its own position p only: ``j <= p``. False: later ones, too.
    align : {"end", "start"}, int or (B,) ints, default "end"
        The key position at which query 0 stands; query i stands at ``p = align + i``. `causal`,
        `window` and `alibi_slopes` count from it. "end": the last query stands at the last key,
        as with a key-value cache, so query 0 at Tk - Tq (at ``length - Tq`` with `kv_lengths`).
        "start": query 0 stands at key 0. One int serves all batch entries, B ints one each.
    scale : float, optional
        Factor on ``q.k``, any finite number. Default ``1 / sqrt(D)``.
    mask : array that broadcasts to (B, H, Tq, Tk), optional
        bool: True where the query may attend to the key. float32, float64, float16 or bfloat16:
        added to the score; ``-inf`` hides the key, and a finite number stays one where the sums'
        dtype does not reach it. To (H, Tq, Tk) for 3-D and (Tq, Tk) for 2-D input, in every layout.
    window : int or (left, right), optional
        A query sees the keys from ``p - left`` to ``p + right`` only; -1 is no limit. An int W is
        (W - 1, 0) where causal: W keys, its own included; else (W - 1, -1).
    softcap : float, optional
        Makes a score ``softcap * tanh(score / softcap)``. Finite and not negative; 0 is none, like
        None.
    alibi_slopes : (H,) or (B, H) real numbers, optional
        Adds ``-slope * abs(p - j)`` to the score of key j; :func:`alibi_slopes` makes the usual
        ones. Finite.
    sinks : (H,) real numbers, optional
        One score more for each head in the sum of the softmax, without a value, neither scaled nor
        capped: the weights of a row sum to less than 1. ``-inf`` is no sink.
    kv_lengths : (B,) ints from 0 to Tk, optional
        Valid keys of each batch entry; what stands in k and v beyond them does not exist.
    layout : {"BHTD", "BTHD"}, default "BHTD"
        Order of the axes of q, k, v and the result. In "BTHD" they are (B, T, H, D), or (T, H, D).
    out : ndarray, optional
        Array that takes the result: its shape; its dtype, or float32 for 16-bit inputs (the result
        unrounded); any strides. It may overlap neither an input nor itself.
    return_lse : bool, default False
        Return the log-sum-exp of each row, too.
    dropout : float from 0 to less than 1, default 0.0
        Probability with which each weight is dropped, after the softmax; those that are kept are
        divided by ``1 - dropout``. The log-sum-exp is the one without dropout.
    seed : int from 0 to 2**64 - 1, optional
        Of the dropout, which needs one. It decides, with the place b of the batch entry, the query
        head, p and j, whether a weight is dropped: nothing else does, not the number of threads.

    Returns
    -------
    out : ndarray, (B, H, Tq, Dv)
        Context vectors in the rank, layout and dtype of q; C-contiguous, or `out` itself. A query
        that sees no key has the context 0.
    lse : ndarray, (B, H, Tq)
        Only with `return_lse`. Natural logarithm of the sum of ``exp(score)`` over the keys that
        a query sees, and its sink: ``-inf`` if there is neither. float64 for float64, else
        float32. Head-first in every layout: (H, Tq) for 3-D input, (Tq,) for 2-D input.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind or dtype: no array, masked, byte-swapped, integer,
        complex or object arrays, k or v of another dtype than q.
    ValueError
        If a shape, a range or a name is wrong, or `out` is read-only or overlaps; or if
        ``HEADWAY_ISA`` names an instruction set that is not available.
    MemoryError
        If the result does not fit in memory.

    Notes
    -----
    Order of work for each score: scale, soft cap, ALiBi, mask of numbers; then hiding (`causal`,
    `window`, `kv_lengths`, mask of bools, ``-inf``); then the softmax with its sinks; then dropout.
    All options work together. A tile of keys that is hidden from all its queries is not computed.

    A hidden key does not exist for the query: whatever stands there, NaN and infinity included,
    leaves the result bitwise unchanged. A NaN in a key, query or mask makes NaN the rows that see
    it; one in a value makes NaN its column in these rows, even where its weight is dropped. A score
    of ``-inf`` has weight 0.

    Sums are kept in float32 (float64 for float64 input), in which masks, slopes and sinks are read,
    too, and rounded once, to the dtype of q. The instruction sets "avx512bf16" and "amx" multiply
    bfloat16 numbers in pairs: they round the weights to bfloat16 before the second product, not
    their sum, and take subnormal numbers, in the input or on the way, for 0.

    Weights below about ``2**-126`` of the largest one of their row count as 0 (``2**-1022`` for
    float64 input). With a soft cap, ALiBi or a mask of numbers those below about ``2**-64``
    (``2**-960``) may.

    The bits of a row do not depend on the number of threads, on the batch, on strides, or on how
    the queries are cut into calls, down to one query each; with dropout they do depend on the
    place of its entry in the batch. Dropout draws by Philox4x32-10
    with `seed` as the key and (j // 4, p, head, b) as the counter: Salmon et al., "Parallel Random
    Numbers: As Easy as 1, 2, 3" (SC 2011).

    Anything with ``__dlpack__`` or ``__array__`` is accepted as input, lists are not. Inputs are
    read without a copy where the last axis is contiguous, the other strides are whole multiples of
    the item size (0 and negative included), and the address is aligned; else they are copied first.

    Memory: beyond inputs, result and copied inputs a fixed amount for each thread, whatever the
    number of tokens; it is kept for the next call, see :func:`headway.release_memory`. An `out`
    whose last axis is not contiguous costs a temporary array of its size. A mask is read through
    its strides and never expanded; one of unaligned elements is copied as it was given.

    Sources. Attention: Vaswani et al., "Attention Is All You Need" (2017, arXiv:1706.03762),
    section 3.2. Shared key heads: Ainslie et al., "GQA" (2023, arXiv:2305.13245). A softmax that
    corrects its sum whenever the maximum rises, along the keys: Milakov and Gimelshein (2018,
    arXiv:1805.02867); Rabe and Staats (2021, arXiv:2112.05682); Dao et al., "FlashAttention" (2022,
    arXiv:2205.14135). Window: Beltagy et al., "Longformer" (2020, arXiv:2004.05150). Soft cap:
    Gemma Team, "Gemma 2" (2024, arXiv:2408.00118), section 2. ALiBi: Press et al. (2022,
    arXiv:2108.12409). Sinks: Xiao et al. (2024, arXiv:2309.17453), as learnt scores: OpenAI,
    "gpt-oss model card" (2025, arXiv:2508.10925).

    Examples
    --------
    With ``q = 0`` every visible key has the same weight, so the result is a mean of values.

    >>> import numpy as np
    >>> import headway
    >>> q = np.zeros((1, 2, 3, 4), np.float32)
    >>> k = np.ones((1, 2, 3, 4), np.float32)
    >>> v = np.arange(6, dtype=np.float32).reshape(1, 2, 3, 1)
    >>> out, lse = headway.attention(q, k, v, return_lse=True)
    >>> out.shape
    (1, 2, 3, 1)
    >>> out[0, :, :, 0]
    array([[0. , 0.5, 1. ],
           [3. , 3.5, 4. ]], dtype=float32)
    >>> np.exp(lse[0, 0]).round(3)
    array([1., 2., 3.], dtype=float32)

    Who sees what: a row is a query, a column a key, # is seen. Here 3 queries over 5 keys.

    >>> def draw(num_queries, num_keys, *options):
    ...     q, k = np.zeros((num_queries, 4)), np.zeros((num_keys, 4))
    ...     seen = [headway.attention_weights(q, k, **each) > 0 for each in options]
    ...     for rows in zip(*seen):
    ...         print("    ".join(" ".join(np.where(row, "#", ".")) for row in rows))
    >>> draw(3, 5, {"align": "end"}, {"align": "start"}, {"align": 1})
    # # # . .    # . . . .    # # . . .
    # # # # .    # # . . .    # # # . .
    # # # # #    # # # . .    # # # # .
    >>> draw(3, 5, {"window": 2}, {"window": 2, "align": "start"},
    ...      {"window": (1, 1), "causal": False})
    . # # . .    # . . . .    . # # # .
    . . # # .    # # . . .    . . # # #
    . . . # #    . # # . .    . . . # #
    >>> draw(3, 5, {"kv_lengths": [4]}, {"kv_lengths": [2], "align": "start"},
    ...      {"mask": np.arange(5) > 0})
    # # . . .    # . . . .    . # # . .
    # # # . .    # # . . .    . # # # .
    # # # # .    # # . . .    . # # # #

    Of 5 queries over 3 keys, the first two stand before the first key if the ends are aligned.

    >>> draw(5, 3, {"align": "end"}, {"align": "start"})
    . . .    # . .
    . . .    # # .
    # . .    # # #
    # # .    # # #
    # # #    # # #
    """
    if (
        scale is None
        and out is None
        and return_lse is False
        and align is _END
        and (layout is _BHTD or layout is _BTHD)
        and kv_lengths is None
        and dropout is _NONE_DROPPED
        and seed is None
    ):
        plain = _core.attention_plain(
            q, k, v, causal, layout is _BTHD, mask, window, softcap, alibi_slopes, sinks
        )
        if plain is not None:  # else look closer
            return plain
    given = mask, window, softcap, alibi_slopes, sinks, kv_lengths
    call = check_attention(
        q, k, v, causal, align, scale, layout, given, out, return_lse, dropout, seed
    )
    result, place, filled, out_kind = target_of(call, out, layout)
    lse = lse_of(call) if return_lse else None
    if call.q.size:
        q4, k4, v4, kind, _, factor, hides, _, options = call
        _core.attention(
            q4, k4, v4, filled, lse, kind, out_kind, factor, hides, call.offsets, options
        )
    if filled is not place:
        place[...] = filled
    return result if lse is None else (result, head_first(lse, call.rank))
