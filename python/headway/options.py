"""The options of a call that act on its scores: checked, and in one form for all who read them.

Order of work per score, the same in the reference and in the kernels: scale, soft cap, ALiBi, float
mask; then hiding (causal, window, lengths, bool mask, ``-inf``); then the softmax with its sinks;
then dropout.
"""

import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .arrays import Array, as_array, elementwise_readable, kind_of
from .checks import real_number
from .dropout import check_dropout

FAR = 2**62
"""A distance that no window ends at."""

MOST_NUMBERS = 2**24
"""So many numbers of one argument are made into a list, where the call does not say how many."""

_WINDOW = "a number of keys, 1 or more, or (left, right)"
_WINDOW_FIX = "pass e.g. window=128, or window=(127, 0); -1 in a pair means no limit"
_LENGTHS_FIX = "pass one int for each batch entry"
_NO_SINK = "pass -inf for a head without a sink"
_MASK_DTYPES = "bool, float32, float64, float16 or bfloat16"


class Options(NamedTuple):
    """What acts on the scores and weights of a call: batch B, heads H, queries Tq and keys Tk."""

    left: int = FAR  # keys before the query's own position that it sees; FAR: all
    right: int = FAR  # keys after it; 0 where causal
    lengths: list[int] | None = None  # (B): valid keys of each batch entry
    softcap: float = 0.0  # 0: none
    slopes: Array | None = None  # (B, H) float64, C-contiguous
    sinks: Array | None = None  # (H,) float64, C-contiguous; -inf: no sink
    mask: Array | None = None  # (B, H, Tq, Tk) view of the given one, stride 0 where broadcast
    mask_kind: str = ""  # "bool" (True: may attend) or the name of a float dtype (added)
    dropout: float = 0.0  # probability of a weight to be dropped, below 1
    seed: int = 0  # of the dropout, below 2**64


def check_options(
    shape: tuple[int, int, int, int],
    rank: int,
    kind: str,
    causal: bool,
    mask: Any,
    window: Any,
    softcap: Any,
    alibi_slopes: Any,
    sinks: Any,
    kv_lengths: Any,
    dropout: Any = 0.0,
    seed: Any = None,
) -> Options | None:
    """Check the options of a call whose scores have the shape (B, H, Tq, Tk); None: none given."""
    rate, number = check_dropout(dropout, seed)
    if (
        rate == 0.0
        and mask is None
        and window is None
        and softcap is None
        and alibi_slopes is None
        and sinks is None
        and kv_lengths is None
    ):
        return None
    batch, num_heads, _, tk = shape
    left, right = check_window(window, causal)
    lengths = None if kv_lengths is None else check_lengths(kv_lengths, batch, tk)
    cap = check_softcap(softcap)
    wide = np.dtype("float64" if kind == "float64" else "float32")
    slopes = None if alibi_slopes is None else check_slopes(alibi_slopes, batch, num_heads, wide)
    logits = None if sinks is None else check_sinks(sinks, num_heads, wide)
    view, mask_kind = (None, "") if mask is None else check_mask(mask, shape, rank)
    return Options(left, right, lengths, cap, slopes, logits, view, mask_kind, rate, number)


# Integers -----------------------------------------------------------------------------------------


def check_window(window: Any, causal: bool) -> tuple[int, int]:
    """(left, right): how many keys before and after its own position a query sees; FAR: all."""
    if window is None:
        return FAR, 0 if causal else FAR
    try:
        given = whole_numbers("window", window)
    except TypeError:
        raise TypeError(
            f"window: expected {_WINDOW}, got {window!r} ({type(window).__name__}); {_WINDOW_FIX}"
        ) from None
    if isinstance(given, int):
        if given < 1:
            raise ValueError(f"window: expected {_WINDOW}, got {given}; {_WINDOW_FIX}")
        left, right = given - 1, -1
    elif len(given) == 2:
        left, right = given
        if left < -1 or right < -1:
            raise ValueError(
                f"window: expected {_WINDOW} of -1 or more each, got ({left}, {right}); "
                f"{_WINDOW_FIX}"
            )
    else:
        raise ValueError(f"window: expected {_WINDOW}, got {len(given)} numbers; {_WINDOW_FIX}")
    left, right = (FAR if n == -1 else min(n, FAR) for n in (left, right))
    return left, 0 if causal else right


def check_lengths(lengths: Any, batch: int, tk: int) -> list[int]:
    """(B,) ints from 0 to Tk: the valid keys of each batch entry."""
    wanted = f"{batch} ints from 0 to {tk}, the valid keys of each batch entry"
    try:
        given = whole_numbers("kv_lengths", lengths, max(batch, MOST_NUMBERS))
        if isinstance(given, int):
            raise TypeError
    except TypeError:
        raise TypeError(
            f"kv_lengths: expected {wanted}, got {lengths!r} ({type(lengths).__name__}); "
            f"{_LENGTHS_FIX}"
        ) from None
    if len(given) != batch:
        raise ValueError(f"kv_lengths: expected {wanted}, got {len(given)} ints; {_LENGTHS_FIX}")
    for n, length in enumerate(given):
        if not 0 <= length <= tk:
            raise ValueError(
                f"kv_lengths: expected {wanted}, got {length} for entry {n}; "
                "pass at most the number of keys in k"
            )
    return given


def whole_numbers(name: str, value: Any, most: int = MOST_NUMBERS) -> int | list[int]:
    """An int, or a list of ints from a sequence or an array of one axis; else a TypeError.

    A ValueError where there are more than ``most`` of them, before a list is made.
    """
    given = value
    if hasattr(value, "__array__") or hasattr(value, "__dlpack__"):
        array = as_array(name, value)
        whole = array.dtype.kind in "iu" and array.ndim <= 1
        if whole:
            check_count(name, array, most)
        given = array.tolist() if whole else None
    if isinstance(given, Sequence) and not isinstance(given, (str, bytes, bytearray)):
        check_count(name, given, most)
        return [_integer(n) for n in given]
    return _integer(given)


def check_count(name: str, values: Any, most: int) -> None:
    """A sequence or an array has at most so many elements: it is about to be copied."""
    try:
        count = values.size if hasattr(values, "size") else len(values)
    except OverflowError:  # a range
        count = 2**63
    if count > most:
        raise ValueError(
            f"{name}: expected at most {most} numbers, got {count}; pass one for each entry"
        )


def _integer(value: Any) -> int:
    if isinstance(value, (bool, np.bool_)):
        raise TypeError
    return operator.index(value)


# Real numbers -------------------------------------------------------------------------------------


def check_softcap(softcap: Any) -> float:
    """The cap as a float, 0 where there is none."""
    if softcap is None:
        return 0.0
    cap = real_number("softcap", softcap)
    if not (math.isfinite(cap) and cap >= 0):
        raise ValueError(
            f"softcap: expected a finite number, 0 or more, got {cap}; pass None for no cap"
        )
    return cap


def check_slopes(slopes: Any, batch: int, num_heads: int, wide: np.dtype[Any]) -> Array:
    """(B, H) float64 from (H,) or (B, H) real numbers that are finite in the dtype ``wide``."""
    array = _real_numbers("alibi_slopes", slopes, batch * num_heads)
    if array.shape not in ((num_heads,), (batch, num_heads)):
        raise ValueError(
            f"alibi_slopes: expected shape ({num_heads},) or ({batch}, {num_heads}), one number "
            f"for each head, got {array.shape}; make them with headway.alibi_slopes({num_heads})"
        )
    if not np.isfinite(_rounded(array, wide)).all():
        raise ValueError(
            f"alibi_slopes: expected numbers that are finite in {wide.name}, got "
            f"{_first(array, ~np.isfinite(_rounded(array, wide)))}; "
            "pass 0 for a head without a bias"
        )
    return np.ascontiguousarray(np.broadcast_to(array, (batch, num_heads)))


def check_sinks(sinks: Any, num_heads: int, wide: np.dtype[Any]) -> Array:
    """(H,) float64; -inf is no sink, anything else is finite in the dtype ``wide``."""
    array = _real_numbers("sinks", sinks, num_heads)
    if array.shape != (num_heads,):
        raise ValueError(
            f"sinks: expected shape ({num_heads},), one number for each head, got {array.shape}; "
            f"{_NO_SINK}"
        )
    wrong = ~(_rounded(array, wide) < np.inf)
    if wrong.any():
        raise ValueError(
            f"sinks: expected -inf or numbers that are finite in {wide.name}, got "
            f"{_first(array, wrong)}; {_NO_SINK}"
        )
    return array


def _real_numbers(name: str, values: Any, most: int) -> Array:
    """A new float64 array from an array of any real dtype, or from a sequence of numbers."""
    most = max(most, MOST_NUMBERS)
    fix = f"convert with np.asarray({name}, np.float32)"
    if isinstance(values, Sequence) and not isinstance(values, (str, bytes, bytearray)):
        check_count(name, values, most)
        try:
            array = np.asarray(values)
        except ValueError:  # rows of several lengths
            raise TypeError(
                f"{name}: expected real numbers on one or two axes, got {values!r}; {fix}"
            ) from None
    else:
        array = as_array(name, values)
    dtype = array.dtype
    real = np.issubdtype(dtype, np.floating) or np.can_cast(dtype, np.float64)
    if dtype == np.bool_ or not real:
        raise TypeError(f"{name}: expected real numbers, got {dtype.name}; {fix}")
    check_count(name, array, most)
    with np.errstate(all="ignore"):  # a long double may pass the range
        return array.astype(np.float64, order="C")


def _rounded(array: Array, wide: np.dtype[Any]) -> Array:
    with np.errstate(all="ignore"):
        return array.astype(wide)


def _first(array: Array, wrong: Array) -> Any:
    return array[wrong][0]


# Masks --------------------------------------------------------------------------------------------


def check_mask(mask: Any, shape: tuple[int, int, int, int], rank: int) -> tuple[Array, str]:
    """A (B, H, Tq, Tk) view of a bool or float mask, and the name of its dtype.

    The view costs no memory: an axis that was broadcast has the stride 0. Where the core cannot
    read the mask as it lies, the mask as given is copied, never the broadcast one.
    """
    if not (hasattr(mask, "__array__") or hasattr(mask, "__dlpack__")):
        raise TypeError(
            f"mask: expected an array of {_MASK_DTYPES}, got {type(mask).__name__}; "
            "convert with np.asarray(mask)"
        )
    array = as_array("mask", mask)
    kind = "bool" if array.dtype == np.bool_ else _float_kind(array)
    wanted = shape[4 - rank :]
    try:
        view = np.broadcast_to(elementwise_readable(array), wanted)
    except ValueError:
        axes = ", ".join(("batch", "heads", "queries", "keys")[4 - rank :])
        raise ValueError(
            f"mask: expected a shape that broadcasts to {wanted}, ({axes}), got {array.shape}; "
            "put axes of length 1 where it is the same for all, as in mask[:, None, None, :]"
        ) from None
    return view[(None,) * (4 - rank)], kind


def _float_kind(mask: Array) -> str:
    dtype = mask.dtype
    if dtype.name not in ("float32", "float64", "float16", "bfloat16"):
        if dtype.kind in "iu":
            fix = "convert with mask.astype(bool), True where the query may attend"
        elif dtype.kind == "c":
            fix = "convert with mask.real"
        else:
            fix = "convert with mask.astype(bool) or mask.astype(np.float32)"
        raise TypeError(f"mask: expected {_MASK_DTYPES}, got {dtype.name}; {fix}")
    return kind_of("mask", mask)
