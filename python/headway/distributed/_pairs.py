"""Visible (query, key) pairs of ranks, counted and not enumerated."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..arrays import Array
from ..options import FAR
from ._sharding import segments


class Rows(NamedTuple):
    """The positions of W ranks, each with R runs of them: ``first + stride * i``."""

    first: Array  # (W, R) int64
    counts: Array  # (W, R) int64
    stride: int

    @property
    def per_rank(self) -> Array:
        """(W,) int64: rows of each rank."""
        return np.asarray(self.counts.sum(axis=1))


def rows_of_ranks(ranks: int, num_tokens: int, sharding: str) -> Rows:
    """The positions that every rank holds."""
    held = [segments(rank, ranks, num_tokens, sharding) for rank in range(ranks)]
    runs = max((len(each) for each in held), default=0) or 1
    first, count = np.zeros((2, ranks, runs), dtype=np.int64)
    for rank, each in enumerate(held):
        for n, segment in enumerate(each):
            first[rank, n], count[rank, n] = segment.first, segment.length
    return Rows(first, count, ranks if sharding == "striped" else 1)


def step_pairs(rows: Rows, step: int, left: int, right: int) -> Array:
    """(W,) int64: pairs that rank r sees of rank ``r - step``, whose keys it has in this step.

    A query at position p sees keys from ``p - left`` to ``p + right``; FAR: no limit.
    """
    ranks = len(rows.first)
    source = (np.arange(ranks) - step) % ranks
    total = np.zeros(ranks, dtype=np.int64)
    for own in range(rows.first.shape[1]):
        for other in range(rows.first.shape[1]):
            ahead = rows.first[:, own] - rows.first[source, other]
            counts = rows.counts[:, own], rows.counts[source, other]
            total += _pairs(ahead, *counts, rows.stride, left, right)
    return total


def _pairs(ahead: Array, n: Array, m: Array, stride: int, left: int, right: int) -> Array:
    """Pairs (i, j), i < n, j < m, with ``-right <= ahead + stride * (i - j) <= left``."""
    pairs = n * m
    if right < FAR:
        pairs = pairs - _at_least(-((right + ahead) // stride) - 1, m, n, flip=True)
    if left < FAR:
        pairs = pairs - _at_least((left - ahead) // stride + 1, n, m)
    return np.asarray(pairs)


def _at_least(distance: Array, n: Array, m: Array, flip: bool = False) -> Array:
    """Pairs (i, j), i < n, j < m, with ``i - j >= distance``; with `flip` ``i - j <= distance``.

    For each i there are ``i - distance + 1`` of them, but at least 0 and at most m.
    """
    if flip:  # the roles of i and j change places, n and m are given so
        distance = -distance
    return np.asarray(_clipped_sum(n - distance, m) - _clipped_sum(-distance, m))


def _clipped_sum(n: Array, most: Array) -> Array:
    """``sum(min(x, most) for x in 1 ... n)``."""
    n = np.maximum(n, 0)
    low = np.minimum(n, most)
    return np.asarray(low * (low + 1) // 2 + (n - low) * most)
