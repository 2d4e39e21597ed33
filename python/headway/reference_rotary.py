"""Rotary position embedding in plain NumPy: the oracle, re-exported by :mod:`headway.reference`."""

from typing import Any

import numpy as np

from .arrays import Array, with_four_axes
from .frequencies import DEFAULT_BASE
from .rotary_calls import check_rotary

__all__ = ["rotary_embedding"]


@np.errstate(all="ignore")
def rotary_embedding(
    x: Any,
    positions: Any,
    *,
    base: float = DEFAULT_BASE,
    interleaved: bool = False,
    rotary_dim: int | None = None,
    scaling: Any = None,
    layout: str = "BHTD",
    out: Array | None = None,
) -> Array:
    """Pairs of numbers of each row turned by position * frequency, in float64 inside.

    Parameters
    ----------
    x, positions, base, interleaved, rotary_dim, scaling, layout, out
        As in :func:`headway.rotary_embedding`.

    Returns
    -------
    ndarray, (B, H, T, D)
        x, turned, in its shape, layout and dtype, or `out` itself.

    Raises
    ------
    TypeError, ValueError
        As in :func:`headway.rotary_embedding`.

    Notes
    -----
    Su et al., "RoFormer" (2021, arXiv:2104.09864), section 3.2.2. Memory: several arrays of the
    size of x in float64.

    Examples
    --------
    >>> import numpy as np
    >>> from headway import reference
    >>> reference.rotary_embedding(np.array([[1.0, 0.0]]), 0)
    array([[1., 0.]])
    >>> np.round(reference.rotary_embedding(np.array([[1.0, 0.0]]), 1), 3)  # cos 1, sin 1
    array([[0.54 , 0.841]])
    """
    call = check_rotary(x, positions, base, interleaved, rotary_dim, scaling, layout, out)
    frequencies, factor = call.turning
    where = call.positions
    if where is None:
        where = call.first + np.arange(call.x4.shape[2])
    angles = where[..., None] * frequencies  # (T, pairs) or (B, T, pairs)
    if angles.ndim == 3:
        angles = angles[:, None]  # the same for all heads

    rows = call.x4.astype(np.float64)
    count = 2 * frequencies.size
    if interleaved:
        a, b = rows[..., 0:count:2], rows[..., 1:count:2]
    else:
        a, b = rows[..., : count // 2], rows[..., count // 2 : count]
    cosines, sines = factor * np.cos(angles), factor * np.sin(angles)
    turned = a * cosines - b * sines, b * cosines + a * sines
    a[...], b[...] = turned

    result = np.empty_like(call.x, order="C") if out is None else out
    with_four_axes(np.asarray(result), layout)[...] = rows
    return result
