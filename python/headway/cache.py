"""A key-value cache: the keys and values of a batch of sequences that grow token by token."""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy as np

from . import _core
from .arrays import Align, Array, ArrayInput, Integers, Numbers, Window
from .cache_calls import Asked, Held, attend
from .cache_checks import checked_counts
from .cache_state import CacheState

__all__ = ["KVCache"]

_EACH = "sequence of the cache"
_END, _BHTD, _BTHD = "end", "BHTD", "BTHD"  # the very objects that defaults and literals are


class KVCache(CacheState):
    """Keys and values of a batch of sequences, which grow as tokens are generated.

    :meth:`append` copies the keys and values of new tokens in, and :meth:`attend` is
    :func:`attention` over all that the cache holds::

        cache.append(k, v)              # (B, Hkv, n, D) and (B, Hkv, n, Dv): a prompt, or one token
        out = cache.attend(q)           # (B, H, n, D): the queries of the same tokens

    Parameters
    ----------
    batch : int
        Number of sequences B. Each has a length of its own.
    num_kv_heads : int
        Number of key and value heads Hkv.
    capacity : int
        Tokens of each sequence that there is room for.
    head_dim : int
        Numbers per token of one key head, D.
    dtype : dtype or str, default numpy.float32
        float32, float64, float16, bfloat16 (by name, it needs ``ml_dtypes``), or one of two 8-bit
        formats, "int8" and "fp8_e4m3", see Notes.
    v_head_dim : int, optional
        Numbers per token of one value head, Dv. Default `head_dim`.
    window : int, optional
        Keep a window of W tokens only, in a ring of `capacity` slots that are used over and over:
        a sequence may grow without end, and a query sees W keys, its own included. A piece of n
        tokens needs ``capacity >= window + n - 1``.
    grow : bool, default False
        Double the capacity when it does not suffice. Not together with `window`.

    Attributes
    ----------
    batch, num_kv_heads, capacity, head_dim, v_head_dim : int
        Sizes; the capacity as it is now.
    dtype : str
        Name of the format: "float32", ..., "int8" or "fp8_e4m3".
    window : int or None
        As given.
    lengths : ndarray, (B,) int64
        Tokens of each sequence, those included that a ring has overwritten; a copy.
    keys, values : ndarray, (B, Hkv, L, D) and (B, Hkv, L, Dv)
        Read-only views of what is stored, L the longest length; beyond the length of a sequence
        stands anything. In a ring L is at most the capacity, and token j stands in slot
        ``j % capacity``. Of 8-bit formats the stored numbers: int8, or the bits of e4m3fn as uint8.
    key_scales, value_scales : ndarray, (B, Hkv, L) float32, or None
        Read-only views of the scales of "int8": the keys are
        ``cache.keys * cache.key_scales[..., None]``.
    nbytes : int
        Bytes allocated for keys, values and scales.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind or out of range.
    ImportError
        If the dtype is "bfloat16" and ``ml_dtypes`` is not installed.
    MemoryError
        If the cache does not fit in memory.

    Notes
    -----
    The results are those of :func:`attention` on the history of each sequence: to the bit for
    pieces of any number of tokens, one included, and whatever the other sequences, the capacity, or
    the number of threads. With 8-bit formats they are those of the rounded keys and values.

    "int8" stores integers and one float32 scale for each token and head, ``max|x| / 127``: no
    number is off by more than half its scale. The scale is at least the smallest normal float32,
    but 0 where all numbers are 0; of a token with inf or NaN it is NaN.
    "fp8_e4m3" stores OCP e4m3fn numbers: off by at most ``2**-4`` of a number from ``2**-6`` to
    448, by at most ``2**-10`` below; finite numbers beyond 448 become 448 with their sign, inf and
    NaN become NaN. The format is that of Micikevicius et al., "FP8 Formats for Deep Learning"
    (2022, arXiv:2209.05433). Both are quantised when tokens are appended, and read by the kernels
    as they lie; sums are kept in float32.

    Memory: ``nbytes``, in pages of their own, huge ones where the system gives them. A cache that
    grows holds the old and the new arrays for a moment. Several threads may read a cache at once;
    while one changes it, no other may read it. Copies (:mod:`copy`) and pickles hold everything.

    Sources: Pope et al., "Efficiently Scaling Transformer Inference" (2022, arXiv:2211.05102),
    section 3.3; rings: Jiang et al., "Mistral 7B" (2023, arXiv:2310.06825), section 2.

    Examples
    --------
    >>> import numpy as np
    >>> import headway
    >>> rng = np.random.default_rng(0)
    >>> q, k, v = (rng.standard_normal((1, 2, 6, 8), dtype=np.float32) for _ in range(3))
    >>> cache = headway.KVCache(batch=1, num_kv_heads=2, capacity=6, head_dim=8)
    >>> cache.append(k[:, :, :5], v[:, :, :5])  # the prompt
    >>> first = cache.attend(q[:, :, :5])
    >>> cache.append(k[:, :, 5:], v[:, :, 5:])  # one token
    >>> last = cache.attend(q[:, :, 5:])
    >>> np.allclose(np.concatenate([first, last], axis=2), headway.attention(q, k, v), atol=1e-6)
    True
    >>> cache
    KVCache(batch=1, num_kv_heads=2, capacity=6, head_dim=8, dtype=float32, lengths=[6])
    """

    def __init__(
        self,
        batch: int,
        num_kv_heads: int,
        capacity: int,
        head_dim: int,
        *,
        dtype: Any = np.float32,
        v_head_dim: int | None = None,
        window: int | None = None,
        grow: bool = False,
    ) -> None:
        self._set_up(batch, num_kv_heads, capacity, head_dim, dtype, v_head_dim, window, grow)

    def append(self, k: ArrayInput, v: ArrayInput, counts: Integers | None = None) -> None:
        """Copy in the keys and values of new tokens.

        Parameters
        ----------
        k : array, (B, Hkv, n, D)
            Keys in the cache's dtype; float32, float16 or bfloat16 for 8-bit formats. A cache of
            one sequence takes (Hkv, n, D), too, and one of one head (n, D).
        v : array, (B, Hkv, n, Dv)
            Values, in the dtype of k.
        counts : (B,) ints from 0 to n, optional
            How many of the n tokens each sequence takes, from the first on; default all.

        Raises
        ------
        TypeError, ValueError
            If an argument does not fit, or the tokens into the capacity; the cache is unchanged.
        MemoryError
            If the grown cache does not fit in memory; it is unchanged.

        Notes
        -----
        The arrays may be changed afterwards. 8-bit formats need memory for the call's tokens, too.

        Examples
        --------
        >>> import numpy as np
        >>> import headway
        >>> cache = headway.KVCache(2, 1, 8, 4)
        >>> k = np.ones((2, 1, 3, 4), np.float32)
        >>> cache.append(k, k, counts=[3, 1])
        >>> cache.lengths
        array([3, 1])
        """
        lengths = self._lengths
        batch = len(lengths)
        k4, v4, kind = self._pages.checked(k, v, batch, _EACH)
        n = k4.shape[2]
        taken = None if counts is None else checked_counts(counts, batch, n, "sequence")
        added = [n] * batch if taken is None else taken
        grown = [length + count for length, count in zip(lengths, added, strict=True)]
        self._make_room(max(added), grown)
        parts = self._pages.encoded(k4, v4, kind)
        if self._window:
            if any(np.may_share_memory(x, y) for x in (k4, v4) for y in self._pages.parts[1:3]):
                parts = tuple(part.copy() for part in parts)  # of the slots that it overwrites
            # Before they are: an interruption leaves no token that is not there any more.
            slots = self.capacity
            self._oldest = [max(o, end - slots) for o, end in zip(self._oldest, grown, strict=True)]
        start = lengths[0]
        if taken is None and (batch == 1 or lengths.count(start) == batch):
            self._write(slice(None), start, n, parts)
        elif taken is None and n == 1:
            self._write_each(parts)
        else:
            for b, (start, end) in enumerate(zip(lengths, grown, strict=True)):
                self._write(b, start, end - start, parts)
        self._lengths = grown

    @overload
    def attend(
        self,
        q: ArrayInput,
        *,
        causal: bool = ...,
        align: Align = ...,
        scale: float | None = ...,
        mask: ArrayInput | None = ...,
        window: Window | None = ...,
        softcap: float | None = ...,
        alibi_slopes: Numbers | None = ...,
        sinks: Numbers | None = ...,
        layout: str = ...,
        out: Array | None = ...,
        return_lse: Literal[False] = ...,
    ) -> Array: ...

    @overload
    def attend(
        self,
        q: ArrayInput,
        *,
        causal: bool = ...,
        align: Align = ...,
        scale: float | None = ...,
        mask: ArrayInput | None = ...,
        window: Window | None = ...,
        softcap: float | None = ...,
        alibi_slopes: Numbers | None = ...,
        sinks: Numbers | None = ...,
        layout: str = ...,
        out: Array | None = ...,
        return_lse: Literal[True],
    ) -> tuple[Array, Array]: ...

    @overload
    def attend(
        self,
        q: ArrayInput,
        *,
        causal: bool = ...,
        align: Align = ...,
        scale: float | None = ...,
        mask: ArrayInput | None = ...,
        window: Window | None = ...,
        softcap: float | None = ...,
        alibi_slopes: Numbers | None = ...,
        sinks: Numbers | None = ...,
        layout: str = ...,
        out: Array | None = ...,
        return_lse: bool,
    ) -> Array | tuple[Array, Array]: ...

    def attend(
        self,
        q: ArrayInput,
        *,
        causal: bool = True,
        align: Align = _END,
        scale: float | None = None,
        mask: ArrayInput | None = None,
        window: Window | None = None,
        softcap: float | None = None,
        alibi_slopes: Numbers | None = None,
        sinks: Numbers | None = None,
        layout: str = _BHTD,
        out: Array | None = None,
        return_lse: bool = False,
    ) -> Array | tuple[Array, Array]:
        """Attention of queries to all that the cache holds.

        The same as :func:`attention` with the cache's keys and values, and its lengths for
        `kv_lengths`: by default the last query of each sequence stands at its last token.

        Parameters
        ----------
        q : array, (B, H, Tq, D)
            Queries, H a multiple of Hkv; in the cache's dtype, or float32, float16 or bfloat16 for
            8-bit formats. A cache of one sequence takes (H, Tq, D), too, and (Tq, D) for one head.
        causal, align, scale, softcap, alibi_slopes, sinks, layout, out
            As in :func:`attention`. The positions of `align` count all tokens of a sequence.
        mask : array that broadcasts to (B, H, Tq, L), optional
            As in :func:`attention`; L is the longest length, overwritten tokens of a ring included.
        window : int or (left, right), optional
            As in :func:`attention`. In a ring the default is its own window, and no query may see
            more keys before itself.
        return_lse : bool, default False
            Return the log-sum-exp of each row, too.

        Returns
        -------
        out : ndarray, (B, H, Tq, Dv)
            Context vectors in the rank, layout and dtype of q; C-contiguous, or `out` itself.
        lse : ndarray, (B, H, Tq)
            Only with `return_lse`, as in :func:`attention`.

        Raises
        ------
        TypeError, ValueError, MemoryError
            As in :func:`attention`; a ValueError, too, if a query sees tokens that a ring has
            overwritten.

        Notes
        -----
        Memory: that of :func:`attention`, whatever the length. Keys and values are read where they
        lie. 16-bit queries of 8-bit formats are widened to float32 first.

        Examples
        --------
        >>> import numpy as np
        >>> import headway
        >>> cache = headway.KVCache(1, 1, 4, 2, v_head_dim=1)
        >>> cache.append(np.zeros((1, 3, 2), np.float32), np.float32([[[1], [2], [6]]]))
        >>> cache.attend(np.zeros((1, 3, 2), np.float32)).ravel()
        array([1. , 1.5, 3. ], dtype=float32)
        >>> cache.attend(np.zeros((1, 1, 2), np.float32), window=2).ravel()
        array([4.], dtype=float32)
        """
        bare = scale is None and out is None and return_lse is False and align is _END
        if bare and (layout is _BHTD or layout is _BTHD) and not self._window:
            given = q, self._pages.parts, self._table, self._lengths, causal, layout is _BTHD
            plain = _core.attend_plain(*given, mask, window, softcap, alibi_slopes, sinks)
            if plain is not None:
                return plain
        held = Held(self._pages, self._table, self._lengths, _EACH, self._window, self._oldest)
        act = mask, window, softcap, alibi_slopes, sinks
        return attend(held, q, Asked(causal, align, scale, *act, layout, out, return_lse))
