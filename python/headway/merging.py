"""Attention over disjoint sets of keys, joined: for caches and sequences in several pieces."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from .arrays import Array, ArrayInput, as_array, dtype_text, empty_result, kind_of
from .checks import check_layout
from .float_mode import UsualFloatMode


def merge_partials(
    outs: Iterable[ArrayInput], lses: Iterable[ArrayInput], *, layout: str = "BHTD"
) -> tuple[Array, Array]:
    """Join the results of attention over disjoint sets of keys.

    Each part is what ``attention(..., return_lse=True)`` gave for the same queries and some of the
    keys; the result is what it gives for all of them.

    Parameters
    ----------
    outs : sequence of arrays, (B, H, Tq, Dv)
        Contexts of the parts, one at least: one shape, one dtype, float32, float64, float16 or
        bfloat16. Also (H, Tq, Dv), or (Tq, Dv) for one head. Parts in float32 (``out=`` of 16-bit
        inputs) lose nothing to rounding.
    lses : sequence of arrays, (B, H, Tq)
        Their log-sum-exps, as many as `outs`, float32 or float64, all in one dtype; head-first in
        every layout.
    layout : {"BHTD", "BTHD"}, default "BHTD"
        Order of the axes of `outs` and the result. In "BTHD" they are (B, T, H, D), or (T, H, D).

    Returns
    -------
    out : ndarray
        The contexts over all keys, in the shape, layout and dtype of `outs`; C-contiguous.
    lse : ndarray, (B, H, Tq)
        Their log-sum-exps, in the dtype of `lses`.

    Raises
    ------
    TypeError
        If `outs` or `lses` is no sequence of arrays, or a dtype is wrong or differs from the first.
    ValueError
        If there is no part, the numbers of outs and lses differ, or a shape or the layout is wrong.
    MemoryError
        If the result does not fit in memory.

    Notes
    -----
    ``lse = log(sum_p exp(lse_p))`` and ``out = sum_p exp(lse_p - lse) * out_p``: Dao et al.,
    "FlashAttention" (2022), section 3.1; Liu et al., "Ring Attention" (2023). Computed in float64
    in the order of the parts, then rounded to the dtypes.

    A part in which a row saw nothing (``lse`` of ``-inf``) is neutral for that row, whatever its
    `out` holds: one part beside empty ones keeps its bits. A row that is empty in all of them has
    context 0 and ``-inf``. A NaN in a part's `lse` makes its row NaN. A sink is part of the lse:
    give it to one part only.

    Memory: three arrays of the result's size in float64.

    Examples
    --------
    >>> import numpy as np
    >>> import headway
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 2, 8, 16))  # (H, T, D)
    >>> whole, whole_lse = headway.attention(q, k, v, causal=False, return_lse=True)
    >>> first = headway.attention(q, k[:, :5], v[:, :5], causal=False, return_lse=True)
    >>> second = headway.attention(q, k[:, 5:], v[:, 5:], causal=False, return_lse=True)
    >>> out, lse = headway.merge_partials(*zip(first, second))
    >>> bool(np.allclose(out, whole)), bool(np.allclose(lse, whole_lse))
    (True, True)
    """
    check_layout(layout)
    contexts = _arrays("outs", outs)
    sums = _arrays("lses", lses)
    if len(contexts) != len(sums):
        raise ValueError(
            f"lses: expected {len(contexts)} arrays, one for each of outs, got {len(sums)}; "
            "pass each part's out and lse"
        )
    _check_alike("outs", contexts)
    _check_alike("lses", sums)
    wanted = _lse_shape(contexts[0], layout)
    if sums[0].shape != wanted:
        raise ValueError(
            f"lses[0]: expected shape {wanted} for outs of {contexts[0].shape} in {layout!r}, got "
            f"{sums[0].shape}; pass what attention(..., return_lse=True) returned"
        )
    if kind_of("lses[0]", sums[0]) not in ("float32", "float64"):
        raise TypeError(
            f"lses[0]: expected float32 or float64, got {sums[0].dtype.name}; "
            "convert with lse.astype(np.float32)"
        )
    with UsualFloatMode():
        return _joined(contexts, sums, layout)


def _joined(contexts: list[Array], sums: list[Array], layout: str) -> tuple[Array, Array]:
    """The context and the log-sum-exp of checked parts."""
    highest = np.max([np.asarray(lse, np.float64) for lse in sums], axis=0)
    reference = np.where(highest == -np.inf, 0.0, highest)  # an empty row is one of weights 0
    total = np.zeros(sums[0].shape)
    context = np.full(contexts[0].shape, -0.0)  # x + -0 is x, whatever the sign of a zero
    with np.errstate(all="ignore"):
        for out, lse in zip(contexts, sums, strict=True):
            weight = np.exp(lse - reference)
            total += weight
            shares = _beside_contexts(weight, layout)
            empty = _beside_contexts(lse == -np.inf, layout)
            context += np.where(empty, -0.0, shares * out.astype(np.float64))
        sums_of_rows = _beside_contexts(total, layout)
        result = empty_result(context.shape, contexts[0].dtype)
        # The same row without a part stays as it is; one without any part is 0.
        result[...] = np.where(
            sums_of_rows == 0, 0.0, context / np.where(sums_of_rows == 0, 1.0, sums_of_rows)
        )
    with np.errstate(divide="ignore"):
        return result, (reference + np.log(total)).astype(sums[0].dtype)


def _arrays(name: str, parts: Any) -> list[Array]:
    """The parts as arrays, one at least; an array is no sequence of parts."""
    if isinstance(parts, np.ndarray) or not isinstance(parts, Iterable):
        raise TypeError(
            f"{name}: expected a sequence of arrays, got {type(parts).__name__}; "
            f"pass one array per part, e.g. {name}=[first, second]"
        )
    arrays = [as_array(f"{name}[{i}]", part) for i, part in enumerate(parts)]
    if not arrays:
        raise ValueError(
            f"{name}: expected one part at least, got none; pass the parts to be joined"
        )
    return arrays


def _check_alike(name: str, arrays: list[Array]) -> None:
    """Fail unless all have the dtype and the shape of the first one, which a context can have."""
    first = arrays[0]
    kind = kind_of(f"{name}[0]", first)
    if name == "outs" and first.ndim not in (2, 3, 4):
        raise ValueError(
            f"outs[0]: expected 2, 3 or 4 axes, got {first.ndim} ({first.shape}); "
            "pass (B, H, T, D), (H, T, D) or (T, D)"
        )
    for i, x in enumerate(arrays[1:], 1):
        other = kind_of(f"{name}[{i}]", x)
        if other != kind:
            raise TypeError(
                f"{name}[{i}]: expected {kind} like {name}[0], got {other}; convert with "
                f"{name}[{i}].astype({dtype_text(kind, f'{name}[0]')})"
            )
        if x.shape != first.shape:
            raise ValueError(
                f"{name}[{i}]: expected shape {first.shape} like {name}[0], got {x.shape}; "
                "pass parts for the same queries"
            )


def _lse_shape(out: Array, layout: str) -> tuple[int, ...]:
    """(B, H, Tq), (H, Tq) or (Tq,): head-first in every layout."""
    shape = out.shape[:-1]
    if layout == "BTHD" and out.ndim > 2:
        shape = (*shape[:-2], shape[-1], shape[-2])
    return tuple(shape)


def _beside_contexts(x: Array, layout: str) -> Array:
    """One number per row, (..., H, Tq), with axes that broadcast to contexts."""
    if layout == "BTHD" and x.ndim > 1:
        x = x.swapaxes(-1, -2)
    return x[..., None]
