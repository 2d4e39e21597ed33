"""Every call that the caches refuse: the exception, its text, and that nothing has changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import Array, make

from headway import KVCache, PagedKVCache

F32 = np.float32
Cache = KVCache | PagedKVCache


def zeros(*shape: int, dtype: Any = F32) -> Array:
    return np.zeros(shape, dtype)


def plain() -> KVCache:
    """Two sequences of 3 and 5 tokens, 2 heads of 4 and 6 numbers, 8 slots."""
    cache = KVCache(2, 2, 8, 4, v_head_dim=6)
    cache.append(make(1, (2, 2, 5, 4), "float32"), make(2, (2, 2, 5, 6), "float32"), [3, 5])
    return cache


def ring() -> KVCache:
    """A window of 4 in 8 slots, each sequence of 15 tokens: 7 to 14 are stored."""
    cache = KVCache(2, 2, 8, 4, v_head_dim=6, window=4)
    for n in range(3):
        cache.append(make(n, (2, 2, 5, 4), "float32"), make(n, (2, 2, 5, 6), "float32"))
    return cache


def paged() -> PagedKVCache:
    """Ids 0 and 1 of 3 and 5 tokens in 3 of 6 pages of 4."""
    cache = PagedKVCache(6, 4, 2, 4, v_head_dim=6)
    ids = [cache.add(), cache.add()]
    cache.append(ids, make(1, (2, 2, 5, 4), "float32"), make(2, (2, 2, 5, 6), "float32"), [3, 5])
    return cache


def grow(k: Any = None, v: Any = None, **options: Any) -> Callable[[Cache], Any]:
    """Append; by default one token."""
    k = zeros(2, 2, 1, 4) if k is None else k
    v = zeros(2, 2, 1, 6) if v is None else v
    ids = options.pop("ids", [0, 1])
    return lambda cache: (
        cache.append(k, v, **options)
        if isinstance(cache, KVCache)
        else cache.append(ids, k, v, **options)
    )


def ask(q: Any = None, **options: Any) -> Callable[[Cache], Any]:
    """Attend; by default with one query of 4 heads."""
    q = zeros(2, 4, 1, 4) if q is None else q
    ids = options.pop("ids", [0, 1])
    return lambda cache: (
        cache.attend(q, **options)
        if isinstance(cache, KVCache)
        else cache.attend(ids, q, **options)
    )


Refused = tuple[Callable[..., Any], type[Exception], str]

K_SHAPE = "k: expected shape (2, 2, n, 4), "
V_SHAPE = "v: expected shape (2, 2, 1, 6), "
BOTH: list[Refused] = [
    (grow([[1.0]]), TypeError, "k: expected a NumPy array or an object with __dlpack__"),
    (grow(v=[[1.0]]), TypeError, "v: expected a NumPy array or an object with __dlpack__"),
    (grow(zeros(2, 2, 1, 4, dtype=int)), TypeError, "k: expected float32, float64, float16 or"),
    (
        grow(zeros(2, 2, 1, 4, dtype="f2")),
        TypeError,
        "k: expected float32 like the cache, got float16; convert with k.astype(np.float32)",
    ),
    (
        grow(v=zeros(2, 2, 1, 6, dtype=ml_dtypes.bfloat16)),
        TypeError,
        "v: expected float32 like the cache, got bfloat16; convert with v.astype(np.float32)",
    ),
    (grow(zeros(2, 1, 4)), ValueError, K_SHAPE + "one entry for each "),
    (grow(zeros(3, 2, 1, 4)), ValueError, K_SHAPE + "one entry for each "),
    (grow(zeros(2, 1, 2, 4)), ValueError, K_SHAPE + "2 heads of 4 numbers like the cache, got sh"),
    (grow(zeros(2, 2, 1, 6)), ValueError, K_SHAPE + "2 heads of 4 numbers like the cache, got sh"),
    (grow(v=zeros(2, 2, 1, 4)), ValueError, V_SHAPE + "2 heads of 6 numbers like the cache, got"),
    (
        grow(v=zeros(2, 2, 2, 6)),
        ValueError,
        "v: expected 1 tokens like k, got 2 in shape (2, 2, 2, 6); pass one value for each key",
    ),
    (grow(counts=[1]), ValueError, "counts: expected 2 ints from 0 to 1, the tokens that each "),
    (grow(counts=1), TypeError, "counts: expected 2 ints from 0 to 1, the tokens that each "),
    (grow(counts=[1, 2]), ValueError, "counts: expected 2 ints from 0 to 1, the tokens that each"),
    (grow(counts=[1, -1]), ValueError, "counts: expected 2 ints from 0 to 1, the tokens that eac"),
    (grow(counts=[1, 0.5]), TypeError, "counts: expected 2 ints from 0 to 1, the tokens that eac"),
    (grow(counts=[True, 1]), TypeError, "counts: expected 2 ints from 0 to 1, the tokens that ea"),
    (ask([[1.0]]), TypeError, "q: expected a NumPy array or an object with __dlpack__"),
    (
        ask(zeros(2, 4, 1, 4, dtype="f8")),
        TypeError,
        "q: expected float32 like the cache, got float64; convert with q.astype(np.float32)",
    ),
    (ask(zeros(4)), ValueError, "q: expected 2, 3 or 4 axes, up to (B, H, T, D), got shape (4,); "),
    (ask(zeros(4, 1, 4)), ValueError, "q: expected batch 2, one entry for each "),
    (ask(zeros(3, 4, 1, 4)), ValueError, "q: expected batch 2, one entry for each "),
    (
        ask(zeros(2, 4, 1, 6)),
        ValueError,
        "q: expected head_dim 4 like the cache, got 6 in shape (2, 4, 1, 6); make the last axis",
    ),
    (
        ask(zeros(2, 3, 1, 4)),
        ValueError,
        "q: expected a number of heads that the 2 heads of the cache divide, got 3 in shape",
    ),
    (ask(causal=1), TypeError, "causal: expected True or False, got 1 (int); "),
    (ask(return_lse=None), TypeError, "return_lse: expected True or False, got None"),
    (ask(layout="HBTD"), ValueError, 'layout: expected "BHTD" or "BTHD", got \'HBTD\'; '),
    (ask(align="middle"), ValueError, 'align: expected "end", "start", an int or 2 ints'),
    (ask(scale=np.inf), ValueError, "scale: expected a finite number, got inf; "),
    (ask(mask=zeros(2, 4, 1, 4) > 0), ValueError, "mask: expected a shape that broadcasts to (2, "),
    (ask(window=0), ValueError, "window: expected a number of keys, 1 or more"),
    (ask(softcap=-1), ValueError, "softcap: expected a finite number, 0 or more, got -1.0; "),
    (ask(alibi_slopes=[1.0]), ValueError, "alibi_slopes: expected shape (4,) or (2, 4)"),
    (ask(sinks=[1.0]), ValueError, "sinks: expected shape (4,), one number for each head"),
    (ask(out=zeros(2, 4, 1, 4)), ValueError, "out: expected shape (2, 4, 1, 6), got (2, 4, 1, 4);"),
    (ask(out=zeros(2, 4, 1, 6, dtype="f8")), TypeError, "out: expected float32 like q, got float"),
    (ask(out=[]), TypeError, "out: expected a NumPy array without a mask, got list; "),
]

LENGTHS = "lengths: expected 2 ints, at most the lengths [3, 5], or one int for all, got "
INDICES = "indices: expected 2 ints from 0 to 1, numbers of sequences of the cache, got "
SOME = "indices: expected ints from 0 to 1, numbers of sequences of the cache, got "
PLAIN: list[Refused] = [
    (
        grow(zeros(2, 2, 4, 4), zeros(2, 2, 4, 6)),
        ValueError,
        "k: expected tokens that fit into the capacity of 8, got 4 for a sequence of 5; "
        "make the cache with a capacity of at least 9, or with grow=True",
    ),
    (lambda c: c.truncate(4), ValueError, LENGTHS + "4 for sequence 0, where 0 to 3 are possible"),
    (lambda c: c.truncate([3]), ValueError, LENGTHS + "1 ints; pass the number of tokens to keep"),
    (lambda c: c.truncate([3, -1]), ValueError, LENGTHS + "-1 for sequence 1, where 0 to 5 are"),
    (lambda c: c.truncate(2.0), TypeError, LENGTHS + "2.0 (float); pass the number"),
    (lambda c: c.reorder([0]), ValueError, INDICES + "1 ints; pass e.g. indices=[0, 1]"),
    (lambda c: c.reorder([0, 2]), ValueError, INDICES + "2; pass e.g. indices=[0, 1]"),
    (lambda c: c.reorder([0, -1]), ValueError, INDICES + "-1; pass e.g."),
    (lambda c: c.reorder(0), TypeError, INDICES + "the int 0; pass e.g."),
    (lambda c: c.reorder("01"), TypeError, INDICES + "'01' (str); pass e.g."),
    (lambda c: c.reset(2), ValueError, SOME + "2; pass e.g. indices=[0]"),
    (lambda c: c.reset([0, -1]), ValueError, SOME + "-1; pass"),
    (lambda c: c.reset([0.0]), TypeError, SOME + "[0.0] (list); pass"),
]

RING: list[Refused] = [
    (
        grow(zeros(2, 2, 6, 4), zeros(2, 2, 6, 6)),
        ValueError,
        "k: expected at most 5 tokens at a time, capacity 8 - window 4 + 1, got 6; append and "
        "attend in pieces of 5, or make the cache with capacity=9",
    ),
    (
        ask(zeros(2, 4, 6, 4)),
        ValueError,
        "q: expected queries that see keys from 7 on, which a ring of 8 slots still has of entry "
        "0, got 6 queries that see keys from 6 on; ",
    ),
    (ask(align=[14, 9]), ValueError, "q: expected queries that see keys from 7 on"),
    (ask(align="start"), ValueError, "q: expected queries that see keys from 7 on"),
    (
        ask(window=5),
        ValueError,
        "window: expected at most the 4 keys of the cache's window, got 5 keys; ",
    ),
    (
        ask(window=(-1, 0)),
        ValueError,
        "window: expected at most the 4 keys of the cache's window, ",
    ),
    (
        lambda c: c.truncate([15, 9]),
        ValueError,
        "lengths: expected 9 tokens of sequence 1 whose last 3 are still stored, got a ring that "
        "has overwritten those before token 7; make the cache with a larger capacity",
    ),
]

IDS = "ids: expected "
PAGED: list[Refused] = [
    (
        grow(zeros(2, 2, 9, 4), zeros(2, 2, 9, 6)),
        MemoryError,
        "k: expected tokens for which the 3 free pages suffice, got some that need 4 pages of 4 ",
    ),
    (grow(ids=[0, 2]), ValueError, IDS + "those of sequences in the cache, got 2; pass a list of"),
    (grow(ids=[1, 1]), ValueError, IDS + "each sequence once, got 1 twice; append all its tokens"),
    (grow(ids=[0]), ValueError, "k: expected shape (1, 2, n, 4), one entry for each id, got shape"),
    (grow(ids=0), TypeError, IDS + "ints, got 0 (int); pass a list of ids that add or fork retur"),
    (ask(ids=[0, 7]), ValueError, IDS + "those of sequences in the cache, got 7; "),
    (ask(ids=[0.0, 1]), TypeError, IDS + "ints, got [0.0, 1] (list); "),
    (ask(ids=[0]), ValueError, "q: expected batch 1, one entry for each id, got 2 in shape"),
    (lambda c: c.lengths([5]), ValueError, IDS + "those of sequences in the cache, got 5; "),
    (lambda c: c.truncate(0, 4), ValueError, "length: expected one int from 0 to 3, got 4 for"),
    (lambda c: c.truncate(0, "1"), TypeError, "length: expected one int from 0 to 3, got '1' (s"),
    *(
        (call, error, f"id: expected {text}")
        for name in ("fork", "remove", "block_table")
        for call, error, text in (
            (
                lambda c, n=name: getattr(c, n)(2),
                ValueError,
                "that of a sequence in the cache, ",
            ),
            (
                lambda c, n=name: getattr(c, n)([0]),
                TypeError,
                "one int, got [0] (list); pass",
            ),
            (lambda c, n=name: getattr(c, n)("a"), TypeError, "one int, got 'a' (str); pass an id"),
        )
    ),
]


def state_of(cache: Cache) -> tuple[Any, ...]:
    """All that can be seen of a cache."""
    arrays = [cache.keys.tobytes(), cache.values.tobytes(), cache.nbytes]
    if isinstance(cache, KVCache):
        return (*arrays, cache.lengths.tolist(), cache.capacity)
    tables = {id: cache.block_table(id).tolist() for id in cache.ids}
    return (*arrays, cache.lengths().tolist(), tables, cache.free_pages)


@pytest.mark.parametrize(
    ("make_cache", "call", "error", "text"),
    [
        *((make, *each) for make in (plain, paged) for each in BOTH),
        *((plain, *each) for each in PLAIN),
        *((ring, *each) for each in RING),
        *((paged, *each) for each in PAGED),
    ],
)
def test_calls_that_are_refused(
    make_cache: Callable[[], Cache],
    call: Callable[[Cache], Any],
    error: type[Exception],
    text: str,
) -> None:
    cache = make_cache()
    before = state_of(cache)
    with pytest.raises(error) as caught:
        call(cache)
    assert type(caught.value) is error
    message = str(caught.value)
    assert message.startswith(text), message
    assert "; " in message
    assert state_of(cache) == before
    grow()(cache)  # it goes on
    ask()(cache)
