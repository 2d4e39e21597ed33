"""Which rows of a sequence a rank holds, and arrays cut and joined that way."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from ..arrays import Array, ArrayInput, as_array

SHARDINGS = ("zigzag", "contiguous", "striped")


class Segment(NamedTuple):
    """Some rows of a rank: `length` positions from `first` on, `stride` apart."""

    start: int  # the first of them among the rank's rows
    length: int
    first: int  # its position in the whole sequence
    stride: int  # 1, or the number of ranks where striped


def check_sharding(sharding: Any) -> str:
    """``sharding`` is one of the three names."""
    wanted = '"zigzag", "contiguous" or "striped"'
    if not isinstance(sharding, str):
        raise TypeError(
            f"sharding: expected {wanted}, got {type(sharding).__name__}; pass one of these names"
        )
    if sharding not in SHARDINGS:
        raise ValueError(f"sharding: expected {wanted}, got {sharding!r}; pass one of these names")
    return sharding


def segments(rank: int, size: int, num_tokens: int, sharding: str) -> tuple[Segment, ...]:
    """The rows of a rank in the order in which it holds them; empty segments are left out."""
    if sharding == "striped":
        count = len(range(rank, num_tokens, size))
        found = [Segment(0, count, rank, size)]
    else:
        zigzag = sharding == "zigzag"
        parts = 2 * size if zigzag else size
        found, start = [], 0
        for part in (rank, parts - 1 - rank) if zigzag else (rank,):
            short, longer = divmod(num_tokens, parts)  # the first `longer` parts have one row more
            first = part * short + min(part, longer)
            count = short + (part < longer)
            found.append(Segment(start, count, first, 1))
            start += count
    return tuple(each for each in found if each.length)


def rows_of(rank: int, size: int, num_tokens: int, sharding: str) -> int:
    """How many rows a rank holds."""
    return sum(each.length for each in segments(rank, size, num_tokens, sharding))


def positions(rank: int, size: int, num_tokens: int, *, sharding: str = "zigzag") -> Array:
    """The positions in the whole sequence of the rows that a rank holds, in its order.

    Parameters
    ----------
    rank : int from 0 to size - 1
        The rank.
    size : int, 1 or more
        Number of ranks, W.
    num_tokens : int, 0 or more
        Length T of the whole sequence; any, not only multiples of W.
    sharding : {"zigzag", "contiguous", "striped"}, default "zigzag"
        "zigzag": of 2 W pieces rank r holds pieces r and 2 W - 1 - r, in this order, so that under
        a causal mask every rank has the same work. "contiguous": of W pieces it holds piece r.
        Pieces are cut as by ``np.array_split``: the first T % pieces have one row more. "striped":
        rows r, r + W, r + 2 W and so on.

    Returns
    -------
    ndarray, (n,) of int64
        The n positions; n may be 0.

    Raises
    ------
    TypeError, ValueError
        If an argument is no int or no name, or out of range.

    Notes
    -----
    Sources. Contiguous: Liu et al., "Ring Attention with Blockwise Transformers" (2023,
    arXiv:2310.01889). Striped: Brandon et al., "Striped Attention" (2023, arXiv:2311.09431).
    Zigzag, as "load balanced sharding": Yang et al., "Context Parallelism for Scalable
    Million-Token Inference" (2024, arXiv:2411.01783), section 3.5.1.

    Examples
    --------
    >>> from headway.distributed import positions
    >>> [positions(rank, 2, 9).tolist() for rank in range(2)]
    [[0, 1, 2, 7, 8], [3, 4, 5, 6]]
    >>> [positions(rank, 2, 9, sharding="striped").tolist() for rank in range(2)]
    [[0, 2, 4, 6, 8], [1, 3, 5, 7]]
    """
    name = check_sharding(sharding)
    count = _size("num_tokens", num_tokens, 0, "pass the length of the whole sequence")
    each = segments(*_place(rank, size), count, name)
    runs = [s.first + s.stride * np.arange(s.length, dtype=np.int64) for s in each]
    return np.concatenate(runs) if runs else np.zeros(0, np.int64)


def shard(
    x: ArrayInput, rank: int, size: int, *, sharding: str = "zigzag", axis: int = -2
) -> Array:
    """A rank's rows of an array that holds the whole sequence.

    Parameters
    ----------
    x : array
        The tokens along `axis`: q, k or v, token ids, positions, a gradient; any dtype.
    rank : int from 0 to size - 1
        The rank.
    size : int, 1 or more
        Number of ranks.
    sharding : {"zigzag", "contiguous", "striped"}, default "zigzag"
        See :func:`positions`.
    axis : int, default -2
        The axis of the tokens: -2 in (B, H, T, D), -3 in (B, T, H, D).

    Returns
    -------
    ndarray
        ``x`` with the rank's rows along `axis`; new and C-contiguous.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind or out of range.

    Notes
    -----
    Memory: the result. Layouts and sources: :func:`positions`.

    Examples
    --------
    >>> import numpy as np
    >>> from headway.distributed import shard, unshard
    >>> x = np.arange(8).reshape(8, 1)
    >>> shard(x, 0, 2).ravel()
    array([0, 1, 6, 7])
    >>> unshard([shard(x, rank, 2) for rank in range(2)]).ravel()
    array([0, 1, 2, 3, 4, 5, 6, 7])
    """
    name = check_sharding(sharding)
    rank, size = _place(rank, size)
    array = as_array("x", x)
    along = check_axis(axis, array)
    count = rows_of(rank, size, array.shape[along], name)
    result = np.empty(_with_rows(array, along, count), array.dtype)
    for each in segments(rank, size, array.shape[along], name):
        _rows(result, along, slice(each.start, each.start + each.length))[...] = _rows(
            array, along, _taken(each)
        )
    return result


def unshard(parts: Iterable[ArrayInput], *, sharding: str = "zigzag", axis: int = -2) -> Array:
    """The whole array from the rows of every rank: the inverse of :func:`shard`.

    Parameters
    ----------
    parts : sequence of arrays
        The rows of rank 0, 1 and so on, of one dtype and, but for `axis`, one shape.
    sharding : {"zigzag", "contiguous", "striped"}, default "zigzag"
        See :func:`positions`.
    axis : int, default -2
        The axis of the tokens.

    Returns
    -------
    ndarray
        The rows of all parts in the order of the sequence; new and C-contiguous.

    Raises
    ------
    TypeError
        If a part is no array, or has another dtype than the first one.
    ValueError
        If there is no part, or one has another shape than `shard` gives.

    Notes
    -----
    Memory: the result.

    Examples
    --------
    >>> from headway.distributed import shard, unshard
    >>> import numpy as np
    >>> x = np.arange(5).reshape(5, 1)
    >>> parts = [shard(x, rank, 3, sharding="striped") for rank in range(3)]
    >>> unshard(parts, sharding="striped").ravel()
    array([0, 1, 2, 3, 4])
    """
    name = check_sharding(sharding)
    if isinstance(parts, np.ndarray) or not isinstance(parts, Iterable):
        raise TypeError(
            f"parts: expected a sequence of arrays, got {type(parts).__name__}; "
            "pass the rows of every rank, e.g. [first, second]"
        )
    arrays = [as_array(f"parts[{i}]", part) for i, part in enumerate(parts)]
    if not arrays:
        raise ValueError("parts: expected one array for each rank, got none; pass their rows")
    first = arrays[0]
    along = check_axis(axis, first)
    for i, x in enumerate(arrays):
        if x.dtype != first.dtype:
            raise TypeError(
                f"parts[{i}]: expected {first.dtype.name} like parts[0], got {x.dtype.name}; "
                f"convert with parts[{i}].astype(parts[0].dtype)"
            )
        if x.ndim != first.ndim or _with_rows(x, along, 0) != _with_rows(first, along, 0):
            raise ValueError(
                f"parts[{i}]: expected {first.shape} like parts[0] but for axis {axis}, got "
                f"{x.shape}; pass what shard gave"
            )
    counts = [x.shape[along] for x in arrays]
    check_rows(counts, name, "parts")
    result = np.empty(_with_rows(first, along, sum(counts)), first.dtype)
    for rank, x in enumerate(arrays):
        for each in segments(rank, len(arrays), sum(counts), name):
            own = _rows(x, along, slice(each.start, each.start + each.length))
            _rows(result, along, _taken(each))[...] = own
    return result


# Checks -------------------------------------------------------------------------------------------


def check_rows(counts: list[int], sharding: str, argument: str) -> None:
    """The ranks hold as many rows as the sharding of their sum gives them."""
    total = sum(counts)
    wanted = [rows_of(rank, len(counts), total, sharding) for rank in range(len(counts))]
    wrong = [rank for rank, count in enumerate(counts) if count != wanted[rank]]
    if wrong:
        shown = ", ".join(f"{counts[r]} for {wanted[r]} on rank {r}" for r in wrong[:4])
        more = "" if len(wrong) <= 4 else f" and {len(wrong) - 4} ranks more"
        raise ValueError(
            f"{argument}: expected the rows that sharding={sharding!r} gives {len(counts)} ranks "
            f"of {total} tokens, got {shown}{more}; cut with headway.distributed.shard"
        )


def check_axis(axis: Any, x: Array) -> int:
    """``axis`` counted from 0."""
    try:
        given = operator.index(axis)
    except TypeError:
        raise TypeError(
            f"axis: expected an int, got {axis!r} ({type(axis).__name__}); "
            "pass -2 for (B, H, T, D), -3 for (B, T, H, D)"
        ) from None
    if not -x.ndim <= given < x.ndim:
        raise ValueError(
            f"axis: expected an axis of x with shape {x.shape}, got {given}; "
            "pass -2 for (B, H, T, D), -3 for (B, T, H, D)"
        )
    return given % x.ndim


def _place(rank: Any, size: Any) -> tuple[int, int]:
    ranks = _size("size", size, 1, "pass the number of ranks, comm.size")
    own = _size("rank", rank, 0, "pass comm.rank")
    if own >= ranks:
        raise ValueError(f"rank: expected 0 to {ranks - 1}, got {own}; pass comm.rank")
    return own, ranks


def _size(name: str, value: Any, least: int, fix: str) -> int:
    if isinstance(value, (bool, np.bool_)) or not hasattr(value, "__index__"):
        raise TypeError(f"{name}: expected an int, got {value!r} ({type(value).__name__}); {fix}")
    number = operator.index(value)
    if number < least:
        raise ValueError(f"{name}: expected {least} or more, got {number}; {fix}")
    return number


# Rows ---------------------------------------------------------------------------------------------


def _taken(each: Segment) -> slice:
    return slice(each.first, each.first + each.stride * (each.length - 1) + 1, each.stride)


def _rows(x: Array, along: int, rows: slice) -> Array:
    view: Array = x[(slice(None),) * along + (rows,)]
    return view


def _with_rows(x: Array, along: int, count: int) -> tuple[int, ...]:
    return (*x.shape[:along], count, *x.shape[along + 1 :])
