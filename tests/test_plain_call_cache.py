"""The everyday call of a cache, which the bindings take at once: the same as by way of the checks.

``_core.attend_plain`` gives None for whatever it leaves to the checks.
"""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cache_kinds import STORED, source_of
from helpers import Array, assert_same_bits, dtype_of, make
from layouts import LAYOUTS

from headway import KVCache, _core

#: Layouts of q that need a copy; all others are read where they lie.
COPIED = ("fortran", "step_two", "last_outermost", "heads_innermost", "reversed_last")
COPIED += ("broadcast_last", "odd_address", "odd_strides")

ACTS = ("mask", "window", "softcap", "alibi_slopes", "sinks")


def append(cache: KVCache, seed: int, counts: Any) -> None:
    """Random tokens, so many for each sequence."""
    shape, kind = (cache.batch, cache.num_kv_heads, max(counts)), source_of(cache.dtype)
    k = make((seed, 1), (*shape, cache.head_dim), kind)
    cache.append(k, make((seed, 2), (*shape, cache.v_head_dim), kind), counts)


def filled(dtype: str, lengths: list[int], heads: int = 2, width: int = 16, **more: Any) -> KVCache:
    """A cache that holds random tokens, with some room left."""
    options = {"v_head_dim": 5, **more}
    cache = KVCache(len(lengths), heads, max(lengths) + 3, width, dtype=dtype, **options)
    append(cache, 1, lengths)
    return cache


def queries(cache: KVCache, tokens: int, heads: int = 4) -> Array:
    return make(3, (cache.batch, heads, tokens, cache.head_dim), source_of(cache.dtype))


def core(cache: KVCache, q: Any, layout: str = "BHTD", causal: Any = True, **acts: Any) -> Any:
    """What the bindings make of the call."""
    given = q, cache._pages.parts, cache._table, cache._lengths, causal, layout == "BTHD"
    return _core.attend_plain(*given, *(acts.get(name) for name in ACTS))


def checked(cache: KVCache, q: Any, layout: str = "BHTD", **options: Any) -> Any:
    """The call by way of the checks, as a layout's name in a string of its own makes it go."""
    name = "".join(list(layout))
    assert name is not layout
    return cache.attend(q, layout=name, **options)


def assert_taken(cache: KVCache, q: Array, what: str = "result", **options: Any) -> None:
    """In both layouts the bindings take the call, with the bits of the checks."""
    for layout in ("BHTD", "BTHD"):
        given = np.ascontiguousarray(q.swapaxes(1, 2)) if layout == "BTHD" else q
        expected = checked(cache, given, layout, **options)
        out = core(cache, given, layout, **options)
        assert out is not None, what
        assert out.flags.c_contiguous
        assert out.flags.writeable
        for got in (out, cache.attend(given, layout=sys.intern(layout), **options)):
            assert_same_bits(got, expected, f"{what}, {layout}")


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", STORED)
def test_same_bits_as_by_way_of_the_checks(
    dtype: str, causal: bool, isa: str, some_threads: int
) -> None:
    """One sequence and several, one query, a chunk, a prefill, and more queries than keys."""
    for lengths, heads in (([70], 4), ([40, 0, 17], 2), ([9, 9], 1)):
        cache = filled(dtype, lengths, heads)
        for tokens in (1, 7, lengths[0], lengths[0] + 5):
            assert_taken(cache, queries(cache, tokens), f"{lengths}, {tokens}", causal=causal)


def acts_for(cache: KVCache, q: Array) -> dict[str, dict[str, Any]]:
    """Options in every form that the bindings read, and all kinds together."""
    (batch, heads, tokens, _), longest = q.shape, int(cache.lengths.max())
    hidden = make(4, (batch, heads, tokens, longest)) > 0.5
    found: dict[str, dict[str, Any]] = {"none": {}}
    for name, window in (("3 keys", 3), ("a pair", (4, 1)), ("no limit", (-1, 2)), ("far", 2**62)):
        found[name] = {"window": window}
    for cap in (0, 2, 1.5, -0.0):
        found[f"softcap {cap}"] = {"softcap": cap}
    for kind in ("float32", "float64"):
        slopes, sinks = make(5, (batch, heads), kind), make(6, (2 * heads,), kind)[::-2]
        sinks[1] = -np.inf
        found[f"{kind} slopes"] = {"alibi_slopes": slopes[0]}
        found[f"{kind} slopes of entries"] = {"alibi_slopes": slopes.T.copy().T}
        found[f"{kind} sinks"] = {"sinks": sinks}
    for kind in ("float32", "float64", "float16", "bfloat16"):
        bias = np.where(hidden, -np.inf, make(7, hidden.shape)).astype(dtype_of(kind))
        found[f"{kind} mask"] = {"mask": bias}
    found["bool mask"] = {"mask": ~hidden}
    found["one row of a mask"] = {"mask": np.asfortranarray(~hidden)[:1, :, :1]}
    found["half a mask"] = {"mask": np.repeat(bias, 2, axis=3)[:, ::-1, :, ::2]}
    names = "half a mask", "a pair", "softcap 2", "float64 slopes of entries", "float32 sinks"
    found["all"] = {key: value for name in names for key, value in found[name].items()}
    return found


@pytest.mark.parametrize("dtype", STORED)
def test_options(dtype: str, isa: str, some_threads: int) -> None:
    """Each alone, and all together."""
    cache = filled(dtype, [40, 0, 17])
    for tokens, causal in ((1, True), (1, False), (7, True), (7, False)):
        q = queries(cache, tokens)
        for name, acts in acts_for(cache, q).items():
            assert_taken(cache, q, f"{name}, {tokens}", causal=causal, **acts)


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("memory", LAYOUTS)
def test_memory_of_the_queries(memory: str, dtype: str) -> None:
    cache = filled(dtype, [20, 9])
    q = LAYOUTS[memory](queries(cache, 6))
    if memory in COPIED:
        assert core(cache, q) is None
        assert_same_bits(cache.attend(q), checked(cache, q.copy()))
    else:
        assert_same_bits(core(cache, q), checked(cache, q.copy()))
        assert_same_bits(core(cache, q.swapaxes(1, 2), "BTHD"), checked(cache, q).swapaxes(1, 2))


CHANGES: tuple[Callable[[KVCache], Any], ...] = (
    lambda cache: append(cache, 2, [1, 1, 1]),
    lambda cache: cache.truncate(np.array([9, 5, 1])),
    lambda cache: cache.reorder([2, 0, 0]),
    lambda cache: append(cache, 3, [40, 0, 3]),  # it grows
    copy.deepcopy,
    copy.copy,
    lambda cache: pickle.loads(pickle.dumps(cache)),
    lambda cache: cache.reset(np.array([1])),
    lambda cache: append(cache, 4, np.array([0, 2, 80])),  # once more
)


@pytest.mark.parametrize("dtype", STORED)
def test_changes_of_the_cache(dtype: str) -> None:
    """A call sees the cache as it is, whatever was done to it before."""
    cache = filled(dtype, [9, 5, 7], grow=True)
    for step, change in enumerate(CHANGES):
        cache = change(cache) or cache
        assert_taken(cache, queries(cache, 3), f"step {step}")
        whole = np.random.default_rng(step).random(3) < 0.5
        assert_taken(cache, queries(cache, 3), mask=whole[None, None, :, None])
    cache.reset()
    assert core(cache, queries(cache, 3)) is None


def test_dtypes_that_are_equal_but_others() -> None:
    """A dtype from a pickle makes the same cache as the one that NumPy has by that name."""
    for name in ("float32", "float64", "float16"):
        dtype: Any = pickle.loads(pickle.dumps(np.dtype(name)))
        assert_taken(filled(dtype, [9]), make(3, (1, 4, 2, 16), name))


class Named(np.ndarray[Any, Any]):
    """An array of a class of its own."""


def left_to_the_checks() -> dict[str, tuple[KVCache, Any, dict[str, Any]]]:
    """Calls that the bindings must not take: some are refused, some give a result."""
    two, one, small = filled("float32", [9, 4]), filled("float32", [9], 1), filled("int8", [9, 4])
    q, mask = queries(two, 3), np.ones((2, 4, 3, 9), bool)
    found: dict[str, tuple[KVCache, Any, dict[str, Any]]] = {
        "3 axes": (one, queries(one, 3)[0], {}),
        "2 axes": (one, queries(one, 3)[0, 0], {}),
        "an empty cache": (KVCache(2, 2, 8, 16), q, {}),
        "halves of 8 bits": (small, q.astype(np.float16), {}),
        "bfloat16 of 8 bits": (small, q.astype(dtype_of("bfloat16")), {}),
        "float64 of 8 bits": (small, q.astype(np.float64), {}),
    }
    others = {"no array": None, "a list": q.tolist(), "a class of its own": q.view(Named)}
    others |= {"a mask on q": np.ma.masked_array(q, mask=q > 0), "swapped bytes": q.astype(">f4")}
    others |= {"float64": q.astype(float), "halves": q.astype(np.float16), "5 axes": q[None]}
    others |= {"another batch": q[:1], "no batch": q[:0], "other heads": q[:, :3]}
    others |= {"no heads": q[:, :0], "no tokens": q[:, :, :0], "another head_dim": q[..., :8]}
    found |= {name: (two, other, {}) for name, other in others.items()}
    acts: list[dict[str, Any]] = [{"causal": c} for c in (1, 0, None, np.True_, "yes")]
    acts += [{"window": w} for w in (0, True, 2.0, (3,), [3, 1], (-2, 0), np.int64(3), 2**70)]
    acts += [{"softcap": c} for c in (-1, True, np.inf, np.nan, "2", np.float64(2), 2**2000)]
    slopes = np.ones(4, np.float32)
    for name, shape in (("alibi_slopes", (1, 4)), ("sinks", (2, 4))):
        for x in ([1.0] * 4, slopes[:3], np.ones(shape), slopes * np.nan, slopes * np.inf):
            acts.append({name: x})
        acts += [{name: slopes.astype(t)} for t in (">f4", np.float16, int, bool)]
        acts += [{name: np.full(4, 1e300)}, {name: slopes.view(Named)}]
    acts += [{"alibi_slopes": -slopes * np.inf}, {"mask": "all"}, {"mask": mask.tolist()}]
    for x in (mask[0], mask[..., :8], mask[:, :2], mask.view(np.int8), mask.view(Named), mask[:0]):
        acts.append({"mask": x})
    acts.append({"mask": np.zeros((2, 4, 3, 9), ">f4")})
    return found | {f"{n} {next(iter(act))}": (two, q, act) for n, act in enumerate(acts)}


@pytest.mark.parametrize("layout", ["BHTD", "BTHD"])
@pytest.mark.parametrize("what", left_to_the_checks())
def test_left_to_the_checks(what: str, layout: str) -> None:
    """None, and by way of `attend` what the checks say or do."""
    cache, q, options = left_to_the_checks()[what]
    if layout == "BTHD" and isinstance(q, np.ndarray) and q.ndim > 2:
        q = q.swapaxes(-3, -2)
    assert core(cache, q, layout, **options) is None
    results: list[Any] = []
    for call in (checked, lambda c, q, name, **o: c.attend(q, layout=sys.intern(name), **o)):
        try:
            results.append(call(cache, q, layout, **options))
        except (TypeError, ValueError) as error:
            results.append((type(error), str(error)))
    if isinstance(results[0], tuple):
        assert results[1] == results[0]
    else:
        assert_same_bits(results[1], results[0])
