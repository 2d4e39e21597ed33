"""The dropout of a call, checked."""

import math
import numbers
import operator
from typing import Any

import numpy as np

_SEED = "an int from 0 to 2**64 - 1"


def check_dropout(dropout: Any, seed: Any) -> tuple[float, int]:
    """Return the probability of a weight to be dropped, and the seed, 0 where none is given."""
    if type(dropout) is float and dropout == 0.0 and seed is None:
        return 0.0, 0
    rate, number = _rate(dropout), None if seed is None else _seed(seed)
    if rate > 0.0 and number is None:
        raise ValueError(
            f"seed: expected {_SEED} with dropout={rate}, got None; "
            "pass e.g. seed=0, and another one for every call that is to drop others"
        )
    return rate, number or 0


def _rate(dropout: Any) -> float:
    if isinstance(dropout, (bool, np.bool_)) or not isinstance(dropout, numbers.Real):
        raise TypeError(
            "dropout: expected a real number, 0 or more and below 1, got "
            f"{dropout!r} ({type(dropout).__name__}); pass 0.0 for none"
        )
    try:
        rate = float(dropout)
    except OverflowError:
        rate = math.inf
    if not 0.0 <= rate < 1.0:
        raise ValueError(
            f"dropout: expected a number, 0 or more and below 1, got {rate}; "
            "pass the probability of a weight to be dropped"
        )
    return rate


def _seed(seed: Any) -> int:
    try:
        number = None if isinstance(seed, (bool, np.bool_)) else operator.index(seed)
    except TypeError:
        number = None
    if number is None:
        raise TypeError(
            f"seed: expected {_SEED}, got {seed!r} ({type(seed).__name__}); convert with int(seed)"
        )
    if not 0 <= number < 2**64:
        raise ValueError(f"seed: expected {_SEED}, got {number}; pass e.g. seed % 2**64")
    return number
