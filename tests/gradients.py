"""What the tests of the backward pass share: expected gradients, and how they are compared."""

from __future__ import annotations

from typing import Any

import numpy as np
from helpers import Array

from headway import reference

STEP = 1e-5

#: Error allowed to a gradient, relative to its scale. For 16 bits: four steps of the dtype.
GRADIENT_TOLERANCE = {"float64": 1e-12, "float32": 2e-5, "float16": 2.0**-8, "bfloat16": 2.0**-5}


def assert_gradient(
    got: Array, expected: Array, tolerance: float, terms: float, what: str = "gradient"
) -> None:
    """Fail unless the error is within the tolerance, relative to the scale of `expected`.

    That is its largest magnitude, or a tenth of `terms`, the largest sum of the magnitudes of the
    terms that make up one element, where that is more; 1 if both are 0.
    """
    assert got.shape == expected.shape, f"{what}: shape {got.shape}, wanted {expected.shape}"
    if expected.size == 0:
        return
    scale = max(float(np.abs(expected).max()), 0.1 * terms)
    error = np.abs(got.astype(np.float64) - expected).max() / (scale if scale > 0 else 1.0)
    assert error <= tolerance, f"{what}: error {error:.3e} of the scale, allowed {tolerance:.1e}"


def differences(
    grad_out: Array, grad_lse: Array, q: Array, k: Array, v: Array, options: dict[str, Any]
) -> dict[str, Array]:
    """Return central differences of ``sum(grad_out * out) + sum(grad_lse * lse)``, in float64.

    By q, k and v; by sinks and a float mask where there are any. What is -inf stays as it is.
    """
    inputs = {"q": q, "k": k, "v": v}
    for name in ("sinks", "mask"):
        if name in options and options[name].dtype != bool:
            inputs[name] = options[name].astype(np.float64)
    given = {name: x.copy() for name, x in inputs.items()}

    def loss() -> float:
        arrays = [given[name] for name in ("q", "k", "v")]
        changed = options | {name: given[name] for name in ("sinks", "mask") if name in given}
        out, lse = reference.attention(*arrays, return_lse=True, **changed)
        finite = np.isfinite(lse)
        return float(np.sum(grad_out * out) + np.sum(grad_lse[finite] * lse[finite]))

    found = {}
    for name, x in given.items():
        found[name] = np.zeros(x.shape)
        for place in np.ndindex(*x.shape):
            middle = x[place]
            if middle == -np.inf:
                continue
            ends = []
            for step in (STEP, -STEP):
                x[place] = middle + step
                ends.append(loss())
            x[place] = middle
            found[name][place] = (ends[0] - ends[1]) / (2 * STEP)
    return found
