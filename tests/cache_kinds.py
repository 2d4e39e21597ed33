"""Every kind of cache behind one face, and how a history is fed to it in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from helpers import (
    DTYPES,
    LSE_TOLERANCE,
    TOLERANCE,
    Array,
    assert_close,
    assert_same_bits,
    dtype_of,
)

import headway
from headway import KVCache, PagedKVCache

QUANTISED = ("int8", "fp8_e4m3")
STORED = (*DTYPES, *QUANTISED)

#: Kinds that keep every token; the number is the size of the pages.
KINDS = ("plain", "growing", "ring", "paged-1", "paged-4", "paged-16")


def source_of(dtype: str) -> str:
    """Return the dtype of the arrays for a cache of this dtype."""
    return "float32" if dtype in QUANTISED else dtype


class Direct:
    """A :class:`headway.KVCache` with the face of :class:`Sequences`."""

    def __init__(self, cache: KVCache) -> None:
        self.cache: Any = cache
        self.ids: list[int] | None = None

    def append(self, k: Array, v: Array, counts: Sequence[int] | None = None) -> None:
        """Append to all sequences."""
        before = () if self.ids is None else (self.ids,)
        self.cache.append(*before, k, v, **({} if counts is None else {"counts": counts}))

    def attend(self, q: Array, **options: Any) -> tuple[Array, Array]:
        """Return out and lse of queries of all sequences."""
        before = () if self.ids is None else (self.ids,)
        out, lse = self.cache.attend(*before, q, return_lse=True, **options)
        return out, lse

    @property
    def lengths(self) -> list[int]:
        """Tokens of each sequence."""
        found = self.cache.lengths if self.ids is None else self.cache.lengths(self.ids)
        return [int(n) for n in found]

    def widened(self) -> tuple[Array, Array]:
        """Return the keys and values as they are stored, numbers of 8 bits as float64."""
        cache, found = self.cache, []
        for x, scales in ((cache.keys, cache.key_scales), (cache.values, cache.value_scales)):
            if cache.dtype == "int8":
                assert x.dtype == np.int8
                assert scales.dtype == np.float32
                x = x.astype(np.float64) * scales[..., None]
            elif cache.dtype == "fp8_e4m3":
                assert x.dtype == np.uint8
                x = x.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
            found.append(x)
        return found[0], found[1]


class Sequences(Direct):
    """A batch of sequences of up to so many tokens, in a cache of any kind.

    A ring has a window as long as the sequences, and room for them once more but for one slot.
    The pages of a paged cache have been in use before, by sequences of NaN, and are handed out
    in a mixed order; so have the slots of the others.
    """

    def __init__(
        self,
        kind: str,
        tokens: int,
        sizes: tuple[int, int, int, int],  # B, Hkv, D, Dv
        dtype: str = "float32",
        *,
        used: bool = True,
    ) -> None:
        batch, heads, width, v_width = sizes
        common: dict[str, Any] = {"dtype": dtype, "v_head_dim": v_width}
        self.ids = None
        if kind.startswith("paged"):
            size = int(kind.split("-")[1])
            count = batch * -(-tokens // size) + 2
            self.cache = PagedKVCache(count, size, heads, width, **common)
            if used:
                use_pages(self.cache, source_of(dtype))
            self.ids = [self.cache.add() for _ in range(batch)]
            return
        capacity = {"plain": tokens, "growing": 1, "ring": 2 * tokens - 1}[kind]
        options = {"growing": {"grow": True}, "ring": {"window": tokens}}.get(kind, {})
        self.cache = KVCache(batch, heads, capacity, width, **common, **options)
        if used:
            bad = [
                np.full((batch, heads, 1, n), np.nan, dtype_of(source_of(dtype)))
                for n in (width, v_width)
            ]
            for _ in range(capacity):
                self.cache.append(*bad)
            self.cache.reset()

    def forget(self) -> None:
        """Empty all sequences: a reset, or new ones in the place of the old."""
        if self.ids is None:
            self.cache.reset()
            return
        for id in self.ids:
            self.cache.remove(id)
        self.ids = [self.cache.add() for _ in self.ids]

    def stored(self, b: int) -> tuple[Array, Array]:
        """Return the keys and values of one sequence, of 8 bits made wide: (Hkv, L, D), ..."""
        cache, length, found = self.cache, self.lengths[b], []
        for x in self.widened():
            if self.ids is None:
                found.append(x[b, :, :length])
                continue
            table = cache.block_table(self.ids[b])
            assert len(table) == -(-length // cache.page_size)
            pages = x[table].swapaxes(0, 1)
            found.append(pages.reshape(len(pages), -1, pages.shape[-1])[:, :length])
        return found[0], found[1]


def use_pages(cache: PagedKVCache, dtype: str) -> None:
    """Fill every page with NaN, one for each sequence, and let them go in a mixed order."""
    ids = [cache.add() for _ in range(cache.num_pages)]
    widths = cache.head_dim, cache.v_head_dim
    shape = cache.num_pages, cache.num_kv_heads, cache.page_size
    cache.append(ids, *(np.full((*shape, n), np.nan, dtype_of(dtype)) for n in widths))
    for n in np.random.default_rng(1).permutation(len(ids)):
        cache.remove(ids[n])


def splits(tokens: int) -> Iterator[list[int]]:
    """Yield every way to cut this many tokens into pieces, in order."""
    for pattern in range(2 ** (tokens - 1)):
        ends = [i + 1 for i in range(tokens - 1) if pattern >> i & 1] + [tokens]
        yield [stop - start for start, stop in zip([0, *ends[:-1]], ends, strict=True)]


Part = Callable[[slice], dict[str, Any]]


def fed(
    sequences: Any, q: Array, k: Array, v: Array, pieces: Sequence[int], part: Part | None = None
) -> tuple[Array, Array]:
    """Return out and lse of the pieces, appended and attended one after another.

    `part` gives the options of a piece; by default there are none.
    """
    outs, lses, start = [], [], 0
    for n in pieces:
        rows = slice(start, start + n)
        sequences.append(k[:, :, rows], v[:, :, rows])
        out, lse = sequences.attend(q[:, :, rows], **(part(rows) if part else {}))
        outs.append(out)
        lses.append(lse)
        start += n
    return np.concatenate(outs, axis=2), np.concatenate(lses, axis=2)


def feed_randomly(
    sequences: Direct, k: Array, v: Array, lengths: Sequence[int], most: int, seed: int
) -> None:
    """Append the first tokens of each sequence, in random pieces of up to `most` tokens.

    The pieces differ from sequence to sequence; what is left out of an array is NaN.
    """
    g, done = np.random.default_rng(seed), [0] * len(lengths)
    while done != list(lengths):
        left = [min(most, length - start) for length, start in zip(lengths, done, strict=True)]
        counts = [int(g.integers(min(n, 1), n + 1)) for n in left]
        counts = [n if n == max(counts) or g.random() < 0.7 else 0 for n in counts]
        ends = [start + n for start, n in zip(done, counts, strict=True)]
        parts = []
        for x in (k, v):
            part = np.full((*x.shape[:2], max(counts), x.shape[3]), np.nan, x.dtype)
            for b, (start, end) in enumerate(zip(done, ends, strict=True)):
                part[b, :, : end - start] = x[b, :, start:end]
            parts.append(part)
        sequences.append(parts[0], parts[1], counts)
        done = ends
    assert sequences.lengths == done


def as_stored(dtype: str, k: Array, v: Array) -> tuple[Array, Array]:
    """Return keys and values as a cache of this dtype holds them, those of 8 bits in float64."""
    if dtype not in QUANTISED:
        return k, v
    whole = Sequences("plain", max(k.shape[2], 1), (*k.shape[:2], k.shape[3], v.shape[3]), dtype)
    whole.append(k, v)
    both = [whole.stored(b) for b in range(len(k))]
    return np.stack([x[0] for x in both]), np.stack([x[1] for x in both])


def check_pieces(
    found: tuple[Array, Array],
    whole: tuple[Array, Array],
    pieces: Sequence[int],
    dtype: str,
    what: str = "",
) -> None:
    """Compare with one call, to the bit, whatever the pieces."""
    source = source_of(dtype)
    allowed = {"out": TOLERANCE[source], "lse": LSE_TOLERANCE[source]}
    for got, expected, name in zip(found, whole, allowed, strict=True):
        text = f"{name}, pieces {list(pieces)}, {what}"
        assert_same_bits(got, expected, text)
        assert_close(got, expected.astype(np.float64), allowed[name], text)


def full_call(
    q: Array, k: Array, v: Array, dtype: str = "float32", **options: Any
) -> tuple[Array, Array]:
    """Return out and lse of one call over a whole history, as a cache of this dtype holds it."""
    if dtype in QUANTISED:
        whole = Sequences("plain", k.shape[2], (*k.shape[:2], k.shape[3], v.shape[3]), dtype)
        whole.append(k, v)
        return whole.attend(q, **options)
    out, lse = headway.attention(q, k, v, return_lse=True, **options)
    return out, lse
