"""Weights side by side: one projection of what several weights make of the same input."""

from collections.abc import Mapping

import numpy as np

from .arrays import Array
from .projection import Projection
from .weights import frozen


def packed_side_by_side(
    weights: Mapping[str, Array], kinds: tuple[str, ...]
) -> tuple[Projection, dict[str, Array]]:
    """One projection with copies of the weights ``w_...`` and biases ``b_...`` of these kinds.

    The views are what it holds, by name. A bias that is missing beside others is 0.
    """
    parts = [weights[f"w_{kind}"] for kind in kinds]
    ends = np.cumsum([part.shape[1] for part in parts])
    weight = np.empty((parts[0].shape[0], ends[-1]), parts[0].dtype)
    np.concatenate(parts, axis=1, out=weight)
    frozen(weight)
    bias: Array | None = None
    if any(f"b_{kind}" in weights for kind in kinds):
        bias = np.zeros(ends[-1], weight.dtype)
    views: dict[str, Array] = {}
    for kind, part, end in zip(kinds, parts, ends, strict=True):
        columns = slice(end - part.shape[1], end)
        views[f"w_{kind}"] = weight[:, columns]
        if f"b_{kind}" in weights and bias is not None:
            bias[columns] = weights[f"b_{kind}"]
            views[f"b_{kind}"] = bias[columns]
            views[f"b_{kind}"].flags.writeable = False
    return Projection._of(weight, None if bias is None else frozen(bias)), views
