"""Explained argument checks: what a call may be given, and the text that says what is wrong.

Every check runs before any work is done. ``TypeError`` is raised for kinds of objects and dtypes,
``ValueError`` for shapes, ranges and names; the text names the argument, what was wanted, what
came, and how to put it right.
"""

import math
import numbers
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from .arrays import (
    Array,
    as_array,
    dtype_text,
    is_masked,
    is_readable,
    kind_of,
    known_kinds,
    overlaps_itself,
    share_memory,
    with_four_axes,
)

_ndarray = np.ndarray
_FAR = 2**62  # a key position further away than this means the same, and sums with it fit in int64


# Arrays -------------------------------------------------------------------------------------------


def plain_operands(q: Any, k: Any, v: Any) -> tuple[Array, Array, Array, str, int] | None:
    """The everyday call in few steps; None where anything needs a closer look."""
    if type(q) is not _ndarray or type(k) is not _ndarray or type(v) is not _ndarray:
        return None
    dtype = q.dtype
    kind = known_kinds.get(dtype)
    if kind is None or k.dtype != dtype or v.dtype != dtype:
        return None
    q_shape, k_shape, v_shape = q.shape, k.shape, v.shape
    if len(q_shape) != 4 or len(k_shape) != 4 or len(v_shape) != 4:
        return None
    batch, num_heads, _, head_dim = q_shape
    num_kv_heads = k_shape[1]
    if (
        k_shape[:3] != v_shape[:3]
        or k_shape[0] != batch
        or k_shape[3] != head_dim
        or head_dim == 0
        or num_kv_heads == 0
        or num_heads % num_kv_heads
    ):
        return None
    if is_readable(q) and is_readable(k) and is_readable(v):
        return q, k, v, kind, 4
    return None


def explained_operands(q: Any, k: Any, v: Any, layout: str) -> tuple[Array, Array, Array, str, int]:
    """Any call, step by step: arrays in any rank to (B, H, T, D) views, or the reason why not."""
    same = v is k
    q = as_array("q", q)
    kind = kind_of("q", q)
    if not 2 <= q.ndim <= 4:
        fix = "add axes, e.g. q[None, :]" if q.ndim < 2 else "reshape it"
        axes = ", ".join(layout)
        raise ValueError(f"q: expected 2, 3 or 4 axes, up to ({axes}), got shape {q.shape}; {fix}")
    k = as_array("k", k)
    check_like("k", k, q)
    v = k if same else as_array("v", v)
    if not same:
        check_like("v", v, q)
    q4, k4, v4 = with_four_axes(q, layout), with_four_axes(k, layout), with_four_axes(v, layout)

    batch, num_heads, _, head_dim = q4.shape
    num_kv_heads, tk = k4.shape[1:3]
    if head_dim == 0:
        raise ValueError(
            f"q: expected a head_dim (last axis) of at least 1, got 0 in shape {q.shape}; "
            "drop empty heads before the call"
        )
    for name, x, x4 in (("k", k, k4), ("v", v, v4)):
        if x4.shape[0] != batch:
            raise ValueError(
                f"{name}: expected batch {batch} like q, got {x4.shape[0]} in shape {x.shape}; "
                f"pass one entry for each of q, e.g. with np.broadcast_to({name}, ...)"
            )
    if k4.shape[3] != head_dim:
        raise ValueError(
            f"k: expected head_dim {head_dim} like q, got {k4.shape[3]} in shape {k.shape}; "
            "make the last axis of q and k equally long"
        )
    if num_heads and num_kv_heads == 0:
        raise ValueError(
            f"k: expected at least 1 head for the {num_heads} heads of q, got 0 in shape "
            f"{k.shape}; pass one key head for each group of query heads"
        )
    if num_heads and num_heads % num_kv_heads:
        raise ValueError(
            f"k: expected a number of heads that divides the {num_heads} heads of q, got "
            f"{num_kv_heads} in shape {k.shape}; pass one key head for each group of query heads"
        )
    if v4.shape[1] != num_kv_heads:
        raise ValueError(
            f"v: expected {num_kv_heads} heads like k, got {v4.shape[1]} in shape {v.shape}; "
            "pass one value head for each key head"
        )
    if v4.shape[2] != tk:
        raise ValueError(
            f"v: expected {tk} tokens like k, got {v4.shape[2]} in shape {v.shape}; "
            "pass one value for each key"
        )
    return q4, k4, v4, kind, q.ndim


def check_like(name: str, x: Array, q: Array) -> None:
    """``x`` has the dtype and the rank of q."""
    kind = kind_of(name, x)
    if x.dtype != q.dtype:
        wanted = known_kinds[q.dtype]
        raise TypeError(
            f"{name}: expected {wanted} like q, got {kind}; "
            f"convert with {name}.astype({dtype_text(wanted)})"
        )
    if x.ndim != q.ndim:
        raise ValueError(
            f"{name}: expected {q.ndim} axes like q, got {x.ndim} in shape {x.shape}; "
            "give q, k and v the same axes"
        )


# Options ------------------------------------------------------------------------------------------


def check_flag(name: str, value: Any) -> None:
    """``value`` is True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(
            f"{name}: expected True or False, got {value!r} ({type(value).__name__}); "
            f"convert with bool({name})"
        )


def _check_name(name: str, value: Any, names: tuple[str, ...]) -> None:
    *first, last = (f'"{each}"' for each in names)
    wanted = f"{', '.join(first)} or {last}"
    if not isinstance(value, str):
        raise TypeError(
            f"{name}: expected {wanted}, got {type(value).__name__}; pass one of these names"
        )
    if value not in names:
        raise ValueError(f"{name}: expected {wanted}, got {value!r}; pass one of these names")


def check_layout(layout: Any) -> None:
    """``layout`` is "BHTD" or "BTHD"."""
    _check_name("layout", layout, ("BHTD", "BTHD"))


def check_stage(stage: Any) -> None:
    """``stage`` is "scaled", "capped" or "masked"."""
    _check_name("stage", stage, ("scaled", "capped", "masked"))


def real_number(name: str, value: Any) -> float:
    """``value`` as a float, infinite where it is too large for one."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise TypeError(
            f"{name}: expected a real number or None, got {value!r} ({type(value).__name__}); "
            f"convert with float({name})"
        )
    try:
        return float(value)
    except OverflowError:
        return math.inf


def check_scale(scale: Any) -> float:
    """``scale`` as a float: any finite real number."""
    factor = real_number("scale", scale)
    if not math.isfinite(factor):
        raise ValueError(
            f"scale: expected a finite number, got {factor}; pass None for 1/sqrt(head_dim)"
        )
    return factor


def check_align(
    align: Any, batch: int, tq: int, tk: int, each: str = "batch entry"
) -> int | list[int]:
    """Key position of query 0: one for all batch entries, or one for each."""
    wanted = f'"end", "start", an int or {batch} ints (one for each {each})'
    fix = "pass the key position at which query 0 stands"
    if isinstance(align, str):
        if align not in ("end", "start"):
            raise ValueError(f"align: expected {wanted}, got {align!r}; {fix}")
        return tk - tq if align == "end" else 0
    given = align
    if hasattr(align, "__array__"):  # NumPy's integers and arrays, and those of other libraries
        array = np.asarray(align)
        whole = array.dtype.kind in "iu" and not is_masked(align)
        if whole and array.ndim > 1:
            raise ValueError(f"align: expected {wanted}, got shape {array.shape}; {fix}")
        if whole and array.ndim == 1 and array.size != batch:  # before a list is made of it
            raise ValueError(f"align: expected {wanted}, got {array.size} ints; {fix}")
        given = array.tolist() if whole else None  # None is refused like anything else
    try:
        if not isinstance(given, Sequence) or isinstance(given, (bytes, bytearray)):
            return _position(given)
        if isinstance(given, range) and given[batch:]:  # as long as it may be
            raise ValueError(f"align: expected {wanted}, got {given}; {fix}")
        positions = [_position(n) for n in given]
    except TypeError:
        got = f"{align!r} ({type(align).__name__})"
        raise TypeError(f"align: expected {wanted}, got {got}; {fix}") from None
    if len(positions) != batch:
        raise ValueError(f"align: expected {wanted}, got {len(positions)} ints; {fix}")
    return positions


def _position(value: Any) -> int:
    if isinstance(value, (bool, np.bool_)):
        raise TypeError
    return max(-_FAR, min(_FAR, operator.index(value)))


# Output -------------------------------------------------------------------------------------------


def check_out(
    out: Any,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    kind: str,
    inputs: dict[str, Array],
    like: str = "q",
) -> None:
    """``out`` can take a result of this shape and dtype, that of ``like``, in memory of its own."""
    fix = f"make it with np.empty({shape}, {dtype_text(kind, like)})"
    if type(out) is not _ndarray and (not isinstance(out, _ndarray) or is_masked(out)):
        got = type(out).__name__
        raise TypeError(f"out: expected a NumPy array without a mask, got {got}; {fix}")
    wide = kind in ("float16", "bfloat16") and out.dtype == np.float32
    if out.dtype != dtype and not wide:
        wanted = f"{kind} like {like}" + ("" if kind in ("float32", "float64") else ", or float32")
        got = out.dtype.name if out.dtype.isnative else f"byte-swapped {out.dtype.name}"
        raise TypeError(f"out: expected {wanted}, got {got}; {fix}")
    if out.shape != shape:
        raise ValueError(f"out: expected shape {shape}, got {out.shape}; {fix}")
    if not out.flags.writeable:
        raise ValueError(f"out: expected a writeable array, got a read-only one; {fix}")
    for other, x in inputs.items():
        if share_memory(out, x):
            raise ValueError(
                "out: expected memory that no input uses, got an array that overlaps "
                f"{other}; {fix}"
            )
    if overlaps_itself(out):
        raise ValueError(
            "out: expected a place in memory for each element, got an array whose elements "
            f"overlap (strides {out.strides}); {fix}"
        )
