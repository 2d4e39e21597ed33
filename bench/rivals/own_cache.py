"""headway's caches, filled beforehand, read by one query per sequence; and a plain read."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import cache_memory
import memory
import numpy as np
from inputs import Array, Inputs, numpy_dtype
from rows import CACHES_ALONE, QUANTISED, Row

import headway
from headway import _core

from . import Prepared, Unsupported
from .copies import copies_wanted, rotating

BLOCK = 2**20
"""The plain read hands its threads so many bytes at a time."""


def dtype_of(name: str) -> Any:
    """A cache's dtype as KVCache takes it."""
    return name if name in QUANTISED else numpy_dtype(name)


def filled(row: Row, inputs: Inputs) -> headway.KVCache:
    """A cache that is just large enough for the row's keys and values, which it holds."""
    sizes = (row.batch, row.num_kv_heads, row.num_keys, row.head_dim)
    cache = headway.KVCache(*sizes, dtype=dtype_of(row.dtype))
    cache.append(inputs["k"], inputs["v"])
    return cache


def decode(row: Row, inputs: Inputs) -> Prepared:
    q = inputs["q"]

    def make() -> Any:
        cache = filled(row, inputs)
        return lambda: cache.attend(q)

    facts = {"nbytes": float(filled(row, inputs).nbytes)}
    if row.contestants == CACHES_ALONE and memory.RESET.exists():
        sizes = (row.num_keys, row.num_heads, row.num_kv_heads, row.head_dim)
        facts = cache_memory.in_a_process(*sizes, row.dtype)
    return Prepared(rotating(row, make), lambda out: out, facts=facts)


def decode_bfloat16(row: Row, inputs: Inputs) -> Prepared:
    """The same with a bfloat16 cache, beside a quantised one.

    Its result is that of the row's own cache, since that is what it is compared with.
    """
    wide = replace(row, dtype="bfloat16")
    narrow = {name: inputs[name].astype(numpy_dtype("bfloat16")) for name in "qkv"}
    made, own = decode(wide, Inputs(narrow)), filled(row, inputs)
    return Prepared(made.call, lambda _: own.attend(inputs["q"]), facts=made.facts)


def read(row: Row, inputs: Inputs) -> Prepared:
    """Reading as many bytes as K and V have, from as many buffers of a cache's own kind of memory.

    Its result is that of a cache, since that is what it is compared with.
    """
    if row.kv_bytes % BLOCK or row.kv_bytes < 4 * BLOCK:
        raise Unsupported("reads whole blocks of 1 MiB, four at least")
    count = copies_wanted(row, row.kv_bytes)
    buffers = [words(row.kv_bytes) for _ in range(count)]
    threads = headway.get_num_threads()
    following = itertools.cycle(buffers).__next__
    cache = filled(row, inputs)
    return Prepared(
        lambda: _core.read_bandwidth(0.0, threads, following()),
        lambda _: cache.attend(inputs["q"]),
    )


def words(num_bytes: int) -> Array:
    """Memory as a cache has it, every page of it written to."""
    made: Array = _core.allocate(num_bytes).view(np.uint64)
    made.fill(1)
    return made
