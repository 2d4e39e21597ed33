"""rotary_embedding: what it refuses, and how it says so."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import Array

import headway

F32 = np.float32


def zeros(*shape: int, dtype: Any = F32) -> Array:
    return np.zeros(shape, dtype)


X = zeros(2, 3, 4, 8)
SHARED = zeros(40)
INTEGERS = np.zeros(4, np.int64)
FIX = "pass where the tokens stand, e.g. np.arange(num_tokens) + num_past_tokens"
NEW_OUT = "make it with np.empty((2, 3, 4, 8), np.float32)"
BASE_FIX = "pass the rope_theta of the model, or 10000.0"
DIM = "rotary_dim: expected an even int from 2 to head_dim, which is 8, got"
DIM_FIX = "pass how many numbers of each row are rotated, or None for all"

REFUSED: dict[str, tuple[type[Exception], Any, Any, dict[str, Any], str]] = {
    "list": (
        TypeError, [[1.0]], 0, {},
        "x: expected a NumPy array or an object with __dlpack__ or __array__, got list; "
        "convert with np.asarray(x, dtype=np.float32)",
    ),
    "integers": (
        TypeError, zeros(2, 4, dtype="i8"), 0, {},
        "x: expected float32, float64, float16 or bfloat16, got int64; "
        "convert with x.astype(np.float32)",
    ),
    "one axis": (
        ValueError, zeros(8), 0, {},
        "x: expected 2, 3 or 4 axes, up to (B, H, T, D), got shape (8,); "
        "add axes, e.g. x[None, :]",
    ),
    "five axes": (
        ValueError, zeros(1, 1, 1, 1, 8), 0, {"layout": "BTHD"},
        "x: expected 2, 3 or 4 axes, up to (B, T, H, D), got shape (1, 1, 1, 1, 8); reshape it",
    ),
    "one number": (
        ValueError, zeros(3, 1), 0, {},
        "x: expected a head_dim (last axis) of at least 2, got 1 in shape (3, 1); "
        "a pair of numbers is turned",
    ),
    "odd head_dim": (
        ValueError, zeros(3, 7), 0, {},
        "x: expected an even head_dim (last axis), got 7; "
        "pass rotary_dim=6 to leave the last number of each row as it is",
    ),
    "float positions": (
        TypeError, X, zeros(4), {},
        "positions: expected an int or an array of integers, got float32; "
        "convert with positions.astype(np.int64)",
    ),
    "bool positions": (
        TypeError, X, [True] * 4, {},
        "positions: expected an int or an array of integers, got bool; "
        "convert with positions.astype(np.int64)",
    ),
    "one float": (
        TypeError, X, 1.0, {},
        f"positions: expected an int or an array of integers, got 1.0 (float); {FIX}",
    ),
    "one bool": (
        TypeError, X, True, {},
        f"positions: expected an int or an array of integers, got True (bool); {FIX}",
    ),
    "text": (
        TypeError, X, "0123", {},
        f"positions: expected an int or an array of integers, got '0123' (str); {FIX}",
    ),
    "too many positions": (
        ValueError, X, np.arange(5), {},
        "positions: expected an int, shape (4,) or (2, 4), one for each token, got (5,); " + FIX,
    ),
    "another batch": (
        ValueError, X, np.zeros((1, 4), int), {},
        "positions: expected an int, shape (4,) or (2, 4), one for each token, got (1, 4); " + FIX,
    ),
    "unequal rows": (
        ValueError, X, [[1, 2, 3, 4], [1]], {},
        "positions: expected equally many for each batch entry, got rows of unequal lengths; "
        + FIX,
    ),
    "far away": (
        ValueError, X, 2**62 + 1, {},
        f"positions: expected -2**62 to 2**62, got {2**62 + 1}; {FIX}",
    ),
    "unsigned": (
        ValueError, X, np.full(4, 2**63, np.uint64), {},
        f"positions: expected -2**62 to 2**62, got {2**63}; {FIX}",
    ),
    "base 0.5": (
        ValueError, X, 0, {"base": 0.5},
        f"base: expected a finite number of at least 1, got 0.5; {BASE_FIX}",
    ),
    "base nan": (
        ValueError, X, 0, {"base": float("nan")},
        f"base: expected a finite number of at least 1, got nan; {BASE_FIX}",
    ),
    "base too large": (
        ValueError, X, 0, {"base": 10**400},
        f"base: expected a finite number of at least 1, got inf; {BASE_FIX}",
    ),
    "base None": (
        TypeError, X, 0, {"base": None},
        f"base: expected a real number, got None (NoneType); {BASE_FIX}",
    ),
    "base True": (
        TypeError, X, 0, {"base": True},
        f"base: expected a real number, got True (bool); {BASE_FIX}",
    ),
    "interleaved": (
        TypeError, X, 0, {"interleaved": 1},
        "interleaved: expected True or False, got 1 (int); convert with bool(interleaved)",
    ),
    "rotary_dim odd": (ValueError, X, 0, {"rotary_dim": 3}, f"{DIM} 3; {DIM_FIX}"),
    "rotary_dim 0": (ValueError, X, 0, {"rotary_dim": 0}, f"{DIM} 0; {DIM_FIX}"),
    "rotary_dim wide": (ValueError, X, 0, {"rotary_dim": 10}, f"{DIM} 10; {DIM_FIX}"),
    "rotary_dim float": (TypeError, X, 0, {"rotary_dim": 4.0}, f"{DIM} 4.0 (float); {DIM_FIX}"),
    "rotary_dim bool": (TypeError, X, 0, {"rotary_dim": True}, f"{DIM} True (bool); {DIM_FIX}"),
    "layout": (
        ValueError, X, 0, {"layout": "THD"},
        'layout: expected "BHTD" or "BTHD", got \'THD\'; pass one of these names',
    ),
    "out shape": (
        ValueError, X, 0, {"out": zeros(2, 3, 4, 6)},
        f"out: expected shape (2, 3, 4, 8), got (2, 3, 4, 6); {NEW_OUT}",
    ),
    "out float64": (
        TypeError, X, 0, {"out": zeros(2, 3, 4, 8, dtype="f8")},
        f"out: expected float32 like x, got float64; {NEW_OUT}",
    ),
    "out bfloat16": (
        TypeError, X, 0, {"out": zeros(2, 3, 4, 8, dtype=ml_dtypes.bfloat16)},
        f"out: expected float32 like x, got bfloat16; {NEW_OUT}",
    ),
    "out list": (
        TypeError, X, 0, {"out": [1.0]},
        f"out: expected a NumPy array without a mask, got list; {NEW_OUT}",
    ),
    "out read-only": (
        ValueError, np.broadcast_to(zeros(8), (2, 3, 4, 8)), 0,
        {"out": np.broadcast_to(zeros(8), (2, 3, 4, 8))},
        f"out: expected a writeable array, got a read-only one; {NEW_OUT}",
    ),
    "out shifted": (
        ValueError, SHARED[:32].reshape(4, 8), 0, {"out": SHARED[8:].reshape(4, 8)},
        "out: expected memory that no input uses, got an array that overlaps x; "
        "make it with np.empty((4, 8), np.float32)",
    ),
    "out reversed": (
        ValueError, X, 0, {"out": X[:, ::-1]},
        "out: expected memory that no input uses, got an array that overlaps x; " + NEW_OUT,
    ),
    "out is positions": (
        ValueError, zeros(4, 2), INTEGERS, {"out": INTEGERS.view(F32).reshape(4, 2)},
        "out: expected memory that no input uses, got an array that overlaps positions; "
        "make it with np.empty((4, 2), np.float32)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("function", [headway.rotary_embedding, headway.reference.rotary_embedding])
@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str, function: Any) -> None:
    error, x, positions, options, text = REFUSED[name]
    with pytest.raises(error) as caught:
        function(x, positions, **options)
    assert str(caught.value) == text


def test_x_that_overlaps_itself_is_not_turned_in_place() -> None:
    rolling = np.lib.stride_tricks.as_strided(zeros(30), (3, 8), (8, 4))
    with pytest.raises(ValueError, match="elements overlap"):
        headway.rotary_embedding(rolling, 0, out=rolling)


def test_options_are_keywords() -> None:
    with pytest.raises(TypeError, match="positional"):
        headway.rotary_embedding(X, 0, 10000.0)  # type: ignore[misc]
