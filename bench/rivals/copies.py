"""Copies of a weight or a cache that together exceed the caches, so that each comes from memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from inputs import Array
from rows import Row

LEAST, MOST = 192 * 2**20, 640 * 2**20
SIZE = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")


def cache_bytes() -> int:
    """Size of the last cache; 0 where the system does not say."""
    try:
        text = SIZE.read_text(encoding="ascii").strip()
    except OSError:
        return 0
    return int(text[:-1]) * {"K": 2**10, "M": 2**20}[text[-1]]


def copies_wanted(row: Row, size: int) -> int:
    """One; or how many of this size fill the last cache 1.25 times (within limits)."""
    if not row.cold:
        return 1
    wanted = min(max(cache_bytes() * 5 // 4, LEAST), MOST)
    return max(2, -(-wanted // size))


def cold_copies(row: Row, weight: Array) -> list[Array]:
    """The weight alone; or copies of it."""
    count = copies_wanted(row, weight.nbytes)
    return [weight] if count == 1 else [weight.copy() for _ in range(count)]


def rotating(row: Row, make: Callable[[], Callable[[], Any]]) -> Callable[[], Any]:
    """Of a decode row: a call that goes round the calls that `make` makes, each with its own cache.

    A single call comes back as it is.
    """
    calls = [make() for _ in range(copies_wanted(row, row.kv_bytes) if row.kind == "decode" else 1)]
    following = itertools.cycle(calls).__next__
    return calls[0] if len(calls) == 1 else lambda: following()()
