"""A module's forward pass that is kept, and the way back through it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from . import _core
from .arrays import Array, with_four_axes
from .calls import check_attention
from .functional import attention
from .gradient_calls import Saved, write_gradients
from .layer_gradients import Gradients
from .projection import Projection
from .weights import KINDS

if TYPE_CHECKING:
    from .module_base import AttentionModule

Heads = tuple[Array, Array, Array]
"""Q, K and V, or their gradients, each (..., T, heads, head_dim)."""


class Places(NamedTuple):
    """Memory for Q, K and V, as the projections see it and as the attention does."""

    projected: list[Array]  # for each projection (..., T, columns)
    calls: list[Heads]  # for each call of the attention views of it


class Kept(NamedTuple):
    """What backward needs of a forward pass."""

    x: Array  # (..., T, d_in), the caller's where the core can read it
    places: Places
    z: Array  # (..., T, d_out)
    lses: list[Array]  # for each call of the attention
    projections: list[Projection]
    out: Projection | None
    dropout: float
    seed: int | None


def kept_run(module: AttentionModule, x: Array, z: Array, dropout: float, seed: int | None) -> Kept:
    """Write Z of a checked ``x``, and keep what was made on the way.

    With dropout all heads are in one call of the attention: what is dropped depends on their index.
    """
    places, projections = module._places(x.shape[:-1], dropout > 0.0), _projections(module)
    seed = seed if dropout > 0.0 else None
    for projection, place in zip(projections, places.projected, strict=True):
        projection(x, out=place)
    lses = []
    for heads, part in zip(places.calls, _parts(z, places.calls), strict=True):
        _, lse = attention(
            *heads, layout="BTHD", out=part, return_lse=True, dropout=dropout, seed=seed
        )
        lses.append(lse)
    return Kept(x, places, z, lses, projections, module._out, dropout, seed)


def _projections(module: AttentionModule) -> list[Projection]:
    return [owner._qkv for _, owner in module._owners()]


def _parts(z: Array, calls: list[Heads]) -> Iterator[Array]:
    """Views of Z or its gradient, (..., T, heads, head_dim) for each call of the attention."""
    start = 0
    for q, _, _ in calls:
        heads, size = q.shape[-2:]
        part = z[..., start : start + heads * size]
        yield part.reshape(*z.shape[:-1], heads, size)
        start += heads * size


def is_in_use(kept: Kept, module: AttentionModule) -> bool:
    """Has no weight been assigned since?"""
    now = [*_projections(module), module._out]
    return all(a is b for a, b in zip([*kept.projections, kept.out], now, strict=True))


def gradients_of(module: AttentionModule, kept: Kept, grad: Array) -> Gradients:
    """Back through the steps of a kept forward pass, for a checked ``grad``."""
    found: dict[str, Array] = {}
    if kept.out is not None:
        of_out = kept.out._gradients(kept.z, grad)
        found |= {f"{name[0]}_out": array for name, array in of_out.weights.items()}
        grad = of_out.x
    calls = kept.places.calls
    places = module._places(kept.x.shape[:-1], kept.dropout > 0.0)
    drawn = kept.dropout, kept.seed
    steps = zip(_parts(grad, calls), _parts(kept.z, calls), strict=True)
    for heads, targets, parts, lse in zip(calls, places.calls, steps, kept.lses, strict=True):
        call = check_attention(*heads, True, "end", None, "BTHD", (None,) * 6, None, False, *drawn)
        above, z = (with_four_axes(x, "BTHD") for x in parts)
        rows = Saved(above, z, lse.reshape(call.q.shape[:3]), None, call.kind)
        of_heads = [with_four_axes(x, "BTHD") for x in targets]
        write_gradients(_core.attention_backward, call, rows, of_heads, None)

    of_x, of_weights = _through_projections(module, kept, places.projected)
    found |= of_weights
    return Gradients(of_x, {name: found[name] for name in module.parameters()})


def _through_projections(
    module: AttentionModule, kept: Kept, arrays: list[Array]
) -> tuple[Array, dict[str, Array]]:
    """The gradients of x and of the projections' weights, for those of what they gave.

    With several projections x gets the sum over them in order, in the accumulation type.
    """
    x = kept.x
    found: dict[str, Array] = {}
    if len(arrays) == 1:
        of_qkv = kept.projections[0]._gradients(x, arrays[0])
        return of_qkv.x, _by_name(module, 0, of_qkv)
    wide = np.float64 if x.dtype == np.float64 else np.float32
    total, part = np.zeros(x.shape, wide), np.empty(x.shape, wide)
    for n, (projection, array) in enumerate(zip(kept.projections, arrays, strict=True)):
        found |= _by_name(module, n, projection._gradients(x, array, part))
        np.add(total, part, out=total)
    with np.errstate(all="ignore"):  # a gradient may pass the range of 16 bits
        return total.astype(x.dtype, copy=False), found


def _by_name(module: AttentionModule, n: int, gradients: Gradients) -> dict[str, Array]:
    """The gradients of the n-th projection's weights by the names of the module's parameters."""
    prefix, owner = module._owners()[n]
    found, start = {}, 0
    for kind in KINDS:
        end = start + owner._weights[f"w_{kind}"].shape[1]
        for name in (f"w_{kind}", f"b_{kind}"):
            if name in owner._weights:
                whole = gradients.weights["weight" if name[0] == "w" else "bias"]
                found[prefix + name] = whole[..., start:end]
        start = end
    return found
