"""Which page belongs to which sequence: an allocator that knows nothing of what pages hold."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .arrays import Array
from .options import whole_numbers

_INT64 = "q"


class _Entry:
    """One sequence: its pages, as many as its length needs, and its length."""

    __slots__ = ("length", "pages")

    def __init__(self, pages: array[int], length: int) -> None:
        self.pages = pages
        self.length = length


class Step(NamedTuple):
    """How one sequence is to grow: nothing has happened yet."""

    id: int
    pages: array[int]  # all its pages afterwards
    start: int  # its length now
    end: int  # and afterwards
    copied: tuple[int, int] | None  # (old, new): its last page is shared, and is copied first


class PageTables:
    """Sequences by id, pages by number. A page has as many owners as sequences that list it.

    A growth is planned first, which changes nothing, and then carried out by :meth:`commit`.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.page_size = page_size
        self.owners = [0] * num_pages
        self.free = list(range(num_pages - 1, -1, -1))  # the last one is the next to be used
        self._entries: dict[int, _Entry] = {}
        self._next_id = 0
        self._kept: tuple[list[int], Array] | None = None  # the last table, while no page moves

    # Sequences ----------------------------------------------------------------------------------

    def ids(self) -> list[int]:
        """The ids of all sequences, oldest first."""
        return list(self._entries)

    def length(self, id: int) -> int:
        """The length of a sequence."""
        return self._entries[id].length

    def pages(self, id: int) -> array[int]:
        """The pages of a sequence, 64-bit numbers."""
        return self._entries[id].pages

    def add(self) -> int:
        """A new, empty sequence."""
        return self._enter(_Entry(array(_INT64), 0))

    def fork(self, id: int) -> int:
        """A new sequence with the pages of another one, of which both are owners now."""
        entry = self._entries[id]
        for page in entry.pages:
            self.owners[page] += 1
        return self._enter(_Entry(entry.pages[:], entry.length))

    def _enter(self, entry: _Entry) -> int:
        id = self._next_id
        self._next_id += 1
        self._entries[id] = entry
        return id

    def remove(self, id: int) -> None:
        """Take a sequence away; pages without another owner are free again."""
        self.truncate(id, 0)
        del self._entries[id]

    def truncate(self, id: int, length: int) -> None:
        """Make a sequence shorter; pages that it no longer needs lose an owner."""
        entry = self._entries[id]
        kept = self._pages_for(length)
        for page in reversed(entry.pages[kept:]):
            self._release(page)
        if len(entry.pages) != kept:
            self._kept = None
        del entry.pages[kept:]
        entry.length = length

    def _release(self, page: int) -> None:
        self.owners[page] -= 1
        if not self.owners[page]:
            self.free.append(page)

    def _pages_for(self, length: int) -> int:
        return -(-length // self.page_size)

    # Growing ------------------------------------------------------------------------------------

    def plan(self, ids: Sequence[int], counts: Sequence[int]) -> list[Step]:
        """How these sequences, each another one, grow by so many tokens.

        Raises
        ------
        MemoryError
            If there are too few free pages.
        """
        owners: dict[int, int] = {}  # of shared pages that steps before have copied
        taken = 0
        steps = []
        for id, count in zip(ids, counts, strict=True):
            entry = self._entries[id]
            pages, start = entry.pages, entry.length
            new = self._pages_for(start + count) - len(pages)
            copied = None
            if count and start % self.page_size:
                last = pages[-1]
                left = owners.get(last, self.owners[last])
                if left > 1:
                    owners[last] = left - 1
                    taken += 1
                    copied = last, self._free_page(taken)
                    pages = pages[:-1] + array(_INT64, [copied[1]])
            if new and taken + new <= len(self.free):
                fresh = (self._free_page(taken + n) for n in range(1, new + 1))
                pages = pages + array(_INT64, fresh)
            taken += new
            steps.append(Step(id, pages, start, start + count, copied))
        if taken > len(self.free):
            raise MemoryError(
                f"k: expected tokens for which the {len(self.free)} free pages suffice, got some "
                f"that need {taken} pages of {self.page_size} tokens; remove a sequence, or make "
                "the cache with more pages"
            )
        return steps

    def _free_page(self, number: int) -> int:
        """The free page that is used as the first, second, ... one; -1 where there is none."""
        return self.free[-number] if number <= len(self.free) else -1

    def commit(self, steps: Sequence[Step]) -> None:
        """Carry out what :meth:`plan` has just planned."""
        for step in steps:
            entry = self._entries[step.id]
            if step.pages is not entry.pages:
                had = len(entry.pages) - (step.copied is not None)
                fresh = step.pages[had:]
                for page in fresh:
                    self.owners[page] = 1
                del self.free[len(self.free) - len(fresh) :]
                if step.copied is not None:
                    self._release(step.copied[0])
                entry.pages = step.pages
                self._kept = None
            entry.length = step.end

    def table(self, ids: list[int]) -> Array:
        """(len(ids), n) int64: the pages of each, n the most of them, filled up with page 0."""
        kept = self._kept  # read once: another thread may put another table in its place
        if kept is not None and kept[0] == ids:
            return kept[1]
        pages = [self._entries[id].pages for id in ids]
        table = np.zeros((len(ids), max(map(len, pages), default=0) or 1), dtype=np.int64)
        for row, each in zip(table, pages, strict=True):
            row[: len(each)] = np.frombuffer(each, np.int64) if each else 0
        self._kept = ids, table
        return table

    # Checks -------------------------------------------------------------------------------------

    def checked_id(self, id: Any) -> int:
        """The id of a sequence that is there."""
        fix = "pass an id that add or fork returned"
        try:
            given = whole_numbers("id", id)
        except TypeError:
            given = []
        if not isinstance(given, int):
            raise TypeError(f"id: expected one int, got {id!r} ({type(id).__name__}); {fix}")
        if given not in self._entries:
            raise ValueError(f"id: expected that of a sequence in the cache, got {given}; {fix}")
        return given

    def checked_ids(self, ids: Any, *, distinct: bool) -> list[int]:
        """The ids of sequences that are there; ``distinct``: each at most once."""
        fix = "pass a list of ids that add or fork returned"
        try:
            given = whole_numbers("ids", ids)
        except TypeError:
            given = 0
        if isinstance(given, int):
            raise TypeError(f"ids: expected ints, got {ids!r} ({type(ids).__name__}); {fix}")
        for id in given:
            if id not in self._entries:
                raise ValueError(f"ids: expected those of sequences in the cache, got {id}; {fix}")
        if distinct and len(set(given)) < len(given):
            twice = next(id for id in given if given.count(id) > 1)
            raise ValueError(
                f"ids: expected each sequence once, got {twice} twice; "
                "append all its tokens in one piece"
            )
        return given
