"""Copies of a weight that together exceed the caches, so that each comes from memory."""

from __future__ import annotations

from pathlib import Path

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


def cold_copies(row: Row, weight: Array) -> list[Array]:
    """The weight alone; or copies that fill the last cache 1.25 times (within limits)."""
    if not row.cold:
        return [weight]
    wanted = min(max(cache_bytes() * 5 // 4, LEAST), MOST)
    return [weight.copy() for _ in range(max(2, -(-wanted // weight.nbytes)))]
