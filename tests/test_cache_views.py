"""What the caches show, what they copy, and what reorder, truncate, reset and growth leave."""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import numpy as np
import pytest
from helpers import Array, LendsByDLPack, assert_same_bits, attend, make
from layouts import LAYOUTS

import headway
from headway import KVCache, PagedKVCache

KINDS = ("float32", "int8", "fp8_e4m3")


def tokens(seed: int, n: int, batch: int = 4) -> tuple[Array, Array]:
    """Keys of 8 numbers and values of 6, 2 heads."""
    k, v = (
        make((seed, 1), (batch, 2, n, 8), "float32"),
        make((seed, 2), (batch, 2, n, 6), "float32"),
    )
    return k, v


def cache_of(batch: int = 4, capacity: int = 16, **options: Any) -> KVCache:
    return KVCache(batch, 2, capacity, 8, v_head_dim=6, **options)


# What is shown ------------------------------------------------------------------------------------


def test_views_of_what_is_stored() -> None:
    cache = cache_of()
    assert cache.keys.shape == (4, 2, 0, 8)
    k, v = tokens(1, 5)
    cache.append(k, v)
    assert_same_bits(cache.keys, k)
    assert_same_bits(cache.values, v)
    for view in (cache.keys, cache.values):
        assert not view.flags.writeable
        assert not view.flags.owndata
        with pytest.raises(ValueError, match="read-only"):
            view[...] = 0
    assert np.shares_memory(cache.keys, cache.keys)
    assert cache.key_scales is None


def test_views_of_scales() -> None:
    cache = cache_of(dtype="int8")
    k, v = tokens(3, 5)
    cache.append(k, v)
    for x, numbers, scales in (
        (k, cache.keys, cache.key_scales),
        (v, cache.values, cache.value_scales),
    ):
        assert scales is not None
        assert scales.shape == x.shape[:3]
        assert not scales.flags.writeable
        np.testing.assert_allclose(numbers * scales[..., None], x, atol=0.02)


def test_lengths_are_a_copy() -> None:
    cache = cache_of()
    cache.append(*tokens(4, 5), counts=np.array([5, 0, 2, 1]))
    assert cache.lengths.tolist() == [5, 0, 2, 1]
    assert cache.lengths.dtype == np.int64
    cache.lengths[0] = 9
    assert cache.lengths.tolist() == [5, 0, 2, 1]


# What is copied -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_appended_may_be_changed(kind: str) -> None:
    cache, other = cache_of(dtype=kind), cache_of(dtype=kind)
    k, v = tokens(5, 5)
    for each in (cache, other):
        each.append(k.copy(), v.copy())
    mine = [x.copy() for x in (k, v)]
    other.reset()
    other.append(*mine)
    for x in mine:
        x[...] = np.nan
    assert_same_bits(other.keys, cache.keys)
    assert_same_bits(other.values, cache.values)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_any_strides(name: str, kind: str) -> None:
    k, v = tokens(6, 5)
    q = make(7, (4, 4, 5, 8), "float32")
    plain, cache = cache_of(dtype=kind), cache_of(dtype=kind)
    laid = [LAYOUTS[name](x) for x in (q, k, v)]
    q, k, v = (np.array(x) for x in laid)
    plain.append(k, v)
    cache.append(*laid[1:])
    assert_same_bits(cache.keys, plain.keys)
    assert_same_bits(cache.values, plain.values)
    assert_same_bits(cache.attend(laid[0]), plain.attend(q))


def test_arrays_of_other_libraries() -> None:
    k, v = tokens(8, 5)
    q = make(9, (4, 4, 5, 8), "float32")
    cache = cache_of()
    cache.append(LendsByDLPack(k), LendsByDLPack(v))
    assert_same_bits(cache.attend(LendsByDLPack(q)), headway.attention(q, k, v))


def test_a_cache_of_its_own_keys() -> None:
    cache = cache_of(grow=True)
    k, v = tokens(10, 7)
    cache.append(k, v)
    for _ in range(2):
        cache.append(cache.keys, cache.values)
    assert_same_bits(cache.keys, np.concatenate([k] * 4, axis=2))


def test_axes_that_one_sequence_leaves_out(isa: str) -> None:
    k, v = tokens(11, 5, 1)
    q = make(12, (1, 4, 5, 8), "float32")
    cache = cache_of(1)
    cache.append(k[0], v[0])
    out, lse = cache.attend(q[0], return_lse=True)
    expected, expected_lse = attend(q[0], k[0], v[0])
    assert_same_bits(out, expected)
    assert_same_bits(lse, expected_lse)
    one = KVCache(1, 1, 16, 8, v_head_dim=6)
    one.append(k[0, 0], v[0, 0])
    assert_same_bits(one.attend(q[0, 0]), headway.attention(q[0, 0], k[0, 0], v[0, 0]))
    assert_same_bits(
        cache.attend(q[0].swapaxes(0, 1), layout="BTHD"), np.ascontiguousarray(out.swapaxes(0, 1))
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))]
)
def test_copies_go_their_own_way(duplicate: Any, kind: str) -> None:
    q = make(13, (4, 4, 1, 8), "float32")
    paged = PagedKVCache(12, 4, 2, 8, v_head_dim=6, dtype=kind)
    ids = [paged.add() for _ in range(4)]
    for cache, start in ((cache_of(dtype=kind), ()), (paged, (ids,))):
        cache.append(*start, *tokens(14, 5))
        before = cache.attend(*start, q)
        other = duplicate(cache)
        assert type(other) is type(cache)
        assert not np.shares_memory(other.keys, cache.keys)
        assert other.nbytes == cache.nbytes
        assert_same_bits(other.attend(*start, q), before)
        for each, seed in ((other, 15), (cache, 16)):
            each.append(*start, *tokens(seed, 2))
        other.append(*start, *tokens(17, 1))
        cache.truncate(5) if isinstance(cache, KVCache) else [cache.truncate(i, 5) for i in ids]
        assert_same_bits(cache.attend(*start, q), before)


# Changes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["float32", "int8"])
def test_every_reordering(kind: str) -> None:
    """All 256 ways to fill four places: circles, copies of copies, places that stay."""
    k, v = tokens(18, 5)
    filled = cache_of(4, 8, dtype=kind)
    filled.append(k, v, counts=[5, 2, 0, 3])
    keys = filled.keys.copy()
    scales = None if filled.key_scales is None else filled.key_scales.copy()
    lengths = filled.lengths
    for indices in itertools.product(range(4), repeat=4):
        cache = copy.copy(filled)
        cache.reorder(np.array(indices))
        assert cache.lengths.tolist() == lengths[list(indices)].tolist()
        for b, source in enumerate(indices):
            n = lengths[source]
            assert_same_bits(cache.keys[b, :, :n], keys[source, :, :n], f"{indices}: {b}")
            if scales is not None and cache.key_scales is not None:
                assert_same_bits(cache.key_scales[b, :, :n], scales[source, :, :n])


@pytest.mark.parametrize("kind", KINDS)
def test_truncated_and_filled_again(kind: str, isa: str) -> None:
    q = make(24, (4, 4, 3, 8), "float32")
    cache, fresh = cache_of(dtype=kind), cache_of(dtype=kind)
    first, again = tokens(25, 6), tokens(26, 3)
    cache.append(*first)
    cache.append(*tokens(27, 5))
    cache.truncate([6, 5, 0, 6])
    cache.append(*again)
    fresh.append(*first, counts=[6, 5, 0, 6])
    fresh.append(*again)
    assert cache.lengths.tolist() == [9, 8, 3, 9]
    assert_same_bits(cache.attend(q), fresh.attend(q))


def test_reset_of_some() -> None:
    cache, ring = cache_of(), cache_of(4, 6, window=4)
    for each in (cache, ring):
        for n in range(3):
            each.append(*tokens(n, 3))
        each.reset([2, 0])
        assert each.lengths.tolist() == [0, 9, 0, 9]
        each.append(*tokens(33, 2))
        out = each.attend(make(34, (4, 4, 2, 8), "float32"))
        fresh = cache_of(window=each.window)
        fresh.append(*tokens(33, 2))
        assert_same_bits(out[0], fresh.attend(make(34, (4, 4, 2, 8), "float32"))[0])
        each.reset()
        assert not each.lengths.any()
        assert each.keys.shape[2] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_growth_doubles(kind: str) -> None:
    cache, large = cache_of(4, 3, grow=True, dtype=kind), cache_of(4, 48, dtype=kind)
    capacities = []
    for n, counts in ((3, None), (1, [0, 1, 0, 1]), (20, None), (0, None), (1, None)):
        for each in (cache, large):
            each.append(*tokens(n, n), counts=counts)
        capacities.append(cache.capacity)
    assert capacities == [3, 6, 24, 24, 48]
    assert cache.nbytes == large.nbytes
    q = make(35, (4, 4, 2, 8), "float32")
    assert_same_bits(cache.attend(q), large.attend(q))
