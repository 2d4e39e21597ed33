"""Sequences that come, grow, fork and go in pages, beside a model in plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cache_kinds import STORED, Direct, source_of
from cache_model import HEADS, TOKENS, V_WIDTH, WIDTH, arrays_of, check_attention, tokens
from helpers import dtype_of, make
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headway import PagedKVCache


class Page:
    """A page of the model: the tokens in it, whose it is known by who has it."""

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers


class Sequence:
    """A sequence of the model: its pages, the last of which it may fill in part."""

    def __init__(self, pages: list[Page], length: int) -> None:
        self.pages, self.length = pages, length

    def history(self) -> list[int]:
        """Return its tokens."""
        return [n for page in self.pages for n in page.numbers][: self.length]


class Pages(RuleBasedStateMachine):
    """add, fork, append, remove, truncate and attend, those that fail included."""

    @initialize(
        num_pages=st.integers(1, 14) | st.just(14),
        page_size=st.integers(1, 5),
        dtype=st.sampled_from(STORED),
    )
    def begin(self, num_pages: int, page_size: int, dtype: str) -> None:
        self.dtype = dtype
        sizes = {"dtype": dtype, "v_head_dim": V_WIDTH}
        self.cache = PagedKVCache(num_pages, page_size, HEADS, WIDTH, **sizes)
        self.model: dict[int, Sequence] = {}
        self.gone: set[int] = set()
        self.next = 0  # the number of the next token

    def chosen(self, data: st.DataObject, **sizes: int) -> list[int]:
        """Return some of the sequences."""
        return data.draw(st.lists(st.sampled_from(sorted(self.model)), **sizes))

    def owners(self, page: Page) -> int:
        """Return how many sequences have this page."""
        return sum(each is page for seq in self.model.values() for each in seq.pages)

    def in_use(self) -> int:
        """Return the number of pages that some sequence has."""
        return len({id(page) for seq in self.model.values() for page in seq.pages})

    @precondition(lambda self: len(self.model) < 5)
    @rule()
    def add(self) -> None:
        new = self.cache.add()
        assert new not in self.model
        assert new not in self.gone
        self.model[new] = Sequence([], 0)

    @precondition(lambda self: 0 < len(self.model) < 8)
    @rule(data=st.data(), times=st.integers(1, 3))
    def fork(self, data: st.DataObject, times: int) -> None:
        old = self.chosen(data, min_size=1, max_size=1)[0]
        for _ in range(times):
            new = self.cache.fork(old)
            assert new not in self.model
            assert new not in self.gone
            self.model[new] = Sequence(list(self.model[old].pages), self.model[old].length)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        for old in self.chosen(data, min_size=1, max_size=3, unique=True):
            self.cache.remove(old)
            del self.model[old]
            self.gone.add(old)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        name = self.chosen(data, min_size=1, max_size=1)[0]
        seq = self.model[name]
        length = seq.length - min(data.draw(st.integers(0, 6)), seq.length)
        self.cache.truncate(name, length)
        seq.length = length
        seq.pages = seq.pages[: -(-length // self.cache.page_size)]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        """Different numbers of tokens to some of the sequences."""
        names = self.chosen(data, min_size=1, unique=True)
        rows = [self.new_tokens(data.draw(st.integers(0, 7))) for _ in names]
        self.grow(names, rows, [len(numbers) for numbers in rows])

    @precondition(lambda self: self.model)
    @rule(data=st.data(), count=st.integers(1, 3))
    def step(self, data: st.DataObject, count: int) -> None:
        """As many tokens to all sequences, in any order."""
        names = data.draw(st.permutations(sorted(self.model)))
        self.grow(names, [self.new_tokens(count) for _ in names], None)

    def grow(self, names: list[int], rows: list[list[int]], counts: list[int] | None) -> None:
        """Append in the model, one sequence after another; then to the cache, if all fits."""
        before = {name: Sequence(list(s.pages), s.length) for name, s in self.model.items()}
        kept = {id(p): (p, list(p.numbers)) for s in self.model.values() for p in s.pages}
        fits = True
        for name, numbers in zip(names, rows, strict=True):
            for number in numbers:
                self.put(self.model[name], number)
                fits = fits and self.in_use() <= self.cache.num_pages
        k, v = arrays_of(self.dtype, rows)
        if fits:
            self.cache.append(names, k, v, counts)
            return
        self.model = before
        for page, numbers in kept.values():
            page.numbers = numbers
        with pytest.raises(MemoryError):
            self.cache.append(names, k, v, counts)

    def new_tokens(self, count: int) -> list[int]:
        """Return so many tokens, each another one, from the first on again after the last."""
        self.next += count
        return [n % TOKENS for n in range(self.next - count, self.next)]

    def put(self, seq: Sequence, number: int) -> None:
        """Append a token in the model: to a copy of the last page if others have it, too."""
        place = seq.length % self.cache.page_size
        if place == 0:
            seq.pages.append(Page([]))
        elif self.owners(seq.pages[-1]) > 1:
            seq.pages[-1] = Page(list(seq.pages[-1].numbers))
        seq.pages[-1].numbers[place:] = [number]
        seq.length += 1

    @precondition(lambda self: self.model)
    @rule(data=st.data(), rows=st.integers(1, 3), seed=st.integers(0, 99))
    def attend(self, data: st.DataObject, rows: int, seed: int) -> None:
        names = self.chosen(data, min_size=1, max_size=5)
        q = make((42, seed), (len(names), 2 * HEADS, rows, WIDTH), source_of(self.dtype))
        out, lse = self.cache.attend(names, q, return_lse=True)
        for b, name in enumerate(names):
            one = slice(b, b + 1)
            found = out[one], lse[one]
            check_attention(found, q[one], self.dtype, self.model[name].history())

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def wrong(self, data: st.DataObject) -> None:
        """Calls that are refused; what they leave behind is looked at as after any other."""
        name = self.chosen(data, min_size=1, max_size=1)[0]
        k, v = arrays_of(self.dtype, [[1, 2]])
        twice = arrays_of(self.dtype, [[1], [2]])
        other = dtype_of("float64" if self.dtype != "float64" else "float32")
        absent = max([*self.model, *self.gone]) + 1
        calls: list[tuple[Any, ...]] = [
            ([name, name], *twice),
            ([absent], k, v),
            ([name, min(self.gone, default=absent)], *twice),
            ([name], k, v[:, :, :1]),
            ([name], k[:, :1], v),
            ([name], k, v, [3]),
            ([name], k, v, [-1]),
            ([name], k.astype(other), v.astype(other)),
            ([], k, v),
        ]
        with pytest.raises((ValueError, TypeError)):
            self.cache.append(*data.draw(st.sampled_from(calls)))
        for method in (self.cache.fork, self.cache.remove, self.cache.block_table):
            with pytest.raises(ValueError, match="id"):
                method(absent)
        with pytest.raises(ValueError, match="length"):
            self.cache.truncate(name, self.model[name].length + 1)

    @invariant()
    def pages_are_those_of_the_model(self) -> None:
        """Every page is free or in use, and shared by exactly those that share it in the model."""
        if not hasattr(self, "model"):
            return
        cache = self.cache
        assert cache.ids == sorted(self.model) == list(self.model)
        assert cache.lengths().tolist() == [seq.length for seq in self.model.values()]
        place_of: dict[int, int] = {}
        for name, seq in self.model.items():
            table = cache.block_table(name).tolist()
            assert len(table) == len(seq.pages)
            for place, page in zip(table, seq.pages, strict=True):
                assert 0 <= place < cache.num_pages
                assert place_of.setdefault(id(page), place) == place
        assert len(set(place_of.values())) == len(place_of)
        assert cache.free_pages + len(place_of) == cache.num_pages

    @invariant()
    def contents_are_those_of_the_model(self) -> None:
        if not hasattr(self, "model"):
            return
        stored = Direct(self.cache).widened()
        for name, seq in self.model.items():
            table, history = self.cache.block_table(name), seq.history()
            for x, expected in zip(stored, tokens(self.dtype)[2:], strict=True):
                found = x[table].swapaxes(0, 1).reshape(HEADS, -1, x.shape[3])[:, : seq.length]
                wanted = expected[:, history].astype(np.float64)
                np.testing.assert_array_equal(found.astype(np.float64), wanted)


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("owners", [2, 3, 4])
def test_the_last_owner_writes_in_place(owners: int, dtype: str) -> None:
    """Sequences that share a page in part, all growing at once, need one page less than they are.

    A page fewer is too few, and nothing is changed then.
    """
    for missing in (0, 1):
        cache = PagedKVCache(owners - missing, 4, HEADS, WIDTH, dtype=dtype, v_head_dim=V_WIDTH)
        names = [cache.add()]
        cache.append(names, *arrays_of(dtype, [[0, 1]]))
        names += [cache.fork(names[0]) for _ in range(owners - 1)]
        rows = arrays_of(dtype, [[2 + n] for n in range(owners)])
        histories = [[0, 1] for _ in names]
        if missing:
            with pytest.raises(MemoryError):
                cache.append(names, *rows)
            assert cache.free_pages == owners - 2
        else:
            cache.append(names, *rows)
            histories = [[0, 1, 2 + n] for n in range(owners)]
            assert cache.free_pages == 0
            assert len({int(cache.block_table(name)[0]) for name in names}) == owners
        q = make((44, owners), (owners, 2 * HEADS, 1, WIDTH), source_of(dtype))
        out, lse = cache.attend(names, q, return_lse=True)
        for b, history in enumerate(histories):
            one = slice(b, b + 1)
            check_attention((out[one], lse[one]), q[one], dtype, history)


TestPages = Pages.TestCase
TestPages.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
