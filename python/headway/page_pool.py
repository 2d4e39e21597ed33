"""The pages of a paged cache, and the sequences that they belong to."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .arrays import Array, Integers
from .cache_checks import ints_for_all
from .cache_pages import Pages, checked_kind
from .page_tables import PageTables, Step
from .weights import checked_size, frozen

if TYPE_CHECKING:
    from typing_extensions import Self


_TABLE_BYTES = 56  # of a page in the tables: two places in lists and its number


class PagePool:
    """Base of :class:`headway.PagedKVCache`: pages, and sequences that come and go."""

    _pages: Pages
    _tables: PageTables

    def _set_up(
        self,
        num_pages: Any,
        page_size: Any,
        num_kv_heads: Any,
        head_dim: Any,
        dtype: Any,
        v_head_dim: Any,
    ) -> None:
        count, size = checked_size("num_pages", num_pages), checked_size("page_size", page_size)
        heads = checked_size("num_kv_heads", num_kv_heads)
        width = checked_size("head_dim", head_dim)
        v_width = width if v_head_dim is None else checked_size("v_head_dim", v_head_dim)
        kind, array_dtype = checked_kind(dtype)
        tables = _TABLE_BYTES * count
        self._pages = Pages(kind, array_dtype, (count, heads, size), (width, v_width), tables)
        try:
            self._tables = PageTables(count, size)
        except MemoryError:
            raise MemoryError(
                f"num_pages: expected a number whose tables fit in memory, got {count}; "
                "make the pages larger"
            ) from None

    # What it holds ------------------------------------------------------------------------------

    @property
    def num_pages(self) -> int:
        """Number of pages N."""
        return int(self._pages.keys.shape[0])

    @property
    def page_size(self) -> int:
        """Tokens in a page, P."""
        return int(self._pages.keys.shape[2])

    @property
    def num_kv_heads(self) -> int:
        """Number of key and value heads Hkv."""
        return int(self._pages.keys.shape[1])

    @property
    def head_dim(self) -> int:
        """Numbers per token of one key head, D."""
        return int(self._pages.keys.shape[3])

    @property
    def v_head_dim(self) -> int:
        """Numbers per token of one value head, Dv."""
        return int(self._pages.values.shape[3])

    @property
    def dtype(self) -> str:
        """Name of the format: "float32", ..., "int8" or "fp8_e4m3"."""
        return self._pages.kind

    @property
    def free_pages(self) -> int:
        """Number of pages that no sequence has."""
        return len(self._tables.free)

    @property
    def nbytes(self) -> int:
        """Bytes allocated for keys, values and scales."""
        return self._pages.nbytes

    @property
    def ids(self) -> list[int]:
        """The ids of all sequences, oldest first."""
        return self._tables.ids()

    @property
    def keys(self) -> Array:
        """(N, Hkv, P, D): a read-only view of the keys of all pages as they are stored."""
        return frozen(self._pages.keys[:])

    @property
    def values(self) -> Array:
        """(N, Hkv, P, Dv): a read-only view of the values of all pages as they are stored."""
        return frozen(self._pages.values[:])

    @property
    def key_scales(self) -> Array | None:
        """(N, Hkv, P) float32: a read-only view of the scales of int8 keys, else None."""
        scales = self._pages.key_scales
        return None if scales is None else frozen(scales[:])

    @property
    def value_scales(self) -> Array | None:
        """(N, Hkv, P) float32: a read-only view of the scales of int8 values, else None."""
        scales = self._pages.value_scales
        return None if scales is None else frozen(scales[:])

    def lengths(self, ids: Integers | None = None) -> Array:
        """Tokens of these sequences.

        Parameters
        ----------
        ids : ints, optional
            The sequences; default all, in the order of the attribute ``ids``.

        Returns
        -------
        ndarray, (len(ids),) int64
            A copy.

        Raises
        ------
        TypeError, ValueError
            If there is no such sequence.

        Examples
        --------
        >>> import headway
        >>> cache = headway.PagedKVCache(num_pages=8, page_size=4, num_kv_heads=1, head_dim=2)
        >>> cache.lengths([cache.add()])
        array([0])
        """
        names = self.ids if ids is None else self._tables.checked_ids(ids, distinct=False)
        return np.array([self._tables.length(id) for id in names], dtype=np.int64)

    def block_table(self, id: int) -> Array:
        """The pages of a sequence: token j stands in page ``table[j // P]``, slot ``j % P``.

        Parameters
        ----------
        id : int
            The sequence.

        Returns
        -------
        ndarray, (n,) int64
            Numbers of pages, as many as the tokens need; a copy.

        Raises
        ------
        TypeError, ValueError
            If there is no such sequence.

        Examples
        --------
        >>> import numpy as np
        >>> import headway
        >>> cache = headway.PagedKVCache(num_pages=8, page_size=4, num_kv_heads=1, head_dim=2)
        >>> a = cache.add()
        >>> cache.append([a], np.ones((6, 2), np.float32), np.ones((6, 2), np.float32))
        >>> cache.block_table(a)
        array([0, 1])
        """
        return np.array(self._tables.pages(self._tables.checked_id(id)), dtype=np.int64)

    def __repr__(self) -> str:
        names = ["num_pages", "page_size", "num_kv_heads", "head_dim"]
        names += ["v_head_dim"] * (self.v_head_dim != self.head_dim) + ["dtype", "free_pages"]
        sizes = ", ".join(f"{name}={getattr(self, name)}" for name in names)
        return f"{type(self).__name__}({sizes})"

    def __copy__(self) -> Self:
        """A cache of its own: one that shared memory with this one would be changed by it."""
        return copy.deepcopy(self)

    # Sequences ----------------------------------------------------------------------------------

    def add(self) -> int:
        """A new sequence without tokens.

        Returns
        -------
        int
            Its id; no other sequence of this cache has or gets it.

        Examples
        --------
        >>> import headway
        >>> cache = headway.PagedKVCache(num_pages=8, page_size=4, num_kv_heads=1, head_dim=2)
        >>> cache.add(), cache.add()
        (0, 1)
        """
        return self._tables.add()

    def fork(self, id: int) -> int:
        """A new sequence with the tokens of another one, whose pages it shares.

        Parameters
        ----------
        id : int
            The other sequence.

        Returns
        -------
        int
            The id of the new one. Nothing is copied; both go on apart.

        Raises
        ------
        TypeError, ValueError
            If there is no such sequence.

        Examples
        --------
        >>> import headway
        >>> cache = headway.PagedKVCache(num_pages=8, page_size=4, num_kv_heads=1, head_dim=2)
        >>> cache.fork(cache.add())
        1
        """
        return self._tables.fork(self._tables.checked_id(id))

    def remove(self, id: int) -> None:
        """Take a sequence out; its pages are free, but for those that others have, too.

        Parameters
        ----------
        id : int
            The sequence.

        Raises
        ------
        TypeError, ValueError
            If there is no such sequence.

        Examples
        --------
        >>> import headway
        >>> cache = headway.PagedKVCache(num_pages=8, page_size=4, num_kv_heads=1, head_dim=2)
        >>> cache.remove(cache.add())
        >>> cache.ids
        []
        """
        self._tables.remove(self._tables.checked_id(id))

    def truncate(self, id: int, length: int) -> None:
        """Forget the last tokens of a sequence; pages that it no longer needs are free.

        Parameters
        ----------
        id : int
            The sequence.
        length : int
            Tokens that it keeps, at most those it has.

        Raises
        ------
        TypeError, ValueError
            If there is no such sequence, or it is shorter.

        Examples
        --------
        >>> import numpy as np
        >>> import headway
        >>> cache = headway.PagedKVCache(num_pages=8, page_size=4, num_kv_heads=1, head_dim=2)
        >>> a = cache.add()
        >>> cache.append([a], np.ones((6, 2), np.float32), np.ones((6, 2), np.float32))
        >>> cache.truncate(a, 3)
        >>> cache.lengths([a]), cache.free_pages
        (array([3]), 7)
        """
        name = self._tables.checked_id(id)
        had = self._tables.length(name)
        wanted, fix = f"one int from 0 to {had}", "pass the number of tokens to keep"
        kept = ints_for_all("length", length, wanted, fix, [had], "sequence", one=True)
        self._tables.truncate(name, kept[0])

    def _fill(self, steps: Sequence[Step], parts: tuple[Array, ...], *, single: bool) -> None:
        """Write new tokens to the pages that ``steps`` names; ``single``: one token for each."""
        pages, size = self._pages, self.page_size
        for step in steps:
            if step.copied is not None:
                pages.copy_page(pages, *step.copied, step.start % size)
        if single:
            where = [step.pages[-1] for step in steps], [step.start % size for step in steps]
            for array, x in zip(pages.arrays, parts, strict=True):
                array[where[0], :, where[1]] = x[:, :, 0]
            return
        for n, step in enumerate(steps):
            at = step.start
            while at < step.end:
                page, slot = step.pages[at // size], at % size
                count = min(step.end - at, size - slot)
                done = at - step.start
                for array, x in zip(pages.arrays, parts, strict=True):
                    array[page, :, slot : slot + count] = x[n, :, done : done + count]
                at += count
