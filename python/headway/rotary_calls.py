"""What a call of the rotary embedding is given, checked before any work is done."""

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .arrays import (
    Array,
    as_array,
    elementwise_readable,
    empty_result,
    kind_of,
    known_kinds,
    with_four_axes,
)
from .available import ALWAYS_THERE
from .checks import check_flag, check_layout, check_out
from .frequencies import Turning, turning_of
from .options import MOST_NUMBERS, check_count

_BHTD = "BHTD"
_INT64 = np.dtype(np.int64)
_FAR = 2**62  # so that the positions of the tokens after it are int64 too
_FIX = "pass where the tokens stand, e.g. np.arange(num_tokens) + num_past_tokens"


class RotaryCall(NamedTuple):
    """A checked call."""

    x: Array  # as it came
    x4: Array  # (B, H, T, D)
    kind: str
    interleaved: bool
    positions: Array | None  # (T,) or (B, T) int64
    first: int  # without positions: that of the first token
    turning: Turning


def check_rotary(
    x: Any,
    positions: Any,
    base: Any,
    interleaved: Any,
    rotary_dim: Any,
    scaling: Any,
    layout: Any,
    out: Any,
) -> RotaryCall:
    """Check the arguments of a call, and view them as the core reads them."""
    if type(x) is not np.ndarray:
        x = as_array("x", x)
    kind = known_kinds.get(x.dtype) or kind_of("x", x)
    if interleaved is not False and interleaved is not True:
        check_flag("interleaved", interleaved)
    if layout is not _BHTD:
        check_layout(layout)
    if not 2 <= x.ndim <= 4:
        fix = "add axes, e.g. x[None, :]" if x.ndim < 2 else "reshape it"
        axes = ", ".join(layout)
        raise ValueError(f"x: expected 2, 3 or 4 axes, up to ({axes}), got shape {x.shape}; {fix}")
    x4 = x if x.ndim == 4 and layout is _BHTD else with_four_axes(x, layout)
    batch, _, num_tokens, head_dim = x4.shape
    if head_dim < 2:
        raise ValueError(
            f"x: expected a head_dim (last axis) of at least 2, got {head_dim} in shape {x.shape}; "
            "a pair of numbers is turned"
        )
    if out is None and x.nbytes > ALWAYS_THERE:
        empty_result(x.shape, x.dtype)  # frequencies of a row that fits nowhere are not made
    turning = turning_of(head_dim, base, rotary_dim, scaling)
    where, first = check_positions(positions, batch, num_tokens)
    if out is not None:
        inputs = {} if _same_elements(out, x) else {"x": x}
        if hasattr(positions, "__array__") or hasattr(positions, "__dlpack__"):
            inputs["positions"] = as_array("positions", positions)
        check_out(out, x.shape, x.dtype, kind, inputs, like="x")
    return RotaryCall(x, x4, kind, bool(interleaved), where, first, turning)


def check_positions(positions: Any, batch: int, num_tokens: int) -> tuple[Array | None, int]:
    """(T,) or (B, T) int64, and 0; or None, and the position of the first token."""
    if type(positions) is np.ndarray:
        array = positions
    elif hasattr(positions, "__array__") or hasattr(positions, "__dlpack__"):
        array = as_array("positions", positions)
    elif isinstance(positions, Sequence) and not isinstance(positions, (str, bytes, bytearray)):
        check_count("positions", positions, max(num_tokens, MOST_NUMBERS))
        array = _as_integers(positions)
    else:
        return None, _first_position(positions)
    if array.dtype.kind not in "iu":
        raise TypeError(
            f"positions: expected an int or an array of integers, got {array.dtype.name}; "
            "convert with positions.astype(np.int64)"
        )
    if array.ndim == 0:
        return None, _first_position(array[()])
    if array.shape not in ((num_tokens,), (batch, num_tokens)):
        raise ValueError(
            f"positions: expected an int, shape ({num_tokens},) or ({batch}, {num_tokens}), one "
            f"for each token, got {array.shape}; {_FIX}"
        )
    if array.dtype != _INT64:
        if array.dtype.kind == "u" and array.dtype.itemsize == 8 and array.size:
            _first_position(array.max())
        array = array.astype(_INT64)
    return elementwise_readable(array), 0


def _as_integers(positions: Sequence[Any]) -> Array:
    """A sequence of ints, or of equally long sequences of ints; an empty one holds no others."""
    try:
        array = np.asarray(positions)
    except ValueError:
        raise ValueError(
            f"positions: expected equally many for each batch entry, got rows of unequal lengths; "
            f"{_FIX}"
        ) from None
    return array if array.size else array.astype(_INT64)


def _first_position(position: Any) -> int:
    """An int that leaves room for the positions after it."""
    try:
        if isinstance(position, (bool, np.bool_)):
            raise TypeError
        value = operator.index(position)
    except TypeError:
        raise TypeError(
            f"positions: expected an int or an array of integers, got {position!r} "
            f"({type(position).__name__}); {_FIX}"
        ) from None
    if abs(value) > _FAR:
        raise ValueError(f"positions: expected -2**62 to 2**62, got {value}; {_FIX}")
    return value


def _same_elements(out: Any, x: Array) -> bool:
    """Is `out` x itself, or the same elements in the same places?"""
    return out is x or (
        isinstance(out, np.ndarray)
        and (out.dtype, out.shape, out.strides) == (x.dtype, x.shape, x.strides)
        and out.__array_interface__["data"][0] == x.__array_interface__["data"][0]
    )
