"""Calls with options that the bindings read themselves, and calls that they leave to the checks.

``_core.attention_plain`` gives None for whatever it leaves to the checks. Either way a call has the
outcome that it has by way of the checks: the same result, or the same exception and text.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from helpers import Array, bits, dtype_of, make, make_qkv
from layouts import odd_address

import headway
from headway import _core

Operands = tuple[Any, Any, Any]
Options = dict[str, Any]

BATCH, HEADS = 2, 4
INF, NAN, MOST = np.inf, np.nan, 2**63 - 1


class Named(np.ndarray[Any, Any]):
    """An array of a class of its own."""


class Pair(NamedTuple):
    """A tuple of a class of its own."""

    left: int
    right: int


def operands(dtype: str = "float32", queries: int = 7, keys: int = 20) -> Operands:
    sizes: Any = {"batch": BATCH, "heads": (HEADS, 2), "tokens": (queries, keys)}
    return make_qkv(4, dtype, head_dim=8, value_dim=5, **sizes)


def plain(
    arrays: Operands, options: Options, causal: Any = True, tokens_first: bool = False
) -> Any:
    """Return what the bindings make of the call."""
    return _core.attention_plain(*arrays, causal, tokens_first, **options)


def outcome(arrays: Operands, options: Options, causal: Any, layout: str) -> tuple[Any, ...]:
    """Return the call's bits, dtype and shape, or the type and the text of its exception."""
    try:
        out = headway.attention(*arrays, causal=causal, layout=layout, **options)
    except (TypeError, ValueError, MemoryError) as error:
        return type(error), str(error)
    return bits(out).tobytes(), out.dtype, out.shape, out.flags.c_contiguous, out.flags.writeable


def checked(arrays: Operands, options: Options, causal: Any, layout: str) -> tuple[Any, ...]:
    """Return the outcome by way of the checks: a layout's name in a string of its own does it."""
    name = "".join(list(layout))
    assert name is not layout
    return outcome(arrays, options, causal, name)


def assert_one_way_or_the_other(
    arrays: Operands, options: Options, taken: bool | None, causal: Any = True
) -> None:
    """The bindings take the call, or not (None: either), with the outcome of the checks."""
    text = f"causal {causal}, {options}"
    for layout in ("BHTD", "BTHD"):
        laid_out = arrays
        if layout == "BTHD":
            q, k, v = (np.ascontiguousarray(x.swapaxes(1, 2)) for x in arrays)
            laid_out = q, k, v
        expected = checked(laid_out, options, causal, layout)
        out = plain(laid_out, options, causal, layout == "BTHD")
        assert taken is None or (out is not None) == taken, text
        assert outcome(laid_out, options, causal, layout) == expected, text
        if out is not None:
            got = bits(out).tobytes(), out.dtype, out.shape
            assert got == expected[:3], text


def assert_changes(arrays: Operands, options: Options, causal: bool = True) -> None:
    """The options make another result: else nothing is told by comparing."""
    without, out = plain(arrays, {}, causal), plain(arrays, options, causal)
    assert bits(without).tobytes() != bits(out).tobytes(), options


# Options that are taken ---------------------------------------------------------------------------

FAR = (1, 3, 10**6, 2**61 + 1, 2**62, MOST)
LIMITS = (-1, 0, 2, 2**61, 2**62 + 1, MOST)

#: Values that the bindings read, for float32 calls.
TAKEN: list[Options] = [
    *({"window": width} for width in FAR),
    *({"window": pair} for pair in product(LIMITS, repeat=2)),
    *({"softcap": cap} for cap in (0, 1, 2**53, 0.0, -0.0, 0.3, 1e300, 5e-324)),
    *({"alibi_slopes": np.full(HEADS, x)} for x in (0.0, -0.0, -0.5, 3e38, -3e38, 5e-324)),
    {"alibi_slopes": np.full(HEADS, 3.4028235e38)},
    {"sinks": np.full(HEADS, -1e300)},
    {"sinks": np.full(HEADS, -INF, np.float32)},
]


def sets_of_options(dtype: str, queries: int, keys: int) -> list[Options]:
    shape = BATCH, HEADS, queries, keys
    flags = np.random.default_rng(5).random(shape) < 0.7
    numbers = make(6, shape, dtype)
    numbers[~flags] = -INF
    slopes, slopes_of_each = make(7, (HEADS,), "float32"), 0.3 * make(8, (BATCH, HEADS))
    sinks = np.array([0.5, -INF, 2.0, -1.0])
    alone: list[Options] = [
        {"mask": flags},
        {"mask": numbers},
        {"window": 3},
        {"window": (2, 1)},
        {"softcap": 2},
        {"softcap": 0.7},
        {"alibi_slopes": slopes},
        {"alibi_slopes": slopes_of_each},
        {"sinks": sinks},
    ]
    several: Options = {"mask": flags, "window": 9, "softcap": 1.5, "sinks": sinks}
    others: Options = {"mask": numbers[:1], "alibi_slopes": slopes, "sinks": sinks}
    return [*alone, several, several | {"alibi_slopes": slopes_of_each}, others]


def made_mask(kind: str, shape: tuple[int, ...]) -> Array:
    """Return a mask that hides a third of the keys."""
    hidden = np.random.default_rng(9).random(shape) < 0.3
    if kind == "bool":
        return ~hidden
    mask = make(10, shape, kind)
    mask[hidden] = -INF
    return mask


# What is left to the checks -----------------------------------------------------------------------


def swapped(x: Array) -> Array:
    return x.astype(x.dtype.newbyteorder())


def left_masks() -> list[Any]:
    """Masks of a call of 7 queries and 20 keys that are not for the bindings to read."""
    flags = np.ones((1, 1, 7, 20), bool)
    numbers = flags.astype(np.float32)
    shapes: list[tuple[int, ...]]
    shapes = [(BATCH + 1, 1, 1, 1), (1, 2, 1, 1), (1, 1, 6, 20), (1, 1, 7, 19), (1, 1, 7, 40)]
    shapes += [(0, 1, 1, 1), (1, 1, 0, 1), (1, 1, 1, 0)]
    misfits = [np.ones(shape, kind) for shape in shapes for kind in (bool, np.float32)]
    of_other_axes = [x for m in (flags, numbers) for x in (m[0], m[0, 0], m[0, 0, 0], m[None])]
    kinds = ("i1", "u1", "i8", "O", "c8", "g", "U1", "M8[s]", "V2")
    of_other_kinds = [np.zeros(flags.shape, kind) for kind in kinds]
    others = [flags.view(Named), numbers.view(Named), np.ma.masked_array(numbers, ~flags)]
    others += [odd_address(numbers), odd_address(numbers.astype(np.float64))]
    others += [swapped(numbers.astype(kind)) for kind in ("f2", "f4", "f8")]
    no_arrays = [flags.tolist(), True, 1.0, "x"]
    return [*misfits, *of_other_axes, *of_other_kinds, *others, *no_arrays]


def left_numbers() -> list[Any]:
    """Slopes or sinks that are not for the bindings to read, in float32 calls."""
    ones = np.ones(HEADS)
    kinds = ("i8", "f2", dtype_of("bfloat16"), "g", "?", "c16", "O", "U1")
    arrays = [ones.astype(kind) for kind in kinds] + [swapped(ones), swapped(ones.astype("f4"))]
    arrays += [ones.view(Named), np.ma.masked_array(ones, ones > 2)]
    shapes = ((), (0,), (1,), (3,), (1, HEADS), (BATCH, 1), (HEADS, BATCH), (BATCH, HEADS, 1))
    arrays += [np.ones(shape) for shape in shapes]
    far = (NAN, INF, 1e39, 3.4028235677973366e38, np.float32(NAN), np.float32(INF))
    arrays += [np.array([0, 0, x, 0], np.asarray(x).dtype) for x in far]
    return [*arrays, [1.0, 2.0, 3.0, 4.0], (1, 2, 3, 4), 1, 0.5, np.float32(1), "1234", range(4)]


def left_options() -> list[Options]:
    integers = (0, -1, -(2**70), 2**63, 2**64, True, np.int64(3), np.True_, 2.0, NAN, "3", b"3")
    pairs = (
        Pair(2, 1),
        [2, 1],
        np.array([2, 1]),
        (np.int64(2), 1),
        (2, True),
        (2**63, 0),
        (0, -(2**70)),
        (2.0, 1),
    )
    others = ((), (1,), (1, 2, 3), (-2, 0), (0, -2), (None, 1), (0, 2**63), Pair(-2, 0), {1: 2})
    caps: list[Any] = [-1, -1.5, NAN, INF, -INF, True, Fraction(5, 2), 1j, "2"]
    caps += [2**53 + 1, MOST, 2**63, 10**400, -(2**63) - 1]
    cap_arrays = (np.float64(2), np.float32(2), np.int32(2), np.array(2.0), [2.0])
    each_batch = np.ones((BATCH, HEADS))
    return [
        *({"window": window} for window in (*integers, *pairs, *others)),
        *({"softcap": cap} for cap in (*caps, *cap_arrays)),
        *({"mask": mask} for mask in left_masks()),
        *({"alibi_slopes": numbers} for numbers in (*left_numbers(), np.full(HEADS, -INF))),
        *({"sinks": numbers} for numbers in (*left_numbers(), each_batch)),
    ]
