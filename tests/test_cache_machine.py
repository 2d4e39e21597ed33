"""A cache of several sequences under any order of calls, beside a model in plain Python."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from cache_kinds import STORED, Direct, source_of
from cache_model import HEADS, TOKENS, V_WIDTH, WIDTH, arrays_of, check_attention, tokens
from helpers import Array, assert_same_bits, dtype_of, make
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headway import KVCache


class Calls(RuleBasedStateMachine):
    """append, counts, truncate, reorder, reset, attend and copies, of any kind of cache."""

    @initialize(
        batch=st.integers(1, 4),
        capacity=st.integers(1, 10),
        dtype=st.sampled_from(STORED),
        kind=st.sampled_from(["plain", "growing", "ring"]),
        window=st.integers(1, 10),
    )
    def begin(self, batch: int, capacity: int, dtype: str, kind: str, window: int) -> None:
        self.dtype, self.kind, self.batch = dtype, kind, batch
        self.window = min(window, capacity) if kind == "ring" else None
        options = {"window": self.window, "grow": kind == "growing", "v_head_dim": V_WIDTH}
        self.cache = KVCache(batch, HEADS, capacity, WIDTH, dtype=dtype, **options)
        self.capacity = capacity
        self.model: list[list[int]] = [[] for _ in range(batch)]
        self.oldest = [0] * batch  # the first token of each that a ring still has
        self.next = 0  # the number of the next token

    def room(self) -> int:
        """Return how many tokens a piece may have, or a sequence of a plain cache."""
        return self.capacity if self.window is None else self.capacity - self.window + 1

    def new_tokens(self, count: int) -> list[int]:
        """Return so many tokens, each another one, from the first on again after the last."""
        self.next += count
        return [n % TOKENS for n in range(self.next - count, self.next)]

    @rule(data=st.data())
    def append_counts(self, data: st.DataObject) -> None:
        """Different numbers of tokens."""
        counts = [data.draw(st.integers(0, self.room() + 1)) for _ in self.model]
        self.append([self.new_tokens(n) for n in counts], counts)

    @rule(count=st.integers(0, 4))
    def append_alike(self, count: int) -> None:
        """As many tokens to all."""
        self.append([self.new_tokens(count) for _ in self.model], None)

    def append(self, rows: list[list[int]], counts: list[int] | None) -> None:
        """Append to the cache, and in the model if they fit."""
        k, v = arrays_of(self.dtype, rows)
        if self.window is None:
            fits = max(len(a) + len(b) for a, b in zip(self.model, rows, strict=True))
            fits = fits <= self.capacity or self.kind == "growing"
        else:
            fits = max(map(len, rows)) <= self.room()
        if not fits:
            with pytest.raises(ValueError, match=r"k: .*capacity"):
                self.cache.append(k, v, counts)
            return
        before = k.copy(), v.copy()
        self.cache.append(k, v, counts)
        assert_same_bits(k, before[0], "k is left alone")
        assert_same_bits(v, before[1], "v is left alone")
        k[...] = v[...] = np.nan  # the cache has a copy
        for history, row in zip(self.model, rows, strict=True):
            history.extend(row)
        longest = max(map(len, self.model))
        while self.kind == "growing" and self.capacity < longest:
            self.capacity *= 2
        if self.window is not None:
            ends = [len(history) for history in self.model]
            self.oldest = [
                max(o, end - self.capacity) for o, end in zip(self.oldest, ends, strict=True)
            ]

    @rule(data=st.data(), one=st.booleans())
    def truncate(self, data: st.DataObject, one: bool) -> None:
        """To any lengths; a ring refuses where the next token would see one it has lost."""
        if one:
            n = max(min(map(len, self.model)) - data.draw(st.integers(0, 4)), 0)
            kept, given = [n] * self.batch, n
        else:
            cut = [data.draw(st.integers(0, 4)) for _ in self.model]
            kept = [max(len(history) - n, 0) for history, n in zip(self.model, cut, strict=True)]
            given = kept
        if self.window is not None:
            for n, oldest in zip(kept, self.oldest, strict=True):
                if any(j < oldest for j in range(max(n - self.window + 1, 0), n)):
                    with pytest.raises(ValueError, match="lengths"):
                        self.cache.truncate(given)
                    return
        self.cache.truncate(given)
        self.model = [history[:n] for history, n in zip(self.model, kept, strict=True)]
        self.oldest = [min(o, n) for o, n in zip(self.oldest, kept, strict=True)]

    @rule(data=st.data())
    def reorder(self, data: st.DataObject) -> None:
        place = st.integers(0, self.batch - 1)
        sources = data.draw(st.lists(place, min_size=self.batch, max_size=self.batch))
        self.cache.reorder(sources)
        self.model = [list(self.model[source]) for source in sources]
        self.oldest = [self.oldest[source] for source in sources]

    @rule(data=st.data())
    def reset(self, data: st.DataObject) -> None:
        place = st.integers(0, self.batch - 1)
        gone = data.draw(st.none() | st.lists(place, min_size=1, unique=True))
        self.cache.reset(*([] if gone is None else [gone]))
        for b in range(self.batch) if gone is None else gone:
            self.model[b], self.oldest[b] = [], 0

    @rule(rows=st.integers(1, 3), seed=st.integers(0, 99))
    def attend(self, rows: int, seed: int) -> None:
        q = make((43, seed), (self.batch, 2 * HEADS, rows, WIDTH), source_of(self.dtype))
        if self.window is not None:
            for history, oldest in zip(self.model, self.oldest, strict=True):
                if max(len(history) - rows - self.window + 1, 0) < oldest:
                    with pytest.raises(ValueError, match="q: "):
                        self.cache.attend(q)
                    return
        out, lse = self.cache.attend(q, return_lse=True)
        for b, history in enumerate(self.model):
            one = slice(b, b + 1)
            if self.window is None:
                check_attention((out[one], lse[one]), q[one], self.dtype, history)
            else:
                self.check_window((out[one], lse[one]), q[one], history)

    def check_window(self, found: tuple[Array, Array], q: Array, history: list[int]) -> None:
        """Compare with a new cache that has the whole history, asked for the window."""
        options = {"dtype": self.dtype, "v_head_dim": V_WIDTH}
        whole = Direct(KVCache(1, HEADS, len(history) + 1, WIDTH, **options))
        whole.append(*arrays_of(self.dtype, [history]))
        for got, expected in zip(found, whole.attend(q, window=self.window), strict=True):
            assert_same_bits(got, expected, f"window {self.window}, tokens {history}")

    @rule(how=st.sampled_from(["copy", "deepcopy", "pickle"]))
    def go_on_with_a_copy(self, how: str) -> None:
        """A copy goes on where the cache is; what happens to the old one does not matter."""
        old = self.cache
        if how == "pickle":
            self.cache = pickle.loads(pickle.dumps(old))
        else:
            self.cache = copy.copy(old) if how == "copy" else copy.deepcopy(old)
        old.reset()
        k, v = arrays_of(self.dtype, [[TOKENS - 1] * self.room()] * self.batch)
        old.append(k, v)  # NaN

    @rule(data=st.data())
    def wrong(self, data: st.DataObject) -> None:
        """Calls that are refused; what they leave behind is looked at as after any other."""
        cache, b = self.cache, self.batch
        k, v = arrays_of(self.dtype, [[1]] * b)
        other = dtype_of("float64" if self.dtype != "float64" else "float32")
        calls: list[tuple[Any, ...]] = [
            (k[:, :1], v),
            (k, v[..., 1:]),
            (k[..., 1:], v),
            (np.concatenate([k, k]), np.concatenate([v, v])),
            (k, np.concatenate([v, v], axis=2)),
            (k, v, [2] * b),
            (k, v, [-1] * b),
            (k, v, [1] * (b + 1)),
            (k.astype(other), v.astype(other)),
            (k, v.astype(other)),
        ]
        with pytest.raises((ValueError, TypeError)):
            cache.append(*data.draw(st.sampled_from(calls)))
        lengths = cache.lengths
        lengths[0] += 1
        for longer in (lengths, lengths.tolist(), [-1] * b, [0] * (b + 1), -1):
            with pytest.raises(ValueError, match="lengths"):
                cache.truncate(longer)
        for indices in ([b] * b, [-1] * b, [0] * (b + 1)):
            with pytest.raises(ValueError, match="indices"):
                cache.reorder(indices)
        with pytest.raises(ValueError, match="indices"):
            cache.reset([b])

    @invariant()
    def all_is_as_in_the_model(self) -> None:
        if not hasattr(self, "model"):
            return
        cache, slots = self.cache, self.capacity
        lengths = [len(history) for history in self.model]
        assert cache.lengths.tolist() == lengths
        assert cache.capacity == slots
        longest = min(max(lengths), slots)
        for x in (cache.keys, cache.values):
            assert x.shape[:3] == (self.batch, HEADS, longest)
            assert not x.flags.writeable
        for x, expected in zip(Direct(cache).widened(), tokens(self.dtype)[2:], strict=True):
            for b, history in enumerate(self.model):
                for j in range(self.oldest[b], len(history)):
                    found, wanted = x[b, :, j % slots], expected[:, history[j]]
                    np.testing.assert_array_equal(found.astype(float), wanted.astype(float))


TestCalls = Calls.TestCase
TestCalls.settings = settings(max_examples=100, stateful_step_count=25, deadline=None)
