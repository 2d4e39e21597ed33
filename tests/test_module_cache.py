"""Modules that are fed in pieces, with a cache: the results of one call on everything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import (
    DTYPES,
    Array,
    assert_close,
    assert_same_bits,
    dtype_of,
    make,
)
from module_helpers import CLASSES, Module, build

import headway
from headway import CausalAttention, KVCache, MultiHeadAttention, StackedMultiHeadAttention

PIECES = ([9], [4, 5], [2, 3, 4], [4, 1, 3, 1], [1] * 9, [0, 6, 0, 3])


def cache_for(module: Module, batch: int = 2, capacity: int = 12, **options: Any) -> KVCache:
    """A cache in the module's dtype, or the one that is named."""
    options = {"dtype": module.dtype, **options}
    return KVCache(batch, module.num_kv_heads, capacity, module.head_dim, **options)


def in_pieces(module: Module, x: Array, cache: KVCache, pieces: list[int]) -> Array:
    """The results of the pieces side by side."""
    ends = np.cumsum(pieces)
    parts = [
        module(x[..., end - n : end, :], cache=cache) for n, end in zip(pieces, ends, strict=True)
    ]
    return np.concatenate(parts, axis=-2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cls", CLASSES)
def test_pieces_equal_one_call(cls: type[Module], dtype: str, isa: str, threads: int) -> None:
    module = build(cls, dtype)
    x = make(31, (2, 9, 6), dtype)
    full = module(x)
    for pieces in PIECES:
        cache = cache_for(module)
        found = in_pieces(module, x, cache, pieces)
        assert cache.lengths.tolist() == [9, 9]
        assert_same_bits(found, full, f"pieces {pieces}")


@pytest.mark.parametrize("cls", CLASSES)
def test_one_sequence_without_a_batch_axis(cls: type[Module], isa: str) -> None:
    module = build(cls)
    x = make(32, (9, 6), "float32")
    cache = cache_for(module, batch=1)
    assert_same_bits(in_pieces(module, x, cache, [5, 4]), module(x))


def test_both_stages_fill_the_same_cache(isa: str) -> None:
    """The heads one after another, or all at once: the same keys, values and results."""
    stacked = StackedMultiHeadAttention.init(6, 8, num_heads=4, qkv_bias=True)
    merged = stacked.fuse()
    x = make(33, (2, 9, 6), "float32")
    caches = [cache_for(module) for module in (stacked, merged)]
    results = [
        in_pieces(module, x, cache, [4, 1, 4])
        for module, cache in zip((stacked, merged), caches, strict=True)
    ]
    assert_same_bits(*results)
    assert_same_bits(caches[0].keys, caches[1].keys, "keys")
    assert_same_bits(caches[0].values, caches[1].values, "values")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["int8", "fp8_e4m3"])
def test_caches_of_8_bits(kind: str, dtype: str, isa: str) -> None:
    module = build(MultiHeadAttention, dtype)
    x = make(34, (2, 9, 6), dtype)
    found = in_pieces(module, x, cache_for(module, dtype=kind), [4, 1, 4])
    assert found.dtype == dtype_of(dtype)
    assert_close(found, module(x).astype(np.float64), 0.1)


def test_a_ring_sees_its_window(isa: str) -> None:
    """The same as a cache that holds everything, with the window as an option."""
    module = MultiHeadAttention.init(6, 8, num_heads=4, num_kv_heads=2)
    x = make(35, (1, 30, 6), "float32")
    q, k, v = (part.swapaxes(1, 2) for part in module._projected(x))
    expected = headway.attention(q, k, v, window=4).swapaxes(1, 2).reshape(1, 30, 8)
    ring = cache_for(module, 1, 6, window=4)
    assert_same_bits(in_pieces(module, x, ring, [3, 2] * 6), expected)


def test_a_cache_that_grows(isa: str) -> None:
    module = build(MultiHeadAttention)
    x = make(36, (2, 40, 6), "float32")
    cache = cache_for(module, 2, 1, grow=True)
    assert_same_bits(in_pieces(module, x, cache, [7, 20, 13]), module(x))


# Failures -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", CLASSES)
def test_a_full_cache_is_unchanged(cls: type[Module]) -> None:
    module = build(cls)
    x = make(37, (2, 9, 6), "float32")
    cache = cache_for(module, 2, 8)
    module(x[:, :7], cache=cache)
    keys = cache.keys.copy()
    with pytest.raises(ValueError, match="capacity of 8, got 2 for a sequence of 7"):
        module(x[:, 7:], cache=cache)
    assert cache.lengths.tolist() == [7, 7]
    assert_same_bits(cache.keys, keys)


@pytest.mark.parametrize("failure", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("options", [{}, {"window": 3}, {"dtype": "int8"}])
def test_a_failure_after_the_append_takes_it_back(
    options: dict[str, Any], failure: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = build(MultiHeadAttention)
    x = make(38, (2, 9, 6), "float32")
    whole = cache_for(module, **options)
    expected = in_pieces(module, x, whole, [4, 3, 2])
    cache = cache_for(module, **options)
    first = module(x[:, :4], cache=cache)

    def fail(*_: Any, **__: Any) -> None:
        raise failure

    for name in ("attend", "append"):
        with monkeypatch.context() as patch:
            patch.setattr(KVCache, name, fail)
            with pytest.raises(failure):
                module(x[:, 4:7], cache=cache)
        assert cache.lengths.tolist() == [4, 4]
    with monkeypatch.context() as patch:
        patch.setattr(module, "_out", fail)
        with pytest.raises(failure):
            module(x[:, 4:7], cache=cache)
    assert cache.lengths.tolist() == [4, 4]
    rest = in_pieces(module, x[:, 4:], cache, [3, 2])
    assert_same_bits(np.concatenate([first, rest], axis=1), expected)


def many() -> MultiHeadAttention:
    return MultiHeadAttention.init(6, 8, num_heads=4, num_kv_heads=2)


REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: {}, TypeError, "cache: expected a headway.KVCache or None, got dict; pass cache=None"),
    (
        lambda: headway.PagedKVCache(4, 4, 2, 2),
        TypeError,
        "cache: expected a headway.KVCache or None, got PagedKVCache; ",
    ),
    (
        lambda: KVCache(2, 2, 9, 2, dtype=np.float64),
        TypeError,
        "cache: expected float32 or of 8 bits like the module, got float64; "
        "make it with KVCache(..., dtype=module.dtype)",
    ),
    (
        lambda: KVCache(3, 2, 9, 2),
        ValueError,
        "cache: expected batch 2 like x, got 3; make it with KVCache(2, 2, capacity, 2)",
    ),
    (
        lambda: KVCache(2, 4, 9, 2),
        ValueError,
        "cache: expected num_kv_heads 2 like the module, got 4; make it with",
    ),
    (
        lambda: KVCache(2, 2, 9, 3, v_head_dim=2),
        ValueError,
        "cache: expected head_dim 2 like the module, got 3; make it with",
    ),
    (
        lambda: KVCache(2, 2, 9, 2, v_head_dim=5),
        ValueError,
        "cache: expected v_head_dim 2 like the module, got 5; make it with",
    ),
]


@pytest.mark.parametrize(("cache", "error", "text"), REFUSED)
def test_caches_that_do_not_fit(
    cache: Callable[[], Any], error: type[Exception], text: str
) -> None:
    given = cache()
    with pytest.raises(error) as caught:
        many()(make(39, (2, 3, 6), "float32"), cache=given)
    assert str(caught.value).startswith(text)
    if isinstance(given, KVCache):
        assert not given.lengths.any()


def test_float64_takes_no_8_bits() -> None:
    module = CausalAttention.init(6, 8, dtype=np.float64)
    with pytest.raises(TypeError, match="cache: expected float64 like the module, got int8; "):
        module(make(40, (2, 3, 6)), cache=cache_for(module, dtype="int8"))


def test_heads_of_several_widths_have_no_cache() -> None:
    heads = [CausalAttention.init(6, width) for width in (2, 3)]
    with pytest.raises(ValueError, match="head_dim"):
        StackedMultiHeadAttention(heads)(make(41, (1, 3, 6), "float32"), cache=KVCache(1, 2, 8, 2))
