"""Random lives of caches, projections and modules, for ``fuzz_calls.py``.

Each function makes an object, uses it a few times, well and badly, and returns how many calls
that were. A bad call must raise what it may, and leave the object as it was.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
from fuzz_dice import Dice
from helpers import HALF, TOLERANCE, Array, bits, dtype_of, error

import headway

EXPECTED = (TypeError, ValueError, MemoryError)

CACHE_DTYPES = ("float32", "float32", "float64", "float16", "bfloat16", "int8", "fp8_e4m3")


def refusal_of(call: Callable[[], Any]) -> Exception | None:
    """What the call raised, if that is what bad arguments raise, with a text; None: it returned."""
    try:
        call()
    except EXPECTED as refusal:
        if str(refusal):
            return refusal
        raise AssertionError(f"{type(refusal).__name__} without a text") from refusal
    return None


def refused_or_done(call: Callable[[], Any]) -> bool:
    """Whether the call returned; it may raise what bad arguments raise."""
    return refusal_of(call) is None


def _check(found: Array, shape: tuple[int, ...], dtype: str, finite: bool) -> None:
    assert found.shape == shape, f"shape {found.shape}, wanted {shape}"
    assert found.dtype == dtype_of(dtype), f"dtype {found.dtype}, wanted {dtype}"
    assert not finite or np.isfinite(found.astype(np.float64)).all(), "not finite"


class _History:
    """The keys and values of each sequence beside a cache of float64, ... or 8 bits."""

    def __init__(self, dice: Dice, heads: int, widths: tuple[int, int]) -> None:
        self.dice = dice
        self.heads = heads
        self.widths = widths
        self.dtype = dice.one(CACHE_DTYPES)
        self.source = "float32" if self.dtype in ("int8", "fp8_e4m3") else self.dtype
        self.tokens: dict[int, list[Array]] = {}

    def new(self, id: int) -> None:
        self.tokens[id] = [np.zeros((self.heads, 0, n), dtype_of(self.source)) for n in self.widths]

    def pieces(self, count: int, n: int) -> list[Array]:
        shapes = [(count, self.heads, n, width) for width in self.widths]
        return [self.dice.array(shape, self.source) for shape in shapes]

    def take(self, id: int, entry: int, n: int, parts: list[Array]) -> None:
        for at, x in enumerate(parts):
            self.tokens[id][at] = np.concatenate([self.tokens[id][at], x[entry, :, :n]], axis=1)

    def queries(self, count: int) -> Array:
        group, tq = self.dice.one((1, 2)), self.dice.one((0, 1, 1, 2, 5))
        return self.dice.array((count, group * self.heads, tq, self.widths[0]), self.source)

    def check(self, ids: list[int], q: Array, found: Array, options: dict[str, Any]) -> None:
        """The result of attention of queries to these sequences."""
        shape = (*q.shape[:3], self.widths[1])
        _check(found, shape, self.source, not self.dice.odd)
        if self.dice.odd or self.dtype != self.source:
            return
        for entry, id in enumerate(ids):
            k, v = (x[None].astype(np.float64) for x in self.tokens[id])
            x = q[entry : entry + 1].astype(np.float64)
            wanted = headway.reference.attention(np.ascontiguousarray(x), k, v, **options)
            size = error(found[entry : entry + 1], np.asarray(wanted))
            allowed = (
                4 * TOLERANCE[self.source] * max(1.0, 1 / max(np.abs(wanted).max(initial=0), 1e-3))
            )
            assert size <= allowed, f"error {size:.2e} of the scale, allowed {allowed:.2e}"


def kv_cache(dice: Dice) -> int:
    """A KVCache: pieces, attention, changes, bad values, copies."""
    batch, widths = dice.one((1, 1, 2, 3)), (dice.width(), dice.width())
    history = _History(dice, dice.one((1, 2)), widths)
    capacity = dice.one((1, 4, 9, 20))
    how: dict[str, Any] = {"dtype": history.dtype, "v_head_dim": widths[1]}
    window = dice.one((1, capacity)) if dice.chance(0.25) else None
    if window:
        how["window"] = window
    elif dice.chance(0.4):
        how["grow"] = True
    sizes: list[Any] = [batch, history.heads, capacity, widths[0]]
    if dice.chance(0.1):
        sizes[dice.random.randrange(4)] = dice.junk()
        if not all(isinstance(n, int) and n < 2**20 for n in sizes):
            refused_or_done(lambda: headway.KVCache(*sizes, **how))
            return 1
        refused_or_done(lambda: headway.KVCache(*sizes, **how))
        return 1
    cache = headway.KVCache(batch, history.heads, capacity, widths[0], **how)
    ids = list(range(batch))
    for id in ids:
        history.new(id)
    count = 1
    for _ in range(dice.one((1, 3, 6))):
        count += 1
        lengths = cache.lengths.tolist()
        act = dice.random.random()
        if act < 0.1:  # something bad
            call = dice.one(
                (cache.append, cache.attend, cache.truncate, cache.reorder, cache.reset)
            )
            before = pickle.dumps(cache)
            args = [dice.spoilt(x) for x in history.pieces(batch, 2)][
                : 2 if call == cache.append else 1
            ]
            done = refused_or_done(lambda c=call, a=args: c(*a))
            if not done:
                assert pickle.dumps(cache) == before, "a refused call changed the cache"
            if done and call != cache.attend:
                return count
        elif act < 0.45:
            n = dice.one((0, 1, 1, 2, 5))
            parts = history.pieces(batch, n)
            counts = [dice.random.randint(0, n) for _ in ids] if dice.chance(0.3) else None
            taken = counts or [n] * batch
            if refused_or_done(lambda c=cache, p=parts, n=counts: c.append(*p, counts=n)):
                for id in ids:
                    history.take(id, id, taken[id], parts)
            else:
                assert not how.get("grow"), "a growing cache has room"
        elif act < 0.85:
            q = history.queries(batch)
            options = {} if dice.chance(0.6) else {"softcap": 3.0, "scale": 0.2}
            options |= {"window": 2} if dice.chance(0.2) and not window else {}
            try:
                found = cache.attend(q, **options)
            except ValueError:
                assert window, "only a ring forgets tokens"
            else:
                if window:
                    options = options | {"window": window}
                history.check(ids, q, found, options)
        elif act < 0.9:
            kept = [dice.random.randint(0, n) for n in lengths]
            if refused_or_done(lambda c=cache, k=kept: c.truncate(k)):
                for id in ids:
                    history.tokens[id] = [x[:, : kept[id]] for x in history.tokens[id]]
            else:
                assert window
        elif act < 0.95:
            order = [dice.random.randrange(batch) for _ in ids]
            cache.reorder(order)
            history.tokens = {id: list(history.tokens[order[id]]) for id in ids}
        else:
            cache = copy.deepcopy(cache) if dice.chance(0.5) else pickle.loads(pickle.dumps(cache))
        assert cache.lengths.tolist() == [history.tokens[id][0].shape[1] for id in ids]
    return count


def _held(cache: headway.PagedKVCache) -> tuple[Any, ...]:
    """All that a paged cache holds."""
    tables = {id: cache.block_table(id).tolist() for id in cache.ids}
    return tables, cache.lengths().tolist(), cache.free_pages, cache.keys.tobytes()


def paged_cache(dice: Dice) -> int:
    """A PagedKVCache: sequences that come, fork, grow and go."""
    widths = (dice.width(), dice.width())
    history = _History(dice, dice.one((1, 2)), widths)
    pages, size = dice.one((1, 4, 9)), dice.one((1, 2, 4, 16))
    sizes: list[Any] = [pages, size, history.heads, widths[0]]
    how: dict[str, Any] = {"dtype": history.dtype, "v_head_dim": widths[1]}
    if dice.chance(0.1):
        sizes[dice.random.randrange(4)] = dice.junk()
        refused_or_done(lambda: headway.PagedKVCache(*sizes, **how))
        return 1
    cache = headway.PagedKVCache(*sizes, **how)
    count = 1
    for _ in range(dice.one((2, 5, 9))):
        count += 1
        ids = list(history.tokens)
        act = dice.random.random()
        if act < 0.25 or not ids:
            history.new(cache.add())
        elif act < 0.32:
            id = dice.one(ids)
            history.tokens[cache.fork(id)] = list(history.tokens[id])
        elif act < 0.62:
            some = dice.random.sample(ids, dice.random.randint(1, len(ids)))
            n = dice.one((0, 1, 1, 2, 7))
            parts = history.pieces(len(some), n)
            free = cache.free_pages
            if refused_or_done(lambda s=some, p=parts: cache.append(s, *p)):
                for entry, id in enumerate(some):
                    history.take(id, entry, n, parts)
            else:
                assert cache.free_pages == free
        elif act < 0.85:
            some = [dice.one(ids) for _ in range(dice.one((1, 2, 3)))]
            q = history.queries(len(some))
            history.check(some, q, cache.attend(some, q), {})
        elif act < 0.9:
            id = dice.one(ids)
            cache.remove(id)
            del history.tokens[id]
        else:
            calls = (cache.append, cache.attend, cache.truncate, cache.remove, cache.fork)
            call = dice.one(calls)
            before = _held(cache)
            args = [dice.junk() for _ in range(dice.one((1, 2, 3)))]
            if not refused_or_done(lambda c=call, a=args: c(*a)):
                assert _held(cache) == before, "a refused call changed the cache"
            elif call != cache.attend:
                return count
        found = {id: int(n) for id, n in zip(cache.ids, cache.lengths(), strict=True)}
        assert found == {id: x[0].shape[1] for id, x in history.tokens.items()}
    return count


def projection(dice: Dice) -> int:
    """A Projection: products, gradients, bad values."""
    d_in, d_out, dtype = dice.size(least=1), dice.size(least=1), dice.dtype()
    weight = dice.array((d_in, d_out), dtype)
    bias = dice.array((d_out,), dtype) if dice.chance(0.5) else None
    if dice.chance(0.1):
        refused_or_done(lambda: headway.Projection(dice.spoilt(weight), bias))
        return 1
    project = headway.Projection(weight, bias)
    outer = dice.one(((), (3,), (0,), (2, 5), (2, 1, 3)))
    x = dice.array((*outer, d_in), dtype)
    if dice.chance(0.2):
        refused_or_done(lambda: project(dice.spoilt(x)))
        return 2
    out = dice.out((*outer, d_out), dtype) if dice.chance(0.3) else None
    found = project.forward(x, save=True, out=out)
    _check(found, (*outer, d_out), found.dtype.name, not dice.odd)
    gradients = project.backward(dice.array((*outer, d_out), dtype))
    _check(gradients.x, x.shape, dtype, False)
    if not dice.odd and dtype not in HALF:
        wanted = np.array(x, np.float64) @ np.array(weight, np.float64)
        wanted = wanted if bias is None else wanted + np.array(bias, np.float64)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=TOLERANCE[dtype] * 40)
    return 4


def module(dice: Dice) -> int:
    """A module of either stage: forward, heads, backward, bad values."""
    heads, head_dim, d_in = dice.one((1, 2, 3)), dice.one((1, 4, 8)), dice.size(least=1)
    build = headway.StackedMultiHeadAttention if dice.chance(0.3) else headway.MultiHeadAttention
    how: dict[str, Any] = {"qkv_bias": dice.chance(0.5), "out_proj": dice.chance(0.5)}
    how |= {"dtype": dtype_of(dice.dtype()), "seed": dice.random.getrandbits(20)}
    sizes: list[Any] = [d_in, heads * head_dim]
    if dice.chance(0.1):
        sizes[dice.random.randrange(2)] = dice.one((0, -1, 2.5, None, True, "x", [2], np.nan))
        refused_or_done(lambda: build.init(*sizes, num_heads=heads, **how))
        return 1
    made = build.init(*sizes, num_heads=heads, **how)
    dtype = str(made.dtype.name)
    shape = dice.one(((5, d_in), (0, d_in), (2, 3, d_in), (1, 0, d_in)))
    x = dice.array(shape, dtype)
    if dice.chance(0.2):
        call = dice.one((made, made.heads, made.forward))
        refused_or_done(lambda: call(dice.spoilt(x)))
        return 2
    z = made.forward(x, save=True)
    _check(z, (*shape[:-1], made.d_out), dtype, not dice.odd)
    gradients = made.backward(dice.array(z.shape, dtype))
    _check(gradients.x, shape, dtype, False)
    _check(made.heads(x), (heads, *shape[:-1], head_dim), dtype, not dice.odd)
    if not dice.odd and dice.chance(0.2):
        other = pickle.loads(pickle.dumps(made))
        assert (bits(other(x)) == bits(z)).all()
    return 5
