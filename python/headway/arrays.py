"""Arrays as they come in: what is accepted, how it is viewed, and when it has to be copied."""

import math
import sys
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from . import _core
from .available import ALWAYS_THERE, available_bytes

Array = np.ndarray[Any, Any]


class SupportsArray(Protocol):
    """An object that makes itself a NumPy array."""

    def __array__(self) -> Array: ...


class SupportsDLPack(Protocol):
    """An array of another library that lends its memory by DLPack."""

    def __dlpack__(self) -> Any: ...


ArrayInput = Array | SupportsArray | SupportsDLPack
Align = str | int | np.integer[Any] | Sequence[int] | Array
Window = int | np.integer[Any] | Sequence[int] | Array
Integers = Sequence[int] | ArrayInput
Numbers = Sequence[float] | ArrayInput

_ndarray = np.ndarray
_KIND_NAMES = ("float32", "float64", "float16", "bfloat16")
_MOST_WORK: Any = 100_000  # candidates that may be tried when two arrays lie in one piece of memory
known_kinds: dict[np.dtype[Any], str] = {}  # native dtypes met so far; bfloat16 enters by its name


def is_masked(x: Any) -> bool:
    """Is it an array with a mask? There is none while NumPy has not loaded its module of them."""
    masked = sys.modules.get("numpy.ma")
    return masked is not None and isinstance(x, masked.MaskedArray)


def as_array(name: str, x: Any) -> Array:
    """``x`` as a plain ndarray, without a copy if it is one or lends its memory.

    Raises
    ------
    TypeError
        If ``x`` is no array and offers neither ``__dlpack__`` nor ``__array__``, or is masked.
    """
    if type(x) is _ndarray:
        return x
    if isinstance(x, _ndarray):
        if is_masked(x):
            raise TypeError(
                f"{name}: expected an array without a mask, got a masked array; "
                f"convert with {name}.filled(0)"
            )
        return x.view(_ndarray)
    reason: Exception | None = None
    for method, convert in (("__dlpack__", np.from_dlpack), ("__array__", np.asarray)):
        if hasattr(x, method):
            try:
                array: Array = convert(x)
                return array
            except (AttributeError, BufferError, RuntimeError, TypeError, ValueError) as error:
                reason = error
    got = type(x).__name__
    if reason is None:
        raise TypeError(
            f"{name}: expected a NumPy array or an object with __dlpack__ or __array__, got {got}; "
            f"convert with np.asarray({name}, dtype=np.float32)"
        )
    raise TypeError(
        f"{name}: expected an array that NumPy can read, got {got} ({reason}); "
        "convert it to a NumPy array first"
    ) from reason


def kind_of(name: str, x: Array) -> str:
    """The dtype's name: "float32", "float64", "float16" or "bfloat16".

    Raises
    ------
    TypeError
        For any other dtype, and for one that is not in native byte order.
    """
    dtype = x.dtype
    kind = known_kinds.get(dtype)
    if kind is not None:
        return kind
    kind = str(dtype.name)
    if kind not in _KIND_NAMES:
        fix = f"{name}.real" if dtype.kind == "c" else f"{name}.astype(np.float32)"
        raise TypeError(
            f"{name}: expected float32, float64, float16 or bfloat16, got {kind}; "
            f"convert with {fix}"
        )
    if not dtype.isnative:
        raise TypeError(
            f"{name}: expected native byte order, got byte-swapped {kind} ({dtype.str}); "
            f"convert with {name}.astype({name}.dtype.newbyteorder('='))"
        )
    known_kinds[dtype] = kind
    return kind


def dtype_text(kind: str, like: str = "q") -> str:
    """How a reader would write the dtype in code: "np.float32"; "q.dtype" for bfloat16."""
    return f"{like}.dtype" if kind == "bfloat16" else f"np.{kind}"


# Views and copies ---------------------------------------------------------------------------------


def with_four_axes(x: Array, layout: str) -> Array:
    """A (B, H, T, D) view of an array of rank 2, 3 or 4 in the named layout."""
    if x.ndim == 2:
        return x[None, None]
    if layout == "BTHD":
        x = x.swapaxes(-3, -2)
    return x if x.ndim == 4 else x[None]


def result_shape(
    rank: int, layout: str, batch: int, num_heads: int, num_tokens: int, width: int
) -> tuple[int, ...]:
    """Shape of a result in the rank and the layout of q."""
    if rank == 2:
        return num_tokens, width
    if layout == "BTHD":
        return (batch, num_tokens, num_heads, width)[4 - rank :]
    return (batch, num_heads, num_tokens, width)[4 - rank :]


def head_first(x: Array, rank: int) -> Array:
    """From (B, H, ...) to the rank of q: 3-D input has no batch axis, 2-D input no head axis."""
    if rank == 4:
        return x
    view: Array = x[0] if rank == 3 else x[0, 0]
    return view


def empty_result(shape: tuple[int, ...], dtype: Any) -> Array:
    """A new array for a result. A large one begins with a cache line.

    Raises
    ------
    MemoryError
        If it does not fit in memory, or not even in what NumPy can count.
    """
    try:
        result: Array = _core.new_array(shape, np.dtype(dtype))
        if result.nbytes <= ALWAYS_THERE or result.nbytes <= available_bytes():
            return result
        raise MemoryError  # the system promises more than it has, and ends the process later
    except (MemoryError, ValueError):
        size = math.prod(shape) * np.dtype(dtype).itemsize
        raise MemoryError(
            f"result: expected a size that fits in memory, got shape {shape} of "
            f"{np.dtype(dtype).name}, {size / 2**30:.3g} GiB; compute it in parts"
        ) from None


def is_readable(x: Array) -> bool:
    """Can the core use (B, H, T, D) ``x`` where it lies?

    It can if the last axis is contiguous, the other strides are whole multiples of the item size
    (0 and negative included), and the address is aligned. Of an empty array nothing is read.
    """
    item = x.itemsize
    s0, s1, s2, s3 = x.strides
    # item is a power of two: one bit test tells whether all three strides are multiples of it.
    if s3 == item or x.shape[3] <= 1:
        return not (s0 | s1 | s2) & (item - 1) and x.flags.aligned
    return x.size == 0


def rows_are_readable(x: Array) -> bool:
    """The same for an array of one or more axes."""
    item = x.itemsize
    *outer, last = x.strides
    if last == item or x.shape[-1] <= 1:
        together = 0
        for stride in outer:
            together |= stride
        return not together & (item - 1) and x.flags.aligned
    return x.size == 0


def readable(x: Array) -> Array:
    """``x`` itself where the core can read it, else a copy; an axis of stride 0 is copied once."""
    if rows_are_readable(x):
        return x
    once = [slice(0, 1 if s == 0 else None) for s in x.strides[:-1]]
    return np.broadcast_to(np.array(x[(*once, slice(None))], order="C"), x.shape)


def elementwise_readable(x: Array) -> Array:
    """``x`` where its elements lie whole and aligned, in any order, else a copy.

    An axis of stride 0 is copied once.
    """
    together = 0
    for stride in x.strides:
        together |= stride
    if not together & (x.itemsize - 1) and x.flags.aligned:
        return x
    once = tuple(slice(0, 1 if s == 0 else None) for s in x.strides)
    return np.broadcast_to(np.array(x[once], order="C"), x.shape)


# Memory that is used twice ------------------------------------------------------------------------


def share_memory(a: Array, b: Array) -> bool:
    """Have the two a byte in common? What cannot be told in bounded time counts as yes."""
    if not np.may_share_memory(a, b):
        return False
    try:
        return np.shares_memory(a, b, max_work=_MOST_WORK)
    except np.exceptions.TooHardError:
        return True


def overlaps_itself(x: Array) -> bool:
    """Do two elements have a byte in common? What cannot be told in bounded time counts as yes."""
    if x.size <= 1 or x.flags.c_contiguous:
        return False
    steps = sorted((abs(s), n) for s, n in zip(x.strides, x.shape, strict=True) if n > 1)
    extent = x.itemsize  # bytes up to the end of the last element, one axis more at a time
    nested = True
    for stride, length in steps:
        nested = nested and stride >= extent
        extent += stride * (length - 1)
    if nested:
        return False
    if x.size > 2**20 or steps[0][0] == 0:
        return True
    places = np.zeros(1, dtype=np.int64)
    for stride, length in steps:
        places = np.add.outer(places, stride * np.arange(length)).ravel()
    places.sort()
    return bool((np.diff(places) < x.itemsize).any())
