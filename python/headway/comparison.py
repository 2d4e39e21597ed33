"""How far a result is from what it should be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def relative_error(got: Array, wanted: Array) -> float:
    """Largest difference over the largest number wanted; infinite at NaN or another shape.

    Infinities and NaN have to stand where they are wanted.
    """
    if got.shape != wanted.shape:
        return math.inf
    found, expected = got.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(expected)
    same = np.array_equal(found[~finite], expected[~finite], equal_nan=True)
    if not same or not np.isfinite(found[finite]).all():
        return math.inf
    if not finite.any():
        return 0.0
    scale = float(np.abs(expected[finite]).max())
    return float(np.abs(found[finite] - expected[finite]).max()) / (scale if scale > 0 else 1.0)
