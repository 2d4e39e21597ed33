"""The everyday call of a cache: arguments that no cache hands over, who owns what, and threads."""

from __future__ import annotations

import gc
import os
import sys
import weakref
from typing import Any

import numpy as np
import pytest
from cache_kinds import STORED
from helpers import assert_same_bits, in_threads, make
from interruption import assert_interruptible
from module_helpers import build
from test_plain_call_cache import acts_for, checked, core, filled, queries

import headway
from headway import KVCache, MultiHeadAttention, _core

NO_ACTS = (None,) * 5


def call(cache: KVCache, q: Any, **others: Any) -> Any:
    """What the bindings make of a call with other parts, table or lengths than the cache's."""
    found = {"parts": cache._pages.parts, "table": cache._table, "lengths": cache._lengths}
    parts, table, lengths = (others.get(name, value) for name, value in found.items())
    return _core.attend_plain(q, parts, table, lengths, True, False, *NO_ACTS)


@pytest.mark.parametrize("dtype", STORED)
def test_parts_that_do_not_go_together(dtype: str) -> None:
    """None, or an exception: nothing is read that is not there."""
    cache = filled(dtype, [9, 4], width=1, v_head_dim=1)  # of one number all strides fit
    q, (name, keys, values, *scales) = queries(cache, 3), cache._pages.parts
    assert call(cache, q) is not None
    wide = np.zeros(keys.shape, complex)
    one = np.broadcast_to(np.zeros((), np.int16), keys.shape)
    for x in (None, keys.tolist(), wide, one, one.astype(">f4"), keys[:1], keys[:, :1]):
        assert call(cache, q, parts=(name, x, values, *scales)) is None
        assert call(cache, q, parts=(name, keys, x, *scales)) is None
    for x in (keys[:, :, :4], keys[0], keys[None], keys[:0], np.ma.masked_array(keys)):
        assert call(cache, q, parts=(name, x, values, *scales)) is None
        assert call(cache, q, parts=(name, keys, x, *scales)) is None
    for other in STORED:
        if (other in ("int8", "fp8_e4m3")) != (dtype in ("int8", "fp8_e4m3")):
            assert call(cache, q, parts=(other, keys, values, *scales)) is None
    if dtype == "int8":
        odd = np.zeros(scales[0].nbytes + 1, np.uint8)[1:].view(np.float32).reshape(2, 2, 12)
        double, short = scales[0].astype(float), scales[0][:, :, :4]
        for x in (None, odd, double, short, scales[0][0], scales[0].tolist(), scales[0][:1]):
            assert call(cache, q, parts=(name, keys, values, x, scales[1])) is None
            assert call(cache, q, parts=(name, keys, values, scales[0], x)) is None
    for parts in ((), (name,), (name, keys, values), (name, keys, values, *scales, None)):
        assert call(cache, q, parts=parts) is None
    for wrong in ("int4", "", None, 3, b"\xff"):
        with pytest.raises((RuntimeError, TypeError, ValueError)):
            call(cache, q, parts=(wrong, keys, values, *scales))
    for instead in (None, [name, keys, values, *scales], cache):
        with pytest.raises(TypeError):
            call(cache, q, parts=instead)


def test_another_name_for_the_same_numbers() -> None:
    """16 bits are not taken for other 16 bits, nor 32 for 64."""
    for dtype, other in (("float16", "bfloat16"), ("bfloat16", "float16"), ("float64", "float32")):
        cache = filled(dtype, [9], width=1, v_head_dim=1)
        assert call(cache, queries(cache, 3), parts=(other, *cache._pages.parts[1:])) is None


def test_tables_and_lengths_that_no_cache_has() -> None:
    cache = filled("float32", [9, 4])
    q = queries(cache, 3)
    for table in ([[0], [2]], [[-1], [0]], [[2**62], [0]], [0, 1], [[0]], [[0], [1], [1]], 0):
        assert call(cache, q, table=np.array(table)) is None
    assert call(cache, q, table=np.zeros((2, 0), np.int64)) is None
    for table in (None, [["a"], ["b"]], np.zeros((2, 1))):
        with pytest.raises(TypeError):
            call(cache, q, table=table)
    full = cache.capacity
    wrong: list[Any] = [None, (9, 4), np.array([9, 4]), [9], [9, 4, 4], [9, -1], [9, True]]
    wrong += [[9.0, 4], [9, None], [0, 0], [], [2**62, 0], [2**100, 0], [full + 1, 0], [0, 2**61]]
    for lengths in wrong:
        assert call(cache, q, lengths=lengths) is None, lengths
    assert call(cache, q, lengths=[full, 0]) is not None
    pages = np.array([[0, 1], [1, 0]])  # what several pages hold
    lengths = [full + 1, 2 * full]
    k, v = (np.stack([np.hstack(list(x[row])) for row in pages]) for x in cache._pages.arrays)
    whole = headway.attention(q, k, v, kv_lengths=lengths, align=[n - 3 for n in lengths])
    assert_same_bits(call(cache, q, table=pages, lengths=lengths), whole)
    assert call(cache, q, table=pages, lengths=[9, 2 * full + 1]) is None


def test_rings_are_left_to_the_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = filled("float32", [7, 4], window=3)
    q = queries(ring, 2)
    expected = checked(ring, q)
    monkeypatch.delattr(_core, "attend_plain")
    assert_same_bits(ring.attend(q), expected)


def test_result_that_does_not_fit_in_memory() -> None:
    """Few bytes of queries and of values, a result of more elements than can be counted."""
    cache = filled("float32", [2], 1, 1, v_head_dim=2**12)
    q = np.broadcast_to(np.float32(0), (1, 1, 2**40, 1))
    assert call(cache, q) is None
    with pytest.raises(MemoryError, match=r"^result: expected a size that fits in memory"):
        cache.attend(q)


def test_references_are_given_back() -> None:
    """Calls that are taken, left to the checks, refused and interrupted keep no argument."""
    cache = filled("int8", [9, 4])
    q = queries(cache, 3)
    acts = acts_for(cache, q)["all"]
    wrong: dict[str, Any] = acts | {"mask": np.ones((2, 4, 3, 8), bool), "alibi_slopes": [1.0] * 4}
    held: list[Any] = [q, q.dtype, cache._lengths, cache._table, *acts.values(), *wrong.values()]
    held += [cache._pages, cache._pages.parts, *cache._pages.parts[1:], cache._pages.keys.dtype]
    held += [*cache._pages.arrays, acts["mask"].dtype, np.dtype(bool), np.dtype(np.float64)]
    gc.collect()  # what earlier tests left
    before = [sys.getrefcount(x) for x in held]
    for _ in range(300):
        assert core(cache, q, **acts) is not None
        assert core(cache, q, **wrong) is None
        assert core(cache, q[0]) is None
        with pytest.raises(ValueError, match="mask"):
            cache.attend(q, **wrong)
        with pytest.raises(ValueError, match="kind"):
            call(cache, q, parts=("int4", *cache._pages.parts[1:]))
        cache.attend(q, **acts)
    gc.collect()
    grown = [after - n for after, n in zip(map(sys.getrefcount, held), before, strict=True)]
    # The dtypes are everybody's: what else lets them go does not count.
    least = [-(2**20) if isinstance(x, np.dtype) else -100 for x in held]
    assert all(low < n < 100 for low, n in zip(least, grown, strict=True)), grown


def test_results_and_caches_live_apart() -> None:
    """A result keeps no cache alive, and stays what it is when the cache grows and goes."""
    for tokens in (3, 300):  # small, and large enough to begin with a cache line
        cache = filled("float32", [40, 7], grow=True)
        out = cache.attend(queries(cache, tokens))
        expected = out.copy()
        pages = weakref.ref(cache._pages), weakref.ref(cache._pages.keys)
        cache.append(*(make(9, (2, 2, 50, n), "float32") for n in (16, 5)))
        assert_same_bits(out, expected)
        gc.collect()
        assert [ref() for ref in pages] == [None, None]
        last = weakref.ref(cache._pages.keys)
        out = cache.attend(queries(cache, tokens))
        expected = out.copy()
        del cache
        gc.collect()
        assert last() is None
        assert_same_bits(out, expected)


@pytest.mark.usefixtures("any_threads")
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_threads_that_read_one_cache(dtype: str) -> None:
    headway.set_num_threads(2)
    cache = filled(dtype, [300, 0, 170])
    asked = [queries(cache, n) for n in (1, 5, 40, 64)]
    expected = [checked(cache, q, softcap=2.0) for q in asked]

    def read(n: int) -> None:
        for _ in range(50):
            assert_same_bits(cache.attend(asked[n], softcap=2.0), expected[n])

    in_threads([lambda n=n: read(n) for n in range(4)])  # type: ignore[misc]


def test_changes_leave_the_lengths_that_a_call_reads() -> None:
    """A call may still hold the list: every change makes a new one."""
    cache = filled("float32", [9, 4])
    for change in (
        lambda: cache.reset(1),
        lambda: cache.truncate([3, 0]),
        lambda: cache.reorder([1, 0]),
    ):
        held = cache._lengths
        kept = held.copy()
        change()
        assert held == kept
        assert cache._lengths is not held


LONG_CALL = """
import json
import numpy as np
import headway as hw

hw.set_num_threads(2)
T = 2**15
cache = hw.KVCache(1, 1, T, 64)
cache.append(*[np.broadcast_to(np.float32(0.5), (1, 1, T, 64))] * 2)
q = np.broadcast_to(np.full(64, 0.5, np.float32), (1, 16, T, 64))
acts = None, None, None, None, None
def core(q):
    return hw._core.attend_plain(
        q, cache._pages.parts, cache._table, cache._lengths, False, False, *acts
    )
expected = core(q[:, :, :9])
print("ready", flush=True)
try:
    core(q)
    print("finished", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
print(json.dumps(core(q[:, :, :9]).tobytes() == expected.tobytes()))
"""


@pytest.mark.skipif(os.name != "posix", reason="this machine: has no SIGINT")
def test_ctrl_c() -> None:
    """The call by the bindings ends soon, and the next one works."""
    assert_interruptible(LONG_CALL)


# Modules ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["float16", "int8", "fp8_e4m3"])
@pytest.mark.parametrize("axes", [2, 3])
def test_modules_with_few_tokens(axes: int, kind: str) -> None:
    """x of 2 and 3 axes, no tokens at all, 16 bits and a cache of 8."""
    module = build(MultiHeadAttention, "float16")
    x = make(8, (1, 6, 6), "float16")[(0,) * (3 - axes)]
    cache = KVCache(1, module.num_kv_heads, 8, module.head_dim, dtype=kind)
    whole = KVCache(1, module.num_kv_heads, 8, module.head_dim, dtype=kind)
    expected = module(x, cache=whole)
    parts = [module(x[..., n:end, :], cache=cache) for n, end in ((0, 0), (0, 4), (4, 4), (4, 6))]
    found = np.concatenate(parts, axis=-2)
    assert [part.shape for part in parts] == [(*x.shape[:-2], n, 8) for n in (0, 4, 0, 2)]
    assert_same_bits(found, expected)
    assert cache.lengths.tolist() == [6]


@pytest.mark.parametrize("failure", [KeyboardInterrupt, MemoryError])
def test_a_module_takes_back_what_the_bindings_did_not_finish(
    failure: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = build(MultiHeadAttention)
    x = make(8, (2, 6, 6), "float32")
    cache = KVCache(2, module.num_kv_heads, 8, module.head_dim)
    first = module(x[:, :4], cache=cache)

    def fail(*_: Any) -> None:
        assert cache.lengths.tolist() == [6, 6]
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(_core, "attend_plain", fail)
        with pytest.raises(failure):
            module(x[:, 4:], cache=cache)
    assert cache.lengths.tolist() == [4, 4]
    rest = module(x[:, 4:], cache=cache)
    assert_same_bits(np.concatenate([first, rest], axis=1), module(x))
