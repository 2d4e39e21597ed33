"""A ring keeps a window of a history without end: wrapped any number of times, it is right."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import numpy as np
import pytest
from cache_kinds import QUANTISED, STORED, Direct, check_pieces, fed, full_call, source_of
from helpers import Array, assert_same_bits, attend, dtype_of, make, make_qkv
from poisons import POISONS, poison

import headway
from headway import KVCache

#: (window, capacity): rings of one slot, without a slot to spare, and with room for pieces.
RINGS = [(1, 1), (1, 4), (3, 3), (3, 5), (8, 16), (33, 64)]


def pieces_of(tokens: int, sizes: list[int]) -> list[int]:
    """Cut so many tokens into pieces of these sizes, over and over."""
    pieces: list[int] = []
    for size in cycle(sizes):
        pieces.append(min(size, tokens - sum(pieces)))
        if sum(pieces) == tokens:
            return pieces
    raise AssertionError("no sizes")


def history(dtype: str, tokens: int, seed: int = 31, batch: int = 2) -> tuple[Array, Array, Array]:
    """Return q of six heads, k and v of two."""
    heads = {"batch": batch, "heads": (6, 2), "tokens": (tokens, tokens)}
    return make_qkv(seed, source_of(dtype), **heads, head_dim=9, value_dim=12)


def ring(window: int, capacity: int, dtype: str, batch: int = 2) -> Direct:
    """Return a ring for such a history."""
    return Direct(KVCache(batch, 2, capacity, 9, dtype=dtype, v_head_dim=12, window=window))


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize(("window", "capacity"), RINGS)
@pytest.mark.usefixtures("any_threads")
def test_wrapped_three_times(window: int, capacity: int, dtype: str, isa: str) -> None:
    """Token by token, in pieces as long as there is room for, and mixed, against one call."""
    most, tokens = capacity - window + 1, 3 * capacity + 2
    q, k, v = history(dtype, tokens)
    whole = full_call(q, k, v, dtype, window=window)
    for n, sizes in enumerate(([1], [most], [min(2, most), 1, most])[: 3 if most > 1 else 1]):
        headway.set_num_threads(1 + n)
        pieces = pieces_of(tokens, sizes)
        sequences = ring(window, capacity, dtype)
        found = fed(sequences, q, k, v, pieces)
        check_pieces(found, whole, pieces, dtype, f"{window} of {capacity}")
        assert sequences.lengths == [tokens, tokens]


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("wraps", [1, 3])
def test_several_spans(wraps: int, dtype: str, isa: str, some_threads: int) -> None:
    """A window longer than a span of 1,024 keys, so that it starts and ends within spans."""
    window, capacity = 1100, 1500
    tokens, pieces = wraps * capacity + 30, [1, 5, 1, 1, 24]
    q, k, v = make_qkv(32, source_of(dtype), heads=(2, 1), tokens=(tokens, tokens), head_dim=4)
    sequences, last = Direct(KVCache(1, 1, capacity, 4, dtype=dtype, window=window)), tokens - 32
    for start in range(0, last, 389):
        rows = slice(start, min(start + 389, last))
        sequences.append(k[:, :, rows], v[:, :, rows])
    found = fed(sequences, *(x[:, :, last:] for x in (q, k, v)), pieces)
    whole = full_call(q[:, :, last:], k, v, dtype, window=window)
    check_pieces(found, whole, pieces, dtype, f"{wraps} wraps")


@pytest.mark.parametrize("dtype", STORED)
def test_first_piece_longer_than_the_window(dtype: str, isa: str) -> None:
    """A prompt of 12 tokens into a window of 5 that has room for it."""
    q, k, v = history(dtype, 40)
    pieces = [12, 1, 12, 1, 1, 13 - 1, 1]
    sequences = ring(5, 16, dtype)
    whole = full_call(q, k, v, dtype, window=5)
    check_pieces(fed(sequences, q, k, v, pieces), whole, pieces, dtype)


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("before", [0, 4, 11])
def test_a_piece_too_long(dtype: str, before: int) -> None:
    """The error says how long a piece may be; nothing changes, and then it is taken in pieces."""
    q, k, v = history(dtype, 40)
    sequences = ring(5, 8, dtype)
    if before:
        fed(sequences, q, k, v, pieces_of(before, [4]))
    kept = sequences.attend(q[:, :, :1])
    for n in (5, 6, 8, 9, 20):
        with pytest.raises(ValueError, match=r"\b4\b"):
            sequences.append(k[:, :, :n], v[:, :, :n])
        assert sequences.lengths == [before, before]
        for found, expected in zip(sequences.attend(q[:, :, :1]), kept, strict=True):
            assert_same_bits(found, expected, f"{n} tokens after {before}")
    rest = slice(before, None)
    pieces = pieces_of(40 - before, [4, 1, 3])
    found = fed(sequences, *(x[:, :, rest] for x in (q, k, v)), pieces)
    out, lse = full_call(q[:, :, rest], k, v, dtype, window=5)
    check_pieces(found, (out, lse), pieces, dtype)


@pytest.mark.parametrize("dtype", STORED)
def test_what_left_the_window(dtype: str, isa: str, threads: int) -> None:
    """Tokens that a query no longer sees may be anything, stored still or overwritten."""
    q, k, v = history(dtype, 60)
    clean = [k.copy(), v.copy()]
    results = []
    for kind in (None, *POISONS):
        k, v = (x.copy() for x in clean)
        if kind is not None:
            poison(k[:, :, :43], kind)
            poison(v[:, :, :43], kind)
        sequences = ring(8, 12, dtype)
        for start in range(0, 50, 5):
            rows = slice(start, start + 5)
            sequences.append(k[:, :, rows], v[:, :, rows])
        sequences.append(k[:, :, 50:51], v[:, :, 50:51])  # it sees keys 43 to 50
        results.append(sequences.attend(q[:, :, 50:51]))
        for found, expected in zip(results[-1], results[0], strict=True):
            assert_same_bits(found, expected, str(kind))


@pytest.mark.parametrize("dtype", STORED)
def test_rings_at_their_own_pace(dtype: str, isa: str) -> None:
    """Sequences that have wrapped 0, 1, 2 and 3 times in one cache, and each of them alone."""
    q, k, v = history(dtype, 33, batch=4)
    steps = [[3, 3, 2, 0], [3, 3, 0, 0], [3, 3, 3, 1], [3, 0, 3, 1], [3, 2, 1, 0], [3] * 3 + [1]]
    steps = [*steps, [3, 1, 3, 0], [3, 3, 1, 1], [2, 3, 1, 2], [1] * 4]
    sequences = ring(6, 8, dtype, batch=4)
    alone = [ring(6, 8, dtype, batch=1) for _ in range(4)]
    ends = np.zeros(4, int)
    for step in steps:
        n, starts, ends = max(step), ends, ends + step
        parts = [np.zeros((4, 2, n, x.shape[3]), x.dtype) for x in (k, v)]
        for b, count in enumerate(step):
            for part, x in zip(parts, (k, v), strict=True):
                part[b, :, :count] = x[b, :, starts[b] : ends[b]]
            alone[b].append(*(x[b : b + 1, :, starts[b] : ends[b]] for x in (k, v)))
        sequences.append(*parts, counts=step)
        assert sequences.lengths == ends.tolist()
        together = sequences.attend(q[:, :, :1])
        for b in range(4):
            expected = alone[b].attend(q[b : b + 1, :, :1])
            for found, each in zip(together, expected, strict=True):
                assert_same_bits(found[b : b + 1], each, f"sequence {b} of {ends.tolist()}")
    assert [int(n) // 8 for n in ends] == [3, 2, 2, 0]


@pytest.mark.parametrize("dtype", STORED)
def test_storage_order(dtype: str) -> None:
    """Token j stands in slot j modulo the capacity."""
    cache = KVCache(1, 1, 5, 2, dtype=dtype, window=4)
    for j in range(13):
        x = np.full((1, 1, 1, 2), 1 + j).astype(dtype_of(source_of(dtype)))
        cache.append(x, -x)
        stored = min(j + 1, 5)
        assert cache.keys.shape == cache.values.shape == (1, 1, stored, 2)
        expected = np.zeros(stored)
        for token in range(j + 1 - stored, j + 1):
            expected[token % 5] = 1 + token
        for x, sign in zip(Direct(cache).widened(), (1, -1), strict=True):
            got = x[0, 0, :, 0].astype(np.float64)
            np.testing.assert_allclose(got, sign * expected, rtol=1e-6 if dtype == "int8" else 0)


@pytest.mark.parametrize("dtype", STORED)
def test_tokens_taken_back(dtype: str, isa: str) -> None:
    """Drafts that are not accepted: cut off, and others appended in their place."""
    q, k, v = history(dtype, 50)
    wrong = make(33, k.shape, k.dtype.name), make(34, v.shape, v.dtype.name)
    sequences = ring(6, 10, dtype)
    whole = full_call(q, k, v, dtype, window=6)
    for start in range(0, 48, 2):
        drafts = slice(start, start + 4)
        sequences.append(wrong[0][:, :, drafts], wrong[1][:, :, drafts])
        sequences.cache.truncate([start, start])
        rows = slice(start, start + 2)
        sequences.append(k[:, :, rows], v[:, :, rows])
        for found, expected in zip(sequences.attend(q[:, :, rows]), whole, strict=True):
            assert_same_bits(found, expected[:, :, rows], f"tokens {start}, {start + 1}")
    assert sequences.lengths == [48, 48]
    # The last drafts went up to token 49, so that token 40 is the oldest that is stored. Token 44
    # would see 39 to 44, token 45 sees 40 to 45.
    for length in (44, 42, 12):
        with pytest.raises(ValueError, match="lengths"):
            sequences.cache.truncate([length, 48])
        assert sequences.lengths == [48, 48]
    sequences.cache.truncate(45)
    rows = slice(45, 48)
    sequences.append(k[:, :, rows], v[:, :, rows])
    for found, expected in zip(sequences.attend(q[:, :, rows]), whole, strict=True):
        assert_same_bits(found, expected[:, :, rows], "as far back as can be")


OPTIONS: dict[str, dict[str, Any]] = {
    "alibi": {"alibi_slopes": 2.0 ** -np.arange(1, 7)},
    "sinks": {"sinks": np.linspace(-1, 2, 6, dtype=np.float32)},
    "softcap": {"softcap": 0.8, "scale": 0.5},
    "narrower": {"window": 3},
    "to-the-left": {"window": (4, -1)},
    "all": {
        **{"alibi_slopes": -np.ones(6) / 8, "sinks": np.ones(6), "softcap": 2.0, "window": 5},
        "scale": -0.25,
    },
}


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("name", OPTIONS)
def test_options(name: str, dtype: str, isa: str) -> None:
    """Every option in a ring that has wrapped three times; masks count all tokens."""
    window, tokens = 7, 34
    q, k, v = history(dtype, tokens)
    mask = np.random.default_rng(35).random((2, 6, tokens, tokens)) < 0.7
    options = {"window": window, **OPTIONS[name]}
    pieces = pieces_of(tokens, [4, 1, 1, 3])
    for masked in ({"mask": mask}, {"mask": np.where(mask, 0.5, -np.inf).astype(np.float32)}, {}):
        whole = full_call(q, k, v, dtype, **options, **masked)

        def part(rows: slice, masked: dict[str, Array] = masked) -> dict[str, Any]:
            own = {n: x[:, :, rows, : rows.stop] for n, x in masked.items()}
            return OPTIONS[name] | own

        found = fed(ring(window, 10, dtype), q, k, v, pieces, part)
        check_pieces(found, whole, pieces, dtype, name)


@pytest.mark.parametrize("dtype", STORED)
def test_a_later_query(dtype: str) -> None:
    """A query beyond the last token sees fewer keys, one that would see lost ones is refused."""
    q, k, v = history(dtype, 30)
    sequences = ring(6, 8, dtype)
    fed(sequences, q, k, v, pieces_of(30, [3]))
    if dtype not in QUANTISED:
        for place in (29, 31, 33, 40):
            found = sequences.attend(q[:, :, :1], align=place)
            expected = attend(q[:, :, :1], k, v, align=place, window=6)
            for got, wanted in zip(found, expected, strict=True):
                assert_same_bits(got, wanted, f"a query at {place}")
    with pytest.raises(ValueError, match="q"):
        sequences.attend(q[:, :, :4])  # the first one sees key 21, and 22 is the oldest
    with pytest.raises(ValueError, match="q"):
        sequences.attend(q[:, :, :1], align=26)
    with pytest.raises(ValueError, match="window"):
        sequences.attend(q[:, :, :1], window=7)
