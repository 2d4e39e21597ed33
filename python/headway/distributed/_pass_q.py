"""Queries over the shares of a cache: what a rank sees of its own, and all of it joined (pass-Q).

Token p of a sequence lies on rank ``p % W``, as its key ``p // W``. Queries W positions apart
therefore see the keys of one rank as the queries of a plain call do: each one key more than the
one before. A rank makes one call for each remainder, W at most.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..arrays import Array
from ..cache_calls import Asked, Held, attend, queries
from ..checks import check_align, check_flag, check_layout, check_scale
from ..merging import merge_partials
from ..options import FAR, Options, check_options, check_window
from ._agreement import Same, Text
from ._sharding import segments
from ._waiting import wait


class Query(NamedTuple):
    """A checked call: B sequences, H heads, Tq queries of each."""

    given: Array  # as given
    q: Array  # (B, H, Tq, D)
    offsets: list[int]  # (B): the position of query 0 in its sequence
    left: int  # keys before a query that it sees; FAR: all
    right: int  # keys after it; 0: causal
    scale: float | None
    softcap: float
    slopes: Array | None  # (B, H) float64
    sinks: Array | None  # (H,) float64
    causal: bool
    wide: np.dtype[Any]  # in which sums are kept


def checked_query(held: Held, q: Any, asked: Asked) -> Query:
    """A call over sequences of these lengths, shares together, checked like that of one cache."""
    check_flag("causal", asked.causal)
    check_flag("return_lse", asked.return_lse)
    check_layout(asked.layout)
    given, q4, kind = queries(held, q, asked.layout)
    batch, heads, tq, _ = q4.shape
    tk = max(held.lengths, default=0)
    scale = None if asked.scale is None else check_scale(asked.scale)
    if isinstance(asked.align, str) and asked.align == "end":
        offsets = [length - tq for length in held.lengths]
    else:
        place = check_align(asked.align, batch, tq, tk)
        offsets = place if isinstance(place, list) else [place] * batch
    causal = bool(asked.causal)
    kernel_kind = "float32" if held.pages.quantised else kind
    act = None, asked.window, asked.softcap, asked.alibi_slopes, asked.sinks, None
    shape = batch, heads, tq, tk
    options = check_options(shape, given.ndim, kernel_kind, causal, *act) or Options()
    left, right = check_window(asked.window, causal)
    wide = np.dtype(np.float64 if kind == "float64" else np.float32)
    sums = scale, options.softcap, options.slopes, options.sinks
    return Query(given, q4, offsets, left, right, *sums, causal, wide)


def agreed_facts(query: Query) -> dict[str, Same]:
    """What has to be the same on every rank, by name."""
    return {
        "q": Same(Text(query.given.dtype.name), TypeError, "convert it on the others"),
        "q's shape": Same(query.q.shape),
        "causal": Same(query.causal),
        "align": Same(tuple(query.offsets)),
        "scale": Same(query.scale),
        "window": Same(tuple(-1 if n == FAR else n for n in (query.left, query.right))),
        "softcap": Same(query.softcap),
        "alibi_slopes": Same(query.slopes),
        "sinks": Same(query.sinks),
    }


class View(NamedTuple):
    """What queries W apart see of one rank's keys, which are counted as the rank holds them."""

    offset: int  # the key at which the first query stands
    left: int
    right: int
    shift: int  # positions from a query to that key, which ALiBi has to make up for


def views(position: int, rank: int, ranks: int, query: Query) -> list[View]:
    """The keys of a rank that a query at this position sees: none, or one or two runs of them."""
    at, shift = divmod(position - rank, ranks)
    first = -FAR if query.left == FAR else -((rank + query.left - position) // ranks)
    last = FAR if query.right == FAR else (position + query.right - rank) // ranks
    both = []
    if query.slopes is None or not shift:
        start = min(max(at, first), last)  # none of the distances is negative then
        both = [(start, first, last, shift)]
    else:  # keys before and after the query: the distances are off to different sides
        both = [
            (at, first, min(at, last), shift),
            (at + 1, max(at + 1, first), last, ranks - shift),
        ]
    return [
        View(start, FAR if one == -FAR else start - one, FAR if end == FAR else end - start, off)
        for start, one, end, off in both
        if one <= end
    ]


def share_of(query: Query, held: Held, rank: int, ranks: int) -> tuple[Array, Array]:
    """Contexts (B, H, Tq, Dv) and lse (B, H, Tq) over the keys of one rank, without sinks."""
    q = query.q
    batch, heads, tq, _ = q.shape
    out = np.zeros((batch, heads, tq, held.pages.values.shape[3]), query.wide)
    lse = np.full((batch, heads, tq), -np.inf, query.wide)
    for remainder in range(min(ranks, tq)):
        calls: dict[tuple[int, int, int], list[tuple[int, View]]] = {}
        for b, offset in enumerate(query.offsets):
            for n, view in enumerate(views(offset + remainder, rank, ranks, query)):
                calls.setdefault((n, view.left, view.right), []).append((b, view))
        for (n, *_), found in sorted(calls.items()):
            entries, seen = zip(*found, strict=True)
            every = slice(None) if len(entries) == batch else list(entries)
            place = every, slice(None), slice(remainder, None, ranks)
            part = _attend(query._replace(q=q[place]), held, ranks, entries, seen)
            if n:  # the second run of keys of the same queries
                part = merge_partials([out[place], part[0]], [lse[place], part[1]])
            out[place], lse[place] = part
    return out, lse


def _attend(
    query: Query, held: Held, ranks: int, entries: tuple[int, ...], seen: tuple[View, ...]
) -> tuple[Array, Array]:
    """One call: the queries of some sequences, all of which see as many keys to both sides."""
    q, chosen = query.q, list(entries)
    left, right = (-1 if n == FAR else n for n in seen[0][1:3])
    lengths = [held.lengths[b] for b in entries]
    own = held._replace(table=held.table[chosen], lengths=lengths)
    slopes = None if query.slopes is None else query.slopes[chosen]
    out = np.empty((*q.shape[:3], held.pages.values.shape[3]), query.wide)
    asked = Asked(
        causal=right == 0,
        align=[view.offset for view in seen],
        scale=query.scale,
        mask=None,
        window=(left, right),
        softcap=query.softcap,
        alibi_slopes=None if slopes is None else slopes * ranks,
        sinks=None,
        layout="BHTD",
        out=out,
        return_lse=True,
    )
    lse = attend(own, q, asked)[1]
    if slopes is not None:  # the same for all keys of a row: its weights stay as they are
        off = np.array([view.shift for view in seen], np.float64)
        lse = (lse - (slopes * off[:, None])[:, :, None]).astype(query.wide)
    return out, lse


def join(
    comm: Any, out: Array, lse: Array, sinks: Array | None, dtype: np.dtype[Any]
) -> tuple[Array, Array]:
    """The results of all ranks joined in the order of the ranks: on every rank the same bits.

    The rows (sequence, head, query) are cut into W parts. Each rank joins one part, with the
    sinks, and sends it to all others: contexts in `dtype`, and the lse.
    """
    (batch, heads, tq), width = lse.shape, out.shape[3]
    rows = lse.size
    parts = [segments(rank, comm.size, rows, "contiguous") for rank in range(comm.size)]
    counts = np.array([sum(each.length for each in part) for part in parts])
    mine = int(counts[comm.rank])
    start = int(counts[: comm.rank].sum())

    partial = np.concatenate([out.reshape(rows, width), lse.reshape(rows, 1)], axis=1)
    came = np.empty((comm.size, mine, width + 1), partial.dtype)
    wait(
        [comm.Ialltoallv([partial, counts * (width + 1)], [came, [mine * (width + 1)] * comm.size])]
    )
    outs, lses = list(came[:, :, :width]), list(came[:, :, width])
    if sinks is not None:
        of_row = np.arange(start, start + mine) // max(tq, 1) % heads
        outs.append(np.zeros((mine, width), partial.dtype))
        lses.append(sinks[of_row].astype(partial.dtype))
    context, total = merge_partials(outs, lses)

    with np.errstate(all="ignore"):  # beyond the range of 16 bits: infinity, as in the core
        rounded = np.ascontiguousarray(context.astype(dtype))
    cut = width * dtype.itemsize
    packed = np.empty((mine, cut + total.itemsize), np.uint8)
    packed[:, :cut] = rounded.view(np.uint8)
    packed[:, cut:] = total[:, None].view(np.uint8)
    whole = np.empty((rows, packed.shape[1]), np.uint8)
    wait([comm.Iallgatherv(packed, [whole, counts * packed.shape[1]])])
    contexts = np.ascontiguousarray(whole[:, :cut]).view(dtype).reshape(batch, heads, tq, width)
    return contexts, np.ascontiguousarray(whole[:, cut:]).view(lse.dtype).reshape(lse.shape)
