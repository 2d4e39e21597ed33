"""Rotary position embedding: queries and keys turned by angles that tell where they stand."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from . import _core
from .arrays import (
    Array,
    ArrayInput,
    Integers,
    as_array,
    empty_result,
    is_readable,
    readable,
    with_four_axes,
)
from .frequencies import DEFAULT_BASE
from .rotary_calls import check_rotary

__all__ = ["rotary_embedding"]


def rotary_embedding(
    x: ArrayInput,
    positions: int | Integers,
    *,
    base: float = DEFAULT_BASE,
    interleaved: bool = False,
    rotary_dim: int | None = None,
    scaling: Mapping[str, Any] | None = None,
    layout: str = "BHTD",
    out: Array | None = None,
) -> Array:
    """Rotary position embedding: pairs of numbers of each row, turned by position * frequency.

    Queries and keys are turned before :func:`attention`; their products then depend on how far
    apart they stand, not on where. Values stay as they are.

    Parameters
    ----------
    x : array, (B, H, T, D)
        Queries or keys; float32, float64, float16 or bfloat16. Also (H, T, D), or (T, D) for one
        head. D is at least 2; every other size may be 0.
    positions : int, or integers, (T,) or (B, T)
        Where the tokens stand, in any integer dtype, in any order, negative ones too. An int is the
        position of the first token, which the others follow.
    base : float, default 10000.0
        A finite number of at least 1; "rope_theta" of model configurations. Pair i of `rotary_dim`
        / 2 has the frequency ``base ** (-2 * i / rotary_dim)``, in radians per position.
    interleaved : bool, default False
        Which numbers make a pair. False: number i and number i + rotary_dim / 2 (Llama, GPT-NeoX).
        True: number 2 * i and number 2 * i + 1 (GPT-J, RoFormer).
    rotary_dim : int, optional
        How many numbers of a row are turned, the first ones: even, 2 to D. The others are copied.
        The default is D.
    scaling : dict, optional
        How frequencies change for contexts longer than those a model was trained on: what a model's
        configuration has under "rope_scaling" or "rope_parameters". "rope_type" (or "type") is
        "default", "linear", "llama3" or "yarn"; see the notes for the other keys.
    layout : {"BHTD", "BTHD"}, default "BHTD"
        Order of the axes of x and the result. In "BTHD" they are (B, T, H, D), or (T, H, D).
    out : ndarray, optional
        Array that takes the result: the shape of x; its dtype, or float32 for 16-bit x (the result
        unrounded); any strides. It may be x itself, which is then turned in place; otherwise it
        overlaps neither an input nor itself.

    Returns
    -------
    ndarray
        x, turned, in its shape, layout and dtype, C-contiguous; or `out` itself.

    Raises
    ------
    TypeError
        If x or out is no array or of another dtype, positions are no integers, or another argument
        is of a wrong kind.
    ValueError
        If a shape, the base, rotary_dim or layout is wrong, scaling has an unknown or missing key,
        or out is read-only or overlaps an input or itself without being x.
    MemoryError
        If there is no memory for the result.

    Notes
    -----
    A pair (a, b) at angle t becomes ``(a cos t - b sin t, b cos t + a sin t)``: Su et al.,
    "RoFormer" (2021, arXiv:2104.09864), section 3.2.2, whose pairs are the interleaved ones.

    Recipes, with f for the frequency that `base` gives:

    * "linear" (Chen et al., 2023, arXiv:2306.15595): f / factor.
    * "llama3" (the program published with Llama 3.1): a pair that turns less than low_freq_factor
      times within original_max_position_embeddings has f / factor, one that turns more than
      high_freq_factor times keeps f, with a line between the two along the number of turns.
    * "yarn" (Peng et al., 2023, arXiv:2309.00071, section 3): the same with beta_slow (1 if not
      given) and beta_fast (32) turns and a line along the numbers of the pairs, whose ends are
      whole numbers unless truncate is False. Cosines and sines are multiplied by attention_factor;
      if it is not given, by 0.1 ln(factor) + 1, or with mscale m and mscale_all_dim n by
      (0.1 m ln(factor) + 1) / (0.1 n ln(factor) + 1).

    Every recipe may have "rope_theta", which takes the place of `base` where that is left at its
    default and must equal it otherwise, and "partial_rotary_factor", from which rotary_dim follows.

    Frequencies and angles are computed in float64, also at large positions (from 2**53 on a
    position is rounded to float64), and their cosines and sines rounded once to the type of the
    sums: float64 for float64, else float32. Products and sums are made in it without fused steps,
    and the result is rounded once to the dtype of x. A row's bits depend on nothing but the row,
    its position and the options: neither on the instruction set, the number of threads or the
    strides, nor on whether `out` is x.

    Memory: the result; for each thread at most 16 KiB and 48 bytes for each pair. An x or an `out`
    whose last axis is not contiguous costs a temporary array of its size.

    Examples
    --------
    >>> import numpy as np
    >>> import headway
    >>> x = np.array([[1, 0, 1, 0], [1, 0, 1, 0]], np.float32)  # (T, D): pairs (1, 1) and (0, 0)
    >>> headway.rotary_embedding(x, 0)  # positions 0 and 1: cos 1 - sin 1, cos 1 + sin 1
    array([[ 1.        ,  0.        ,  1.        ,  0.        ],
           [-0.30116868,  0.        ,  1.3817732 ,  0.        ]], dtype=float32)

    One more token of each of two sequences, which have 5 and 9 tokens already, in place:

    >>> q = np.ones((2, 8, 1, 64), np.float32)
    >>> headway.rotary_embedding(q, np.array([[5], [9]]), out=q) is q
    True

    A model's own recipe:

    >>> scaling = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0,
    ...            "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    ...            "original_max_position_embeddings": 8192}
    >>> headway.rotary_embedding(np.ones((8, 100, 64)), 0, scaling=scaling).shape
    (8, 100, 64)
    """
    call = check_rotary(x, positions, base, interleaved, rotary_dim, scaling, layout, out)
    given, x4, kind, neighbours, where, first, (frequencies, factor) = call
    if out is None:
        result = empty_result(given.shape, given.dtype)
        filled = place = with_four_axes(result, layout)
        out_kind = kind
    else:
        result = out
        place = with_four_axes(as_array("out", out), layout)
        filled = place if is_readable(place) else empty_result(place.shape, place.dtype)
        out_kind = "float32" if out.dtype == np.float32 else kind
    if x4.size:
        x4 = readable(x4)
        _core.rotary_embedding(
            x4, filled, kind, out_kind, where, first, frequencies, factor, neighbours
        )
        if filled is not place:
            place[...] = filled
    return result
