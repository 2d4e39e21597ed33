"""What ``headway check`` computes over caches: of the inputs' dtype and of 8 bits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from . import reference
from .arrays import Array
from .cache import KVCache
from .paged_cache import PagedKVCache
from .self_test_inputs import Inputs, Problem, Results, wide

EIGHT_BITS = ("int8", "fp8_e4m3")
ROUNDED = 1e-6
"""By so much a stored number may be off by more than half a step."""


def caches(draw: Inputs) -> Iterator[Problem]:
    """Tokens that come in pieces, in one array and in shared pages; and rounded ones."""
    q, k, v = draw.qkv(4, 2, 30, 30, 32)
    wanted = reference.attention(*wide(q, k, v))

    def in_pieces() -> Results:
        cache = KVCache(2, 2, 30, 32, dtype=draw.dtype)
        found = []
        for start, end in ((0, 17), (17, 29), (29, 30)):
            piece = slice(start, end)
            cache.append(k[:, :, piece], v[:, :, piece])
            found.append(cache.attend(q[:, :, piece]))
        return (np.concatenate(found, axis=2),)

    def in_pages() -> Results:
        cache = PagedKVCache(9, 7, 2, 32, dtype=draw.dtype)
        first = cache.add()
        cache.append([first], k[:1, :, :10], v[:1, :, :10])
        ids = [first, cache.fork(first)]
        rest = slice(10, 30)
        cache.append(ids, np.stack([k[0, :, rest]] * 2), np.stack([v[0, :, rest]] * 2))
        return tuple(np.split(cache.attend(ids, np.stack([q[0]] * 2)), 2))

    yield Problem("cache", in_pieces, (wanted,), (draw.tolerance,))
    yield Problem("shared pages", in_pages, (wanted[:1],) * 2, (draw.tolerance,) * 2)
    if draw.name != "float64":  # 8-bit caches take no float64
        for kind in EIGHT_BITS:
            yield _rounded(draw, kind)


def _rounded(draw: Inputs, kind: str) -> Problem:
    """Stored numbers are off by half a step at most, and attention is that over the stored ones."""
    q, k, v = draw.qkv(4, 2, 1, 90, 32)

    def call() -> Results:
        cache = KVCache(2, 2, 90, 32, dtype=kind)
        cache.append(k, v)
        keys, too_far = _stored(cache.keys, cache.key_scales, k)
        values, too_far_too = _stored(cache.values, cache.value_scales, v)
        exact = reference.attention(q.astype(np.float64), keys, values)
        return too_far, too_far_too, cache.attend(q) - exact

    wanted = np.zeros(k.shape), np.zeros(v.shape), np.zeros(q.shape)
    return Problem(f"{kind} cache", call, wanted, (ROUNDED, ROUNDED, draw.tolerance))


def _stored(numbers: Array, scales: Array | None, x: Array) -> tuple[Array, Array]:
    """What 8 bits stand for, in float64, and by how much more than half a step it is off."""
    x = x.astype(np.float64)
    if scales is not None:
        found, half = numbers * scales.astype(np.float64)[..., None], scales[..., None] / 2
    else:
        found = _e4m3_numbers()[numbers.view(np.uint8)]
        half = np.maximum(2.0 ** np.floor(np.log2(np.abs(x))) / 16, 2.0**-10)
    return found, np.maximum(np.abs(found - x) - half, 0)


def _e4m3_numbers() -> Array:
    """The number of each byte: sign, 4 bits of exponent with the bias 7, 3 bits of fraction."""
    byte = np.arange(256)
    exponent, fraction = byte >> 3 & 15, (byte & 7) / 8
    size = np.where(exponent > 0, (1 + fraction) * 2.0 ** (exponent - 7), fraction * 2.0**-6)
    return np.where(byte & 127 == 127, np.nan, np.where(byte > 127, -size, size))
