"""Pages of sequences that come and go: none is lost, none belongs to two that do not share it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from helpers import Array, assert_same_bits, make

import headway
from headway import KVCache, PagedKVCache, _core

KINDS = ("float32", "int8", "fp8_e4m3")


def tokens(seed: int, n: int, batch: int = 1) -> tuple[Array, Array]:
    """Keys of 8 numbers and values of 6, 2 heads."""
    k, v = (
        make((seed, 1), (batch, 2, n, 8), "float32"),
        make((seed, 2), (batch, 2, n, 6), "float32"),
    )
    return k, v


def cache_of(num_pages: int = 12, page_size: int = 4, **options: Any) -> PagedKVCache:
    return PagedKVCache(num_pages, page_size, 2, 8, v_head_dim=6, **options)


def tables(cache: PagedKVCache) -> list[list[int]]:
    return [cache.block_table(id).tolist() for id in cache.ids]


def check_pages(cache: PagedKVCache) -> None:
    """Every page is free, or has as many owners as sequences list it; no length lacks pages."""
    inner = cache._tables
    listed = [page for table in tables(cache) for page in table]
    for id, table in zip(cache.ids, tables(cache), strict=True):
        assert len(table) == len(set(table)) == -(-int(cache.lengths([id])[0]) // cache.page_size)
    assert sorted([*inner.free, *set(listed)]) == list(range(cache.num_pages))
    assert inner.owners == [listed.count(page) for page in range(cache.num_pages)]
    assert cache.free_pages == len(inner.free)


def contents(cache: PagedKVCache, id: int) -> Array:
    """The keys of a sequence, (Hkv, length, D)."""
    pages = cache.keys[cache.block_table(id)]
    return np.concatenate([*pages, np.empty((2, 0, 8), pages.dtype)], axis=1)[
        :, : int(cache.lengths([id])[0])
    ]


# Pages --------------------------------------------------------------------------------------------


def test_pages_come_and_go() -> None:
    cache = cache_of()
    a, b = cache.add(), cache.add()
    assert (a, b, cache.free_pages) == (0, 1, 12)
    cache.append([b, a], *tokens(1, 5, 2), counts=[5, 4])
    check_pages(cache)
    assert cache.lengths().tolist() == [4, 5]
    assert cache.free_pages == 9
    cache.append([a], *tokens(2, 0))
    assert cache.free_pages == 9
    cache.append([a], *tokens(2, 1))
    assert cache.free_pages == 8
    cache.remove(b)
    check_pages(cache)
    assert cache.free_pages == 10
    assert cache.add() == 2
    assert cache.ids == [0, 2]


def test_a_last_page_is_copied_by_the_first_that_writes_to_it() -> None:
    cache = cache_of()
    a = cache.add()
    k, v = tokens(3, 6)
    cache.append([a], k, v)
    b, c = cache.fork(a), cache.fork(a)
    check_pages(cache)
    assert tables(cache) == [[0, 1]] * 3
    cache.append([b], *tokens(4, 1))
    assert tables(cache) == [[0, 1], [0, 2], [0, 1]]
    cache.append([c, a], *tokens(5, 1, 2))
    check_pages(cache)
    assert tables(cache) == [[0, 1], [0, 2], [0, 3]]  # the last owner of page 1 keeps it
    for n, id in enumerate((c, a)):
        expected = np.concatenate([k[0], tokens(5, 1, 2)[0][n]], axis=1)
        assert_same_bits(contents(cache, id), expected)
    assert_same_bits(contents(cache, b), np.concatenate([k[0], tokens(4, 1)[0][0]], axis=1))


def test_full_pages_stay_shared() -> None:
    cache = cache_of()
    a = cache.add()
    cache.append([a], *tokens(6, 8))
    b = cache.fork(a)
    cache.append([a, b], *tokens(7, 3, 2))
    check_pages(cache)
    assert tables(cache) == [[0, 1, 2], [0, 1, 3]]
    cache.remove(a)
    check_pages(cache)
    assert cache.free_pages == 9
    cache.remove(b)
    assert cache.free_pages == 12


def test_a_shared_page_needs_no_copy_where_nothing_is_added() -> None:
    cache = cache_of()
    a = cache.add()
    cache.append([a], *tokens(8, 5))
    b = cache.fork(a)
    cache.append([a, b], *tokens(9, 2, 2), counts=[0, 0])
    assert tables(cache) == [[0, 1], [0, 1]]


def test_truncation_lets_pages_go() -> None:
    cache = cache_of()
    a = cache.add()
    k, v = tokens(10, 11)
    cache.append([a], k, v)
    b = cache.fork(a)
    cache.truncate(b, 6)
    check_pages(cache)
    assert tables(cache) == [[0, 1, 2], [0, 1]]
    cache.append([b], *tokens(11, 1))  # page 1 holds tokens of a behind the cut
    check_pages(cache)
    assert_same_bits(contents(cache, a), k[0])
    cache.truncate(a, 0)
    assert cache.lengths([a, b]).tolist() == [0, 7]
    check_pages(cache)


# Too few pages ------------------------------------------------------------------------------------


def test_just_enough_pages() -> None:
    """Two sequences that share a last page need one copy of it, not two."""
    cache = cache_of(4)
    a = cache.add()
    cache.append([a], *tokens(12, 6))
    b = cache.fork(a)
    cache.append([a, b], *tokens(13, 2, 2))
    assert cache.free_pages == 1
    check_pages(cache)
    cache.append([b], *tokens(13, 4))
    assert cache.free_pages == 0


@pytest.mark.parametrize("n", [1, 3, 9, 30])
def test_a_call_that_lacks_a_page_changes_nothing(n: int) -> None:
    """A copy, a new page, or many: the sequences before it in the call have not grown either."""
    cache = cache_of(5)
    a, b = cache.add(), cache.add()
    cache.append([a, b], *tokens(14, 8, 2), counts=[6, 8])
    c = cache.fork(a)
    cache.append([c], *tokens(15, 1))
    assert cache.free_pages == 0
    d = cache.fork(c)
    before = tables(cache), cache.lengths().tolist(), cache.keys.tobytes(), cache.values.tobytes()
    with pytest.raises(MemoryError, match=r"k: expected tokens for which the 0 free pages suffice"):
        cache.append([a, c, b, d], *tokens(16, n, 4))
    after = tables(cache), cache.lengths().tolist(), cache.keys.tobytes(), cache.values.tobytes()
    assert after == before
    check_pages(cache)
    cache.remove(d)
    cache.append([a, c], *tokens(16, 1, 2))
    check_pages(cache)


@pytest.mark.parametrize("failure", [MemoryError, KeyboardInterrupt])
def test_a_failure_on_the_way_loses_no_page(
    failure: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = cache_of(dtype="int8")
    a = cache.add()
    cache.append([a], *tokens(17, 6))
    b = cache.fork(a)
    before = contents(cache, a).copy()

    def fail(*_: Any, **__: Any) -> None:
        raise failure

    for owner, name in (
        (_core, "quantize"),
        (type(cache), "_fill"),
        (type(cache._pages), "copy_page"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fail)
            with pytest.raises(failure):
                cache.append([a, b], *tokens(18, 7, 2))
        check_pages(cache)
        assert cache.lengths().tolist() == [6, 6]
        assert tables(cache) == [[0, 1], [0, 1]]
    assert_same_bits(contents(cache, a), before)
    cache.append([a, b], *tokens(18, 7, 2))
    check_pages(cache)


# Attention ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("page_size", [1, 3, 4, 16, 100])
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_as_a_plain_cache(kind: str, page_size: int, isa: str, threads: int) -> None:
    """In prefill, chunks and steps, whatever the pages' size and order."""
    paged = cache_of(-(-60 // page_size) + 3, page_size, dtype=kind)
    plain = KVCache(2, 2, 40, 8, v_head_dim=6, dtype=kind)
    x, a, b = paged.add(), paged.add(), paged.add()
    paged.append([x], *tokens(19, 3))
    for step, (n, counts) in enumerate(((7, [7, 2]), (3, [3, 3]), (1, [1, 1]), (12, [0, 12]))):
        k, v = tokens(20 + step, n, 2)
        paged.append([a, b], k, v, counts=counts)
        plain.append(k, v, counts=counts)
        q = make((21, step), (2, 4, n, 8), "float32")
        out, lse = paged.attend([a, b], q, return_lse=True)
        expected, expected_lse = plain.attend(q, return_lse=True)
        assert_same_bits(out, expected, f"step {step}")
        assert_same_bits(lse, expected_lse, f"lse of step {step}")
        if step == 1:
            paged.remove(x)


def test_the_table_follows_every_change(isa: str) -> None:
    """Calls with the same ids between changes of every kind."""
    cache = cache_of(40, 2)
    a, b = cache.add(), cache.add()
    history: dict[int, list[Array]] = {a: [], b: []}
    q = make(22, (2, 4, 1, 8), "float32")
    seeds = itertools.count(100)

    def grow(id: int, n: int) -> None:
        k, v = tokens(next(seeds), n)
        cache.append([id], k, v)
        history[id].extend(np.concatenate([k, v], axis=3)[0, :, i] for i in range(n))

    def cut(id: int, n: int) -> None:
        cache.truncate(id, n)
        del history[id][n:]

    for change in (
        lambda: grow(a, 5), lambda: grow(b, 3), lambda: grow(a, 1), lambda: cut(a, 4),
        lambda: grow(b, 4), lambda: grow(a, 2), lambda: cut(b, 0), lambda: grow(b, 9),
    ):  # fmt: skip
        change()
        out = cache.attend([a, b], q)
        for n, id in enumerate((a, b)):
            kv = np.array(history[id] or np.empty((0, 2, 14)), np.float32).swapaxes(0, 1)[None]
            alone = headway.attention(q[n : n + 1], kv[..., :8], kv[..., 8:])
            np.testing.assert_allclose(out[n : n + 1], alone, rtol=2e-5, atol=2e-6)


def test_a_sequence_several_times_and_none() -> None:
    cache = cache_of()
    a = cache.add()
    cache.append([a], *tokens(23, 6))
    q = make(24, (3, 4, 2, 8), "float32")
    out = cache.attend([a, a, a], q)
    for n in range(3):
        assert_same_bits(out[n : n + 1], cache.attend([a], q[n : n + 1]))
    assert cache.attend([], q[:0]).shape == (0, 4, 2, 6)
    for n in (0, 1, 3):
        cache.append([], *tokens(25, n, 0))
    empty = cache.add()
    assert not cache.attend([empty], q[:1]).any()
    assert cache.block_table(empty).tolist() == []
