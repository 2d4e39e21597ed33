"""The state of a key-value cache: its pages, one for each sequence, and their lengths."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from .arrays import Array, Integers
from .cache_checks import checked_indices, ints_for_all
from .cache_pages import Pages, checked_kind
from .checks import check_flag
from .weights import checked_size, frozen

if TYPE_CHECKING:
    from typing_extensions import Self


class CacheState:
    """Base of :class:`headway.KVCache`: what it holds, and all changes but new tokens."""

    _pages: Pages
    _table: Array  # (B, 1) int64: the page of each sequence
    _lengths: list[int]
    _oldest: list[int]  # the first token of each sequence that a ring still has
    _window: int  # 0: no ring
    _grow: bool

    def _set_up(
        self,
        batch: Any,
        num_kv_heads: Any,
        capacity: Any,
        head_dim: Any,
        dtype: Any,
        v_head_dim: Any,
        window: Any,
        grow: Any,
    ) -> None:
        sizes = {"batch": batch, "num_kv_heads": num_kv_heads, "capacity": capacity}
        count, heads, slots = (checked_size(name, size) for name, size in sizes.items())
        width = checked_size("head_dim", head_dim)
        v_width = width if v_head_dim is None else checked_size("v_head_dim", v_head_dim)
        kind, array_dtype = checked_kind(dtype)
        check_flag("grow", grow)
        self._window = 0 if window is None else checked_size("window", window)
        if self._window > slots:
            raise ValueError(
                f"capacity: expected at least the {window} tokens of the window, got {slots}; "
                "pass capacity = window + n - 1 for pieces of up to n tokens"
            )
        if self._window and grow:
            raise ValueError(
                f"grow: expected False with window={window}, got True; a ring keeps its capacity"
            )
        self._grow = bool(grow)
        self._pages = Pages(kind, array_dtype, (count, heads, slots), (width, v_width))
        self._table = np.arange(count, dtype=np.int64)[:, None]
        self._lengths = [0] * count
        self._oldest = [0] * count

    # What it holds ------------------------------------------------------------------------------

    @property
    def batch(self) -> int:
        """Number of sequences B."""
        return len(self._lengths)

    @property
    def num_kv_heads(self) -> int:
        """Number of key and value heads Hkv."""
        return int(self._pages.keys.shape[1])

    @property
    def capacity(self) -> int:
        """Tokens of each sequence that there is room for now."""
        return int(self._pages.keys.shape[2])

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
    def window(self) -> int | None:
        """Tokens that a query of a ring sees; None: no ring."""
        return self._window or None

    @property
    def nbytes(self) -> int:
        """Bytes allocated for keys, values and scales."""
        return self._pages.nbytes

    @property
    def lengths(self) -> Array:
        """(B,) int64: tokens of each sequence, overwritten ones of a ring included; a copy."""
        return np.array(self._lengths, dtype=np.int64)

    @property
    def keys(self) -> Array:
        """(B, Hkv, L, D): a read-only view of the keys as they are stored."""
        return frozen(self._pages.keys[:, :, : self._longest])

    @property
    def values(self) -> Array:
        """(B, Hkv, L, Dv): a read-only view of the values as they are stored."""
        return frozen(self._pages.values[:, :, : self._longest])

    @property
    def key_scales(self) -> Array | None:
        """(B, Hkv, L) float32: a read-only view of the scales of int8 keys, else None."""
        scales = self._pages.key_scales
        return None if scales is None else frozen(scales[:, :, : self._longest])

    @property
    def value_scales(self) -> Array | None:
        """(B, Hkv, L) float32: a read-only view of the scales of int8 values, else None."""
        scales = self._pages.value_scales
        return None if scales is None else frozen(scales[:, :, : self._longest])

    @property
    def _longest(self) -> int:
        """Slots in use of the sequence that uses most."""
        return min(max(self._lengths), self.capacity)

    def __repr__(self) -> str:
        names = ["batch", "num_kv_heads", "capacity", "head_dim"]
        names += ["v_head_dim"] * (self.v_head_dim != self.head_dim) + ["dtype"]
        names += ["window"] * bool(self._window)
        sizes = ", ".join(f"{name}={getattr(self, name)}" for name in names)
        return f"{type(self).__name__}({sizes}, lengths={self._lengths})"

    def __copy__(self) -> Self:
        """A cache of its own: one that shared memory with this one would be changed by it."""
        return copy.deepcopy(self)

    # Changes ------------------------------------------------------------------------------------

    def truncate(self, lengths: int | Integers) -> None:
        """Forget the last tokens, such as drafts that were not accepted.

        Parameters
        ----------
        lengths : int or (B,) ints
            Tokens that each sequence keeps, at most those it has; one int serves all.

        Raises
        ------
        TypeError, ValueError
            If the lengths do not fit; a ValueError, too, if a ring has overwritten a token that
            the next one would see. The cache is unchanged then.

        Notes
        -----
        A ring can take back n tokens if its capacity is at least ``window + n - 1``.

        Examples
        --------
        >>> import numpy as np
        >>> import headway
        >>> cache = headway.KVCache(2, 1, 8, 4)
        >>> cache.append(np.ones((2, 1, 5, 4), np.float32), np.ones((2, 1, 5, 4), np.float32))
        >>> cache.truncate([5, 3])
        >>> cache.lengths
        array([5, 3])
        """
        had = self._lengths
        wanted = f"{len(had)} ints, at most the lengths {had}, or one int for all"
        fix = "pass the number of tokens to keep"
        kept = ints_for_all("lengths", lengths, wanted, fix, had, "sequence", one=True)
        for b, (length, oldest) in enumerate(zip(kept, self._oldest, strict=True)):
            first = max(length - self._window + 1, 0)
            if self._window and first < min(length, oldest):
                raise ValueError(
                    f"lengths: expected {length} tokens of sequence {b} whose last "
                    f"{self._window - 1} are still stored, got a ring that has overwritten those "
                    f"before token {oldest}; make the cache with a larger capacity"
                )
        self._lengths = kept
        self._oldest = [min(o, length) for o, length in zip(self._oldest, kept, strict=True)]

    def reorder(self, indices: Integers) -> None:
        """Make sequence b what sequence ``indices[b]`` was, as beam search needs it.

        Parameters
        ----------
        indices : (B,) ints from 0 to B - 1
            Any of them, also several times.

        Raises
        ------
        TypeError, ValueError
            If the indices do not fit. The cache is unchanged then.
        MemoryError
            If there is no memory for one sequence more. The cache is unchanged.

        Notes
        -----
        Only tokens of sequences that change are copied. Where sequences change places, one at a
        time is copied aside: memory for one sequence.

        Examples
        --------
        >>> import numpy as np
        >>> import headway
        >>> cache = headway.KVCache(2, 1, 8, 1)
        >>> cache.append(np.float32([[[[1]]], [[[2]]]]), np.float32([[[[3]]], [[[4]]]]))
        >>> cache.reorder([1, 1])
        >>> cache.keys.ravel(), cache.values.ravel()
        (array([2., 2.], dtype=float32), array([4., 4.], dtype=float32))
        """
        sources = checked_indices("indices", indices, self.batch, self.batch)
        slots = self.capacity
        lengths = [self._lengths[source] for source in sources]
        self._pages.reorder(sources, [min(length, slots) for length in lengths])
        self._lengths = lengths
        self._oldest = [self._oldest[source] for source in sources]

    def reset(self, indices: int | Integers | None = None) -> None:
        """Forget all tokens of all sequences, or of some.

        Parameters
        ----------
        indices : int or ints from 0 to B - 1, optional
            The sequences to empty; default all.

        Raises
        ------
        TypeError, ValueError
            If the indices do not fit. The cache is unchanged then.

        Examples
        --------
        >>> import numpy as np
        >>> import headway
        >>> cache = headway.KVCache(2, 1, 8, 4)
        >>> cache.append(np.ones((2, 1, 5, 4), np.float32), np.ones((2, 1, 5, 4), np.float32))
        >>> cache.reset(1)
        >>> cache.lengths
        array([5, 0])
        """
        batch = self.batch
        gone = range(batch) if indices is None else checked_indices("indices", indices, batch, None)
        lengths, oldest = self._lengths.copy(), self._oldest.copy()
        for b in gone:
            lengths[b] = oldest[b] = 0
        self._lengths, self._oldest = lengths, oldest  # new lists: a call may be reading the old

    # New tokens ---------------------------------------------------------------------------------

    def _make_room(self, n: int, grown: list[int]) -> None:
        """Room for pieces of n tokens that make the sequences as long as ``grown``, or an error."""
        slots, longest = self.capacity, max(grown)
        if self._window:
            most = slots - self._window + 1
            if n > most:
                raise ValueError(
                    f"k: expected at most {most} tokens at a time, capacity {slots} - window "
                    f"{self._window} + 1, got {n}; append and attend in pieces of {most}, or make "
                    f"the cache with capacity={self._window + n - 1}"
                )
        elif longest > slots:
            if not self._grow:
                at = grown.index(longest)
                raise ValueError(
                    f"k: expected tokens that fit into the capacity of {slots}, got {n} for a "
                    f"sequence of {self._lengths[at]}; make the cache with a capacity of at least "
                    f"{longest}, or with grow=True"
                )
            while slots < longest:
                slots *= 2
            pages = self._pages.like(len(grown), slots)
            for b, length in enumerate(self._lengths):
                pages.copy_page(self._pages, b, b, length)
            self._pages = pages

    def _write(self, b: int | slice, start: int, n: int, parts: tuple[Array, ...]) -> None:
        """Put the first n tokens of each part at position ``start`` of sequence b."""
        done, slots = 0, self.capacity
        while done < n:
            slot = (start + done) % slots
            count = min(n - done, slots - slot)
            for array, x in zip(self._pages.arrays, parts, strict=True):
                array[b, :, slot : slot + count] = x[b, :, done : done + count]
            done += count

    def _write_each(self, parts: tuple[Array, ...]) -> None:
        """Put one token behind each sequence, whatever their lengths."""
        slots = self.capacity
        places = [length % slots for length in self._lengths]
        for array, x in zip(self._pages.arrays, parts, strict=True):
            array[self._table[:, 0], :, places] = x[:, :, 0]
