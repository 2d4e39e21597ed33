"""Causal multi-head attention on NumPy arrays, with every option."""

from typing import Literal, overload

from . import _core
from .arrays import Align, Array, ArrayInput, Integers, Numbers, Window, head_first
from .calls import check_attention, lse_of, target_of

__all__ = ["attention"]

_END, _BHTD = "end", "BHTD"  # the very objects that the defaults are


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
        Query i sees the keys ``j <= offset + i`` only (see `align`); False: every key.
    align : {"end", "start"}, int or (B,) ints, default "end"
        The key position at which query 0 stands. "end": the last query sees the last key, offset
        Tk - Tq, as with a key-value cache. "start": query i sees the keys 0 to i, offset 0. One
        int serves all batch entries, several ints one entry each. Without `causal` it changes
        nothing.
    scale : float, optional
        Factor on ``q.k``, any finite number. Default ``1 / sqrt(D)``.
    layout : {"BHTD", "BTHD"}, default "BHTD"
        Order of the axes of q, k, v and the result. In "BTHD" they are (B, T, H, D), or (T, H, D).
    out : ndarray, optional
        Array that takes the result: its shape; its dtype, or float32 for 16-bit inputs (the result
        unrounded); any strides. It may overlap neither an input nor itself.
    return_lse : bool, default False
        Return the log-sum-exp of each row, too.

    Returns
    -------
    out : ndarray, (B, H, Tq, Dv)
        Context vectors in the rank, layout and dtype of q; C-contiguous, or `out` itself. A query
        that sees no key has the context 0.
    lse : ndarray, (B, H, Tq)
        Only with `return_lse`. Natural logarithm of the sum of ``exp(score)`` over the keys that
        a query sees, ``-inf`` if it sees none; float64 for float64, else float32. Head-first in
        every layout: (H, Tq) for 3-D input, (Tq,) for 2-D input.

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
    A hidden key does not exist for the query: whatever stands there, NaN and infinity included,
    leaves the result bitwise unchanged. A NaN in a key or query makes NaN the rows that see it; one
    in a value makes NaN its column in these rows. A score of ``-inf`` has weight 0.

    Sums are kept in float32 (float64 for float64 input) and rounded once, to the dtype of q. The
    instruction sets "avx512bf16" and "amx" multiply bfloat16 numbers in pairs: they round the
    weights to bfloat16 before the second product, not their sum, and take subnormal numbers, in
    the input or on the way, for 0.
    bits of a row do not depend on the number of threads, on the batch, or on strides.

    Anything with ``__dlpack__`` or ``__array__`` is accepted as input, lists are not. Inputs are
    read without a copy where the last axis is contiguous, the other strides are whole multiples of
    the item size (0 and negative included), and the address is aligned; else they are copied first.

    Memory: beyond inputs, result and copied inputs a fixed amount for each thread, whatever the
    number of tokens; it is kept for the next call, see :func:`headway.release_memory`. An `out`
    whose last axis is not contiguous costs a temporary array of its size.

    The formula is that of Vaswani et al., "Attention Is All You Need" (2017), section 3.2; the
    softmax corrects its sum whenever the maximum rises, along the keys: Milakov and
    Gimelshein, "Online normalizer calculation for softmax" (2018); Rabe and Staats, "Self-attention
    Does Not Need O(n^2) Memory" (2021); Dao et al., "FlashAttention" (2022).

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
    """
    if (
        scale is None
        and out is None
        and return_lse is False
        and align is _END
        and layout is _BHTD
        and mask is None
        and window is None
        and softcap is None
        and alibi_slopes is None
        and sinks is None
        and kv_lengths is None
    ):
        plain = _core.attention_plain(q, k, v, causal)  # None: something needs a closer look
        if plain is not None:
            return plain
    given = mask, window, softcap, alibi_slopes, sinks, kv_lengths
    call = check_attention(q, k, v, causal, align, scale, layout, given, out, return_lse)
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
