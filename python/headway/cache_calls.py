"""Attention of queries to what a cache holds: the call, checked, and its result."""

from typing import Any, NamedTuple

import numpy as np

from . import _core
from .arrays import (
    Align,
    Array,
    ArrayInput,
    Numbers,
    Window,
    as_array,
    empty_result,
    head_first,
    is_readable,
    readable,
    result_shape,
    with_four_axes,
)
from .cache_pages import Pages
from .calls import given_arrays
from .checks import check_align, check_flag, check_layout, check_out, check_scale
from .options import FAR, Options, check_options


class Held(NamedTuple):
    """What a cache holds for one call: B sequences, whose keys lie in pages."""

    pages: Pages
    table: Array  # (B, n) int64, C-contiguous: key j lies in page table[b, (j // P) % n]
    lengths: list[int]  # (B): tokens of each sequence, the overwritten ones of a ring included
    entries: str  # what there is one query block for: "sequence of the cache", "id"
    window: int = 0  # keys that a query of a ring sees; 0: no ring
    oldest: list[int] | None = None  # (B): the first key of each sequence that a ring still has


class Asked(NamedTuple):
    """The arguments of a call of ``attend`` but the queries, as they were given."""

    causal: bool
    align: Align
    scale: float | None
    mask: ArrayInput | None
    window: Window | None
    softcap: float | None
    alibi_slopes: Numbers | None
    sinks: Numbers | None
    layout: str
    out: Array | None
    return_lse: bool


def attend(held: Held, q: Any, asked: Asked) -> Array | tuple[Array, Array]:
    """What :meth:`headway.KVCache.attend` returns."""
    causal, align, factor, mask, window, softcap, slopes, sinks, layout, out, return_lse = asked
    pages, table, lengths = held.pages, held.table, held.lengths
    if causal is not True and causal is not False:
        check_flag("causal", causal)
    if return_lse is not True and return_lse is not False:
        check_flag("return_lse", return_lse)
    if type(layout) is not str or (layout != "BHTD" and layout != "BTHD"):
        check_layout(layout)
    given, q4, kind = queries(held, q, layout)
    batch, num_heads, tq, _ = q4.shape
    tk = max(lengths, default=0)
    scale = None if factor is None else check_scale(factor)
    if isinstance(align, str) and align == "end":
        offsets = [length - tq for length in lengths]
    else:
        place = check_align(align, batch, tq, tk)
        offsets = place if isinstance(place, list) else [place] * batch
    kernel_kind = "float32" if pages.quantised else kind
    act = (mask, window, softcap, slopes, sinks, None)
    options = check_options((batch, num_heads, tq, tk), given.ndim, kernel_kind, bool(causal), *act)
    options = _of_cache(held, options, window, bool(causal))
    if held.window and tq:
        _check_stored(held, offsets, options.left, tq)

    width = pages.values.shape[3]
    shape = result_shape(given.ndim, layout, batch, num_heads, tq, width)
    if out is None:
        result = empty_result(shape, given.dtype)
        out_kind = kind
    else:
        inputs = {"q": q4, **given_arrays(mask=mask, alibi_slopes=slopes, sinks=sinks)}
        check_out(out, shape, given.dtype, kind, inputs)
        result = out
        out_kind = "float32" if out.dtype == np.float32 else kind
    view = with_four_axes(as_array("out", result), layout)
    filled = view
    if pages.quantised and kind != "float32":
        q4 = q4.astype(np.float32)
        if out_kind != "float32":
            filled = empty_result(view.shape, np.float32)
        out_kind = "float32"
    else:
        q4 = readable(q4)
    if not is_readable(filled):
        filled = empty_result(view.shape, view.dtype)
    wide = np.float64 if kind == "float64" else np.float32
    lse = empty_result(q4.shape[:3], wide) if return_lse else None
    if q4.size:
        _core.attention_cached(
            q4,
            filled,
            lse,
            kernel_kind,
            out_kind,
            scale,
            bool(causal),
            offsets,
            options,
            pages.keys,
            pages.values,
            pages.kind,
            pages.key_scales,
            pages.value_scales,
            table,
            tk,
        )
    if filled is not view:
        with np.errstate(all="ignore"):  # beyond the range of 16 bits: infinity, as in the core
            view[...] = filled
    return result if lse is None else (result, head_first(lse, given.ndim))


def queries(held: Held, q: Any, layout: str) -> tuple[Array, Array, str]:
    """q as an array, as a (B, H, Tq, D) view, and the name of its dtype."""
    pages, batch = held.pages, len(held.lengths)
    array = as_array("q", q)
    kind = pages.checked_source("q", array) if array.dtype != pages.dtype else pages.kind
    if not 2 <= array.ndim <= 4:
        fix = "add axes, e.g. q[None, :]" if array.ndim < 2 else "reshape it"
        axes = ", ".join(layout)
        raise ValueError(
            f"q: expected 2, 3 or 4 axes, up to ({axes}), got shape {array.shape}; {fix}"
        )
    q4 = with_four_axes(array, layout)
    if q4.shape[0] != batch:
        raise ValueError(
            f"q: expected batch {batch}, one entry for each {held.entries}, got {q4.shape[0]} in "
            f"shape {array.shape}; pass the queries of all of them"
        )
    kv_heads, head_dim = pages.keys.shape[1], pages.keys.shape[3]
    if q4.shape[3] != head_dim:
        raise ValueError(
            f"q: expected head_dim {head_dim} like the cache, got {q4.shape[3]} in shape "
            f"{array.shape}; make the last axis of q as long as that of the keys"
        )
    if q4.shape[1] % kv_heads:
        raise ValueError(
            f"q: expected a number of heads that the {kv_heads} heads of the cache divide, got "
            f"{q4.shape[1]} in shape {array.shape}; pass equally many heads for each key head"
        )
    return array, q4, kind


def _of_cache(held: Held, options: Options | None, window: Any, causal: bool) -> Options:
    """The options with the lengths, and the window of a ring, which none may exceed."""
    right = 0 if causal else FAR
    if options is None:
        return Options(held.window - 1 if held.window else FAR, right, held.lengths)
    if not held.window:
        return options._replace(lengths=held.lengths)
    if window is None:
        return options._replace(lengths=held.lengths, left=held.window - 1)
    if options.left >= held.window:
        got = "no limit" if options.left == FAR else f"{options.left + 1} keys"
        raise ValueError(
            f"window: expected at most the {held.window} keys of the cache's window, got {got}; "
            "pass a narrower one, None for the cache's, or make a cache with a wider window"
        )
    return options._replace(lengths=held.lengths)


def _check_stored(held: Held, offsets: list[int], left: int, tq: int) -> None:
    """A ring still has every key that a query sees."""
    for b, (offset, oldest) in enumerate(zip(offsets, held.oldest or (), strict=True)):
        first = max(offset - left, 0)
        if first < oldest:
            slots = held.pages.keys.shape[2]
            raise ValueError(
                f"q: expected queries that see keys from {oldest} on, which a ring of {slots} "
                f"slots still has of entry {b}, got {tq} queries that see keys from {first} on; "
                "attend after each piece, with its own queries, or make a cache with a larger "
                "capacity"
            )
