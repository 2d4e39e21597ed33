"""Which rows of one rank see which rows of another, cut into calls of the kernel.

A part is a rectangle of (queries, keys) whose visible cells form a band: those where the key's row
j minus the query's row i lies between two bounds. `attention` computes a band by its `align` and
`window`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ..arrays import Array
from ..options import FAR
from ._sharding import Segment


class Sight(NamedTuple):
    """Whom a query sees, by positions in the whole sequence."""

    left: int  # keys before its own position; FAR: all
    right: int  # keys after it; 0 where causal
    biased: bool = False  # with ALiBi, the distances count
    cuts: Array | None = None  # (n + 1,) where packed sequences begin and end


class Part(NamedTuple):
    """One call: some query rows of this rank and some key rows of the block at hand."""

    queries: slice
    keys: slice
    causal: bool
    align: int
    window: tuple[int, int] | None
    stride: int = 1  # positions between two rows: the slopes count so often
    shift: int = 0  # positions that every visible distance is longer than the call's, times stride


def parts(queries: Sequence[Segment], keys: Sequence[Segment], sight: Sight) -> Iterator[Part]:
    """All calls that these queries need of these keys; none where nothing is seen."""
    for q in queries:
        for k in keys:
            for q_run, k_run in _same_sequence(q, k, sight.cuts):
                yield from _bands(q_run, k_run, sight)


def sees(queries: Sequence[Segment], keys: Sequence[Segment], sight: Sight) -> bool:
    """Does any of these queries see any of these keys?"""
    return next(parts(queries, keys, sight), None) is not None


def _same_sequence(q: Segment, k: Segment, cuts: Array | None) -> Iterator[tuple[Segment, Segment]]:
    """The rows of each packed sequence that both have rows of."""
    if cuts is None:
        yield q, k
        return
    firsts = [int(np.searchsorted(cuts, x.first, "right")) - 1 for x in (q, k)]
    lasts = [
        int(np.searchsorted(cuts, x.first + x.stride * (x.length - 1), "right")) - 1 for x in (q, k)
    ]
    for n in range(max(firsts), min(lasts) + 1):
        begin, end = int(cuts[n]), int(cuts[n + 1])
        q_run, k_run = _between(q, begin, end), _between(k, begin, end)
        if q_run.length > 0 and k_run.length > 0:
            yield q_run, k_run


def _between(x: Segment, begin: int, end: int) -> Segment:
    """The rows of a segment whose positions lie in [begin, end)."""
    skipped = max(0, -((x.first - begin) // x.stride))
    stop = min(x.length, -((x.first - end) // x.stride))
    return Segment(x.start + skipped, stop - skipped, x.first + skipped * x.stride, x.stride)


def _bands(q: Segment, k: Segment, sight: Sight) -> Iterator[Part]:
    """One band, or with ALiBi and a stride one for the keys before a query and one for the others.

    The distance of query i to key j before it is ``ahead - stride * (j - i)``.
    """
    stride, ahead = q.stride, q.first - k.first
    lowest = None if sight.left >= FAR else -((sight.left - ahead) // stride)  # of j - i
    highest = None if sight.right >= FAR else (ahead + sight.right) // stride
    if lowest is not None and lowest <= 1 - q.length:
        lowest = None  # it hides nothing here
    if not sight.biased:
        yield from _band(q, k, lowest, highest, highest if highest is not None else lowest)
        return
    own = ahead // stride  # of j - i: the last key that is not behind the query
    if stride == 1:
        yield from _band(q, k, lowest, highest, own)
        return
    before = own if highest is None else min(own, highest)
    for part in _band(q, k, lowest, before, own):
        yield part._replace(stride=stride, shift=ahead - stride * own)
    after = own + 1
    if highest is None or highest >= after:
        beyond = after if lowest is None else max(lowest, after)
        for part in _band(q, k, beyond, highest, after):
            yield part._replace(stride=stride, shift=stride * after - ahead)


def _band(
    q: Segment, k: Segment, lowest: int | None, highest: int | None, align: int | None
) -> Iterator[Part]:
    """The call for ``lowest <= j - i <= highest``, unless none is so; None is no bound."""
    if highest is not None and highest <= -q.length:
        return
    if lowest is not None and (lowest >= k.length or (highest is not None and lowest > highest)):
        return
    rows = slice(q.start, q.start + q.length), slice(k.start, k.start + k.length)
    place = 0 if align is None else align
    if highest is not None and highest == place:  # the causal edge itself
        window = None if lowest is None else (place - lowest, 0)
        yield Part(*rows, True, place, window)
        return
    if lowest is None and highest is None:
        yield Part(*rows, False, place, None)
        return
    left = -1 if lowest is None else place - lowest
    right = -1 if highest is None else highest - place
    yield Part(*rows, False, place, (left, right))
