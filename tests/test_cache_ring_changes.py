"""Ring caches between the pieces: what is stored, taken back, moved, and what is gone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import Array, assert_same_bits, make

import headway
from headway import KVCache


def tokens(seed: int, n: int, batch: int = 2) -> tuple[Array, Array]:
    """Keys of 8 numbers and values of 6, 2 heads."""
    k, v = (
        make((seed, 1), (batch, 2, n, 8), "float32"),
        make((seed, 2), (batch, 2, n, 6), "float32"),
    )
    return k, v


def cache_of(batch: int = 2, capacity: int = 6, **options: Any) -> KVCache:
    return KVCache(batch, 2, capacity, 8, v_head_dim=6, **options)


def test_views_of_a_ring_are_in_the_order_of_its_slots() -> None:
    ring = cache_of(1, 6, window=3)
    k, v = tokens(2, 15, 1)
    for start in range(0, 15, 3):
        ring.append(k[:, :, start : start + 3], v[:, :, start : start + 3])
    order = [12, 13, 14, 9, 10, 11]  # of the tokens in slots 0 to 5
    assert_same_bits(ring.keys, k[:, :, order])
    assert_same_bits(ring.values, v[:, :, order])


def test_reordered_rings() -> None:
    q = make(19, (2, 4, 1, 8), "float32")
    ring = cache_of(2, 6, window=4)
    ring.append(*tokens(20, 3, 2))
    ring.append(*tokens(21, 3, 2))
    ring.append(*tokens(22, 3, 2), counts=[1, 3])
    before = ring.attend(q)
    ring.reorder([1, 0])
    assert ring.lengths.tolist() == [9, 7]
    assert_same_bits(ring.attend(q[::-1]), before[::-1].copy())
    ring.append(*tokens(23, 1, 2))  # position 9 of one, 7 of the other
    assert ring.attend(q).shape == (2, 4, 1, 6)


def test_a_truncated_ring(isa: str) -> None:
    """capacity = window + n - 1 takes back n tokens, and goes on as if they had not come."""
    k, v = tokens(28, 40, 1)
    q = make(29, (1, 4, 40, 8), "float32")
    ring = cache_of(1, 8, window=5)
    expected = headway.attention(q, k, v, window=5)
    drafts = tokens(30, 40, 1)
    for start in range(0, 36, 2):
        ring.append(*(x[:, :, start : start + 4] for x in drafts))
        ring.truncate(start)
        piece = slice(start, start + 2)
        ring.append(k[:, :, piece], v[:, :, piece])
        assert_same_bits(ring.attend(q[:, :, piece]), expected[:, :, piece].copy(), f"{start}")
    with pytest.raises(ValueError, match="has overwritten those before token"):
        ring.truncate(30)
    assert ring.lengths.tolist() == [36]


def test_a_ring_sees_no_token_that_is_gone() -> None:
    """After a truncation the last token's own query may see one that is overwritten."""
    ring = cache_of(1, 4, window=4)
    for n in range(9):
        ring.append(*tokens(n, 1, 1))
    ring.truncate(8)
    with pytest.raises(ValueError, match="queries that see keys from 5 on, which a ring of 4"):
        ring.attend(make(31, (1, 4, 1, 8), "float32"))
    ring.append(*tokens(32, 1, 1))
    ring.attend(make(31, (1, 4, 1, 8), "float32"))


def test_a_sequence_that_begins_again(isa: str) -> None:
    """What was overwritten before does not matter to it: emptied, or in the place of another."""
    q = make(36, (2, 4, 3, 8), "float32")
    fresh = cache_of()
    fresh.append(*tokens(37, 3))
    expected = fresh.attend(q, window=4)

    def long() -> KVCache:
        ring = cache_of(window=4)
        for n in range(4):
            ring.append(*tokens(n, 3))
        return ring

    emptied, reset = long(), long()
    emptied.truncate(0)
    reset.reset()
    for ring in (emptied, reset):
        ring.append(*tokens(37, 3))
        assert_same_bits(ring.attend(q), expected)
    moved = long()
    moved.reset(1)
    moved.append(*tokens(37, 3), counts=[0, 3])
    moved.reorder([1, 1])
    found = moved.attend(np.repeat(q[1:], 2, axis=0))
    assert_same_bits(found, np.repeat(expected[1:], 2, axis=0))


@pytest.mark.parametrize("kind", ["float32", "int8", "fp8_e4m3"])
@pytest.mark.parametrize("options", [{"capacity": 20}, {"capacity": 5, "window": 4}])
def test_steps_of_sequences_of_different_lengths(
    options: dict[str, Any], kind: str, isa: str
) -> None:
    """Token by token, each sequence as if it were alone."""
    together = cache_of(3, dtype=kind, **options)
    alone = [cache_of(1, dtype=kind, **options) for _ in range(3)]
    for step in range(12):
        k, v = tokens(40 + step, 1, 3)
        counts = [1, step % 2, step % 3 % 2] if step < 6 else None
        together.append(k, v, counts)
        q = make((38, step), (3, 4, 1, 8), "float32")
        out = together.attend(q)
        for b, cache in enumerate(alone):
            if counts is None or counts[b]:
                cache.append(k[b : b + 1], v[b : b + 1])
            assert_same_bits(out[b : b + 1], cache.attend(q[b : b + 1]), f"step {step}, {b}")
    assert together.lengths.tolist() == [12, 9, 8]


def test_a_ring_takes_its_own_tokens() -> None:
    """Views of the slots that the new tokens overwrite."""
    cache = headway.KVCache(1, 1, 4, 1, window=1)
    for numbers in ([[0], [1], [2]], [[10]], [[20]]):
        piece = np.array(numbers, np.float32)[None, None]
        cache.append(piece, piece)
    held = cache.keys.copy()  # tokens 4, 1, 2, 3 in slots 0 to 3
    cache.append(cache.keys, cache.values)
    assert sorted(cache.keys.ravel()) == sorted(held.ravel())
    assert np.roll(cache.keys[0, 0, :, 0], -1).tolist() == held.ravel().tolist()


def test_an_interrupted_append_leaves_no_token_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache = headway.KVCache(1, 1, 8, 1, window=4)
    tokens = np.arange(8, dtype=np.float32).reshape(1, 1, 8, 1)
    cache.append(tokens[:, :, :5], tokens[:, :, :5])
    cache.append(tokens[:, :, 5:], tokens[:, :, 5:])
    write = cache._write

    def interrupted(*args: Any) -> None:
        write(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(cache, "_write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cache.append(tokens[:, :, :5] + 99, tokens[:, :, :5] + 99)
    assert cache.lengths.tolist() == [8]
    with pytest.raises(ValueError, match="a ring of 8 slots still has"):
        cache.attend(tokens[:, :, :3])
