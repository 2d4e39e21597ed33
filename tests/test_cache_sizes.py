"""How caches are made: sizes, dtypes, and what is refused."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import dtype_of

from headway import KVCache, PagedKVCache

Refused = tuple[Callable[..., Any], type[Exception], str]

SIZES: dict[str, Any] = {"batch": 2, "num_kv_heads": 2, "capacity": 8, "head_dim": 4}
PAGES: dict[str, Any] = {"num_pages": 2, "page_size": 2, "num_kv_heads": 2, "head_dim": 4}
DTYPES = 'dtype: expected float32, float64, float16, bfloat16, "int8" or "fp8_e4m3", got '
BUILD: list[Refused] = [
    *(
        (call, error, f"{name}: expected {text}")
        for name in ("batch", "num_kv_heads", "capacity", "head_dim", "v_head_dim")
        for call, error, text in (
            (lambda n=name: KVCache(**{**SIZES, n: 0}), ValueError, "at least 1, got 0; pass an"),
            (lambda n=name: KVCache(**{**SIZES, n: 1.5}), TypeError, "an int, got float; pass an"),
            (lambda n=name: KVCache(**{**SIZES, n: True}), TypeError, "an int, got bool; pass an"),
        )
    ),
    *(
        (lambda n=name: PagedKVCache(**{**PAGES, n: 0}), ValueError, f"{name}: expected at least 1")
        for name in ("num_pages", "page_size", "num_kv_heads", "head_dim", "v_head_dim")
    ),
    (lambda: KVCache(1, 1, 8, 4, dtype="int3"), TypeError, DTYPES + "'int3'; pass e.g. np.float32"),
    (lambda: KVCache(1, 1, 8, 4, dtype=np.int32), TypeError, DTYPES + "int32; pass e.g."),
    (lambda: KVCache(1, 1, 8, 4, dtype=">f4"), TypeError, DTYPES + "byte-swapped float32; pass"),
    (lambda: PagedKVCache(1, 1, 8, 4, dtype=3), TypeError, DTYPES + "3; pass e.g. np.float32"),
    (lambda: KVCache(1, 1, 8, 4, window=0), ValueError, "window: expected at least 1, got 0; "),
    (
        lambda: KVCache(1, 1, 8, 4, window=9),
        ValueError,
        "capacity: expected at least the 9 tokens of the window, got 8; "
        "pass capacity = window + n - 1 for pieces of up to n tokens",
    ),
    (lambda: KVCache(1, 1, 8, 4, grow=1), TypeError, "grow: expected True or False, got 1 (int); "),
    (
        lambda: KVCache(1, 1, 8, 4, window=4, grow=True),
        ValueError,
        "grow: expected False with window=4, got True; a ring keeps its capacity",
    ),
    (
        lambda: KVCache(2**20, 2**10, 2**20, 2**10),
        MemoryError,
        "cache: expected a size that fits in memory, got (1048576, 1024, 1048576, 2048) numbers",
    ),
]


@pytest.mark.parametrize(("build", "error", "text"), BUILD)
def test_caches_that_cannot_be(build: Callable[[], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        build()
    assert type(caught.value) is error
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize(
    ("dtype", "name", "stored"),
    [
        *((name, name, dtype_of(name)) for name in ("float32", "float64", "float16", "bfloat16")),
        (np.float64, "float64", np.dtype("f8")),
        (np.dtype("f2"), "float16", np.dtype("f2")),
        (ml_dtypes.bfloat16, "bfloat16", dtype_of("bfloat16")),
        ("int8", "int8", np.dtype("i1")),
        (np.int8, "int8", np.dtype("i1")),
        ("fp8_e4m3", "fp8_e4m3", np.dtype("u1")),
        (ml_dtypes.float8_e4m3fn, "fp8_e4m3", np.dtype("u1")),
    ],
)
def test_dtypes(dtype: Any, name: str, stored: np.dtype[Any]) -> None:
    for cache in (KVCache(2, 3, 8, 4, dtype=dtype), PagedKVCache(2, 8, 3, 4, dtype=dtype)):
        assert cache.dtype == name
        assert cache.keys.dtype == cache.values.dtype == stored
        scales = 2 * 2 * 3 * 8 * 4 if name == "int8" else 0
        assert cache.nbytes == 2 * 2 * 3 * 8 * 4 * stored.itemsize + scales
        assert (cache.key_scales is not None) == (cache.value_scales is not None) == bool(scales)


def test_bfloat16_needs_ml_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ImportError, match=r"need the package ml_dtypes: pip install"):
        KVCache(1, 1, 8, 4, dtype="bfloat16")


def test_sizes() -> None:
    cache = KVCache(np.int64(2), 3, 8, 4, v_head_dim=6, window=5)
    sizes = cache.batch, cache.num_kv_heads, cache.capacity, cache.head_dim, cache.v_head_dim
    assert sizes == (2, 3, 8, 4, 6)
    assert cache.window == 5
    assert KVCache(2, 3, 8, 4).window is None
    assert repr(cache) == (
        "KVCache(batch=2, num_kv_heads=3, capacity=8, head_dim=4, v_head_dim=6, dtype=float32, "
        "window=5, lengths=[0, 0])"
    )
    pages = PagedKVCache(2, 8, 3, 4, v_head_dim=6)
    assert (pages.num_pages, pages.page_size, pages.num_kv_heads) == (2, 8, 3)
    assert (pages.head_dim, pages.v_head_dim, pages.free_pages, pages.ids) == (4, 6, 2, [])
    assert repr(pages) == (
        "PagedKVCache(num_pages=2, page_size=8, num_kv_heads=3, head_dim=4, v_head_dim=6, "
        "dtype=float32, free_pages=2)"
    )
