"""The slopes of ALiBi, the linear bias that weakens far keys."""

import operator

import numpy as np

from .arrays import Array
from .float_mode import UsualFloatMode

__all__ = ["alibi_slopes"]

_MOST_HEADS = 2**20


def alibi_slopes(num_heads: int) -> Array:
    """One slope for each head, for `alibi_slopes` of :func:`headway.attention`.

    For a power of two, head h of n has the slope ``2 ** (-8 * (h + 1) / n)``. For any other n, the
    first heads have the slopes of the next power of two below, and the others have every second
    slope of the power of two above, from its first on: those are none of the slopes of the first.

    Parameters
    ----------
    num_heads : int
        Number of query heads, at least 1.

    Returns
    -------
    ndarray, (num_heads,)
        Slopes between 0 and 1, float32, C-contiguous.

    Raises
    ------
    TypeError
        If `num_heads` is no int.
    ValueError
        If `num_heads` is below 1 or above 2**20.

    Notes
    -----
    The recipe is that of Press, Smith and Lewis, "Train Short, Test Long: Attention with Linear
    Biases Enables Input Length Extrapolation" (2022, arXiv:2108.12409), section 3, with their
    published program's rule for a number of heads that is no power of two.

    Examples
    --------
    >>> import headway
    >>> headway.alibi_slopes(4)
    array([0.25      , 0.0625    , 0.015625  , 0.00390625], dtype=float32)
    >>> headway.alibi_slopes(6)
    array([0.25      , 0.0625    , 0.015625  , 0.00390625, 0.5       ,
           0.125     ], dtype=float32)
    """
    try:
        if isinstance(num_heads, (bool, np.bool_)):
            raise TypeError
        count = operator.index(num_heads)
    except TypeError:
        raise TypeError(
            f"num_heads: expected an int, got {num_heads!r} ({type(num_heads).__name__}); "
            "pass the number of query heads"
        ) from None
    if not 1 <= count <= _MOST_HEADS:
        raise ValueError(
            f"num_heads: expected 1 to {_MOST_HEADS}, got {count}; pass the number of query heads"
        )
    power = 1 << (count.bit_length() - 1)  # the largest power of two that is not above the count
    below = np.arange(1, power + 1) * (8 / power)
    above = np.arange(1, 2 * (count - power), 2) * (8 / (2 * power))
    with UsualFloatMode():
        slopes: Array = np.exp2(-np.concatenate([below, above])).astype(np.float32)
    return slopes
