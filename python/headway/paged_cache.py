"""A paged key-value cache: sequences that come and go, and share what they have in common."""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy as np

from .arrays import Align, Array, ArrayInput, Integers, Numbers, Window
from .cache_calls import Asked, Held, attend
from .cache_checks import checked_counts
from .page_pool import PagePool

__all__ = ["PagedKVCache"]


class PagedKVCache(PagePool):
    """Keys and values of sequences that come and go, in pages that they need not share out evenly.

    A sequence has as many pages as its tokens fill; sequences that begin alike share pages::

        cache = PagedKVCache(num_pages=1024, page_size=16, num_kv_heads=8, head_dim=128)
        a = cache.add()                      # an empty sequence
        cache.append([a], k, v)              # (1, Hkv, n, D): its prompt
        b = cache.fork(a)                    # the same tokens, not copied
        cache.append([a, b], k, v)           # (2, Hkv, 1, D): they go on apart
        out = cache.attend([a, b], q)        # (2, H, 1, Dv)
        cache.remove(a)                      # its pages are free, but for those that b has, too

    Parameters
    ----------
    num_pages : int
        Number of pages N.
    page_size : int
        Tokens in a page, P.
    num_kv_heads : int
        Number of key and value heads Hkv.
    head_dim : int
        Numbers per token of one key head, D.
    dtype : dtype or str, default numpy.float32
        As in :class:`KVCache`.
    v_head_dim : int, optional
        Numbers per token of one value head, Dv. Default `head_dim`.

    Attributes
    ----------
    num_pages, page_size, num_kv_heads, head_dim, v_head_dim : int
        Sizes.
    dtype : str
        Name of the format, as in :class:`KVCache`.
    free_pages : int
        Number of pages that no sequence has.
    ids : list of int
        The sequences, oldest first.
    keys, values : ndarray, (N, Hkv, P, D) and (N, Hkv, P, Dv)
        Read-only views of all pages, as they are stored; see :class:`KVCache`.
    key_scales, value_scales : ndarray, (N, Hkv, P) float32, or None
        Read-only views of the scales of "int8".
    nbytes : int
        Bytes allocated for keys, values and scales.

    Raises
    ------
    TypeError, ValueError, ImportError, MemoryError
        As :class:`KVCache`.

    Notes
    -----
    Results, 8-bit formats, threads and copies are as with :class:`KVCache`: where the pages of a
    sequence lie changes no bit.

    A page belongs to every sequence that has it. Tokens that are appended to a last page with
    several owners go to a copy of it (copy on write), for which a free page is needed. A call that
    fails changes nothing.

    Memory: ``nbytes``, all of it from the start, and about 50 bytes for each page and sequence.

    Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with
    PagedAttention" (2023, arXiv:2309.06180), section 4.

    Examples
    --------
    >>> import numpy as np
    >>> import headway
    >>> cache = headway.PagedKVCache(num_pages=8, page_size=4, num_kv_heads=1, head_dim=2)
    >>> a = cache.add()
    >>> cache.append([a], np.ones((1, 1, 6, 2), np.float32), np.ones((1, 1, 6, 2), np.float32))
    >>> b = cache.fork(a)
    >>> cache.block_table(a), cache.block_table(b), cache.free_pages
    (array([0, 1]), array([0, 1]), 6)
    >>> cache.append([b], np.ones((1, 1, 1, 2), np.float32), np.ones((1, 1, 1, 2), np.float32))
    >>> cache.block_table(a), cache.block_table(b), cache.free_pages
    (array([0, 1]), array([0, 2]), 5)
    >>> cache.attend([a, b], np.ones((2, 1, 1, 2), np.float32)).shape
    (2, 1, 1, 2)
    >>> cache.remove(a)
    >>> cache
    PagedKVCache(num_pages=8, page_size=4, num_kv_heads=1, head_dim=2, dtype=float32, free_pages=6)
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        dtype: Any = np.float32,
        v_head_dim: int | None = None,
    ) -> None:
        self._set_up(num_pages, page_size, num_kv_heads, head_dim, dtype, v_head_dim)

    def append(
        self, ids: Integers, k: ArrayInput, v: ArrayInput, counts: Integers | None = None
    ) -> None:
        """Copy in the keys and values of new tokens.

        Parameters
        ----------
        ids : ints
            The sequences that grow, each once.
        k : array, (len(ids), Hkv, n, D)
            Keys, as in :meth:`KVCache.append`.
        v : array, (len(ids), Hkv, n, Dv)
            Values, in the dtype of k.
        counts : (len(ids),) ints from 0 to n, optional
            How many of the n tokens each sequence takes, from the first on; default all.

        Raises
        ------
        TypeError, ValueError
            If an argument does not fit. The cache is unchanged then.
        MemoryError
            If there are too few free pages. The cache is unchanged then.

        Examples
        --------
        >>> import numpy as np
        >>> import headway
        >>> cache = headway.PagedKVCache(num_pages=8, page_size=4, num_kv_heads=1, head_dim=2)
        >>> a, b = cache.add(), cache.add()
        >>> k = np.ones((2, 1, 5, 2), np.float32)
        >>> cache.append([a, b], k, k, counts=[5, 1])
        >>> cache.lengths([a, b]), cache.free_pages
        (array([5, 1]), 5)
        """
        names = self._tables.checked_ids(ids, distinct=True)
        pages = self._pages
        k4, v4, kind = pages.checked(k, v, len(names), "id")
        n = k4.shape[2]
        taken = [n] * len(names) if counts is None else checked_counts(counts, len(names), n, "id")
        steps = self._tables.plan(names, taken)
        parts = pages.encoded(k4, v4, kind)
        self._fill(steps, parts, single=n == 1 and counts is None)
        self._tables.commit(steps)

    @overload
    def attend(
        self,
        ids: Integers,
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
        ids: Integers,
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
        ids: Integers,
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
        ids: Integers,
        q: ArrayInput,
        *,
        causal: bool = True,
        align: Align = "end",
        scale: float | None = None,
        mask: ArrayInput | None = None,
        window: Window | None = None,
        softcap: float | None = None,
        alibi_slopes: Numbers | None = None,
        sinks: Numbers | None = None,
        layout: str = "BHTD",
        out: Array | None = None,
        return_lse: bool = False,
    ) -> Array | tuple[Array, Array]:
        """Attention of queries to all tokens of their sequences.

        Parameters
        ----------
        ids : ints
            One sequence for each batch entry of q; a sequence may come several times.
        q : array, (len(ids), H, Tq, D)
            Queries, as in :meth:`KVCache.attend`.
        causal, align, scale, mask, window, softcap, alibi_slopes, sinks, layout, out, return_lse
            As in :meth:`KVCache.attend`.

        Returns
        -------
        out : ndarray, (len(ids), H, Tq, Dv)
            Context vectors, as from :meth:`KVCache.attend`.
        lse : ndarray, (len(ids), H, Tq)
            Only with `return_lse`.

        Raises
        ------
        TypeError, ValueError, MemoryError
            As :meth:`KVCache.attend`.

        Examples
        --------
        >>> import numpy as np
        >>> import headway
        >>> cache = headway.PagedKVCache(num_pages=8, page_size=2, num_kv_heads=1, head_dim=1)
        >>> a = cache.add()
        >>> v = np.float32([[1], [2], [6]])
        >>> cache.append([a], np.zeros((3, 1), np.float32), v)
        >>> cache.attend([a], np.zeros((3, 1), np.float32)).ravel()
        array([1. , 1.5, 3. ], dtype=float32)
        """
        tables = self._tables
        names = tables.checked_ids(ids, distinct=False)
        lengths = [tables.length(id) for id in names]
        held = Held(self._pages, tables.table(names), lengths, "id")
        act = mask, window, softcap, alibi_slopes, sinks
        return attend(held, q, Asked(causal, align, scale, *act, layout, out, return_lse))
