"""A cache takes the memory that it says, and attention over it no more for a longer history."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pytest
from cache_kinds import STORED
from helpers import run_python
from peaks import MIB, START

from headway import KVCache, PagedKVCache

SIZE_OF = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "fp8_e4m3": 1}

ON_LINUX = pytest.mark.skipif(
    sys.platform != "linux", reason="this machine: has no /proc/self/status"
)

FILL = """
dtype, kind, tokens, threads = json.loads(sys.argv[1])
headway.set_num_threads(threads)
heads, width = 4, 64

def new(slots):
    if kind == "paged":
        return headway.PagedKVCache(slots // 16, 16, heads, width, dtype=dtype)
    window = {"window": slots - 255} if kind == "ring" else {}
    return headway.KVCache(1, heads, slots, width, dtype=dtype, **window)

def fill(cache, slots):
    before = ([cache.add()],) if kind == "paged" else ()
    for _ in range(slots // 256):
        cache.append(*before, x, x)
    return before

source = "float32" if dtype in ("int8", "fp8_e4m3") else dtype
x = np.ones((1, heads, 256, width), dtype_of(source))
q = np.ones((1, 2 * heads, 1, width), dtype_of(source))
chunk = np.ones((1, 2 * heads, 5, width), dtype_of(source))
small = new(512)
first = fill(small, 512)
for queries in (q, chunk):
    small.attend(*first, queries)  # the threads are there, and what they keep
before = resident("VmRSS")
cache = new(tokens)
first = fill(cache, tokens)
taken = resident("VmRSS") - before
out = np.ones(chunk.shape, chunk.dtype)
beyond = [
    peak_of(lambda: cache.attend(*first, queries, out=out[:, :, : queries.shape[2]]))
    for queries in (q, chunk)
]
print(json.dumps([cache.nbytes, taken, *beyond]))
"""


def measured(dtype: str, kind: str, tokens: int, threads: int = 2) -> list[int]:
    """Return nbytes, the memory that filling took, and what one and five queries took beyond."""
    settings = json.dumps([dtype, kind, tokens, threads])
    return [int(n) for n in run_python(START + FILL, settings, timeout=120)]


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("v_width", [5, 12])
def test_nbytes_is_what_the_sizes_say(dtype: str, v_width: int) -> None:
    """Keys and values, and for int8 four bytes for each token and head of both."""
    sizes: dict[str, Any] = {"dtype": dtype, "v_head_dim": v_width}
    token = 3 * (12 + v_width) * SIZE_OF[dtype] + (3 * 2 * 4 if dtype == "int8" else 0)
    for cache, slots in (
        (KVCache(2, 3, 40, 12, **sizes), 80),
        (KVCache(2, 3, 40, 12, window=30, **sizes), 80),
        (PagedKVCache(7, 16, 3, 12, **sizes), 112),
    ):
        assert cache.nbytes == slots * token
        x = np.ones((2, 3, 9, 12), np.float32 if SIZE_OF[dtype] == 1 else cache.keys.dtype)
        before = ([cache.add(), cache.add()],) if isinstance(cache, PagedKVCache) else ()
        cache.append(*before, x, x[..., :1].repeat(v_width, axis=3))
        assert cache.nbytes == slots * token


def test_8_bits_take_half_of_16() -> None:
    """Numbers of 8 bits half, the scales of int8 a thirty-second of it at D = 128."""
    found = {dtype: KVCache(1, 2, 64, 128, dtype=dtype).nbytes for dtype in STORED}
    assert found["float16"] == found["bfloat16"] == 2 * found["fp8_e4m3"]
    assert found["int8"] * 32 == found["fp8_e4m3"] * 33


@pytest.mark.parametrize("dtype", STORED)
def test_nbytes_of_a_growing_cache(dtype: str) -> None:
    """It follows the capacity, which doubles."""
    cache = KVCache(1, 1, 3, 4, dtype=dtype, grow=True)
    capacity, token = 3, cache.nbytes / 3
    x = np.ones((1, 1, 1, 4), np.float32 if SIZE_OF[dtype] == 1 else cache.keys.dtype)
    for n in range(1, 26):
        cache.append(x, x)
        capacity *= 2 if n > capacity else 1
        assert cache.capacity == capacity
        assert cache.nbytes == cache.capacity * token


@ON_LINUX
@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("kind", ["plain", "ring", "paged"])
def test_memory_taken(kind: str, dtype: str) -> None:
    """A full cache of 16 to 130 MiB takes its nbytes, but for 4 MiB; attention takes 2 at most."""
    nbytes, taken, *beyond = measured(dtype, kind, 32_768)
    assert nbytes >= 16 * MIB
    assert abs(taken - nbytes) < 4 * MIB, f"{taken / MIB:.2f} of {nbytes / MIB:.2f} MiB"
    assert max(beyond) < 2 * MIB, f"{[n / MIB for n in beyond]} MiB beyond the cache"


@ON_LINUX
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_attention_takes_no_more_for_a_longer_history(dtype: str) -> None:
    """Sixteen times the tokens: not a quarter of a MiB more."""
    few, many = (max(measured(dtype, "plain", tokens)[2:]) for tokens in (4096, 65_536))
    assert many < few + MIB / 4, f"{few / MIB:.2f} and {many / MIB:.2f} MiB"
