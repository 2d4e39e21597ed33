"""What the tests of the backward pass share: steps of training, expected gradients, comparisons."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from helpers import HALF, ROUNDED_WEIGHTS, Array, lse_dtype, make, multiplies_pairs
from option_table import Options, Problem

import headway

NAMES = ("dq", "dk", "dv")

#: Error allowed to a gradient, relative to its scale. For 16 bits: four steps of the dtype.
GRADIENT_TOLERANCE = {"float64": 1e-12, "float32": 2e-5, "float16": 2.0**-8, "bfloat16": 2.0**-5}

#: The step of central differences.
STEP = 1e-5


@dataclass(frozen=True)
class Step:
    """A forward pass, and what comes down to it from a loss of its output and its lse."""

    q: Array
    k: Array
    v: Array
    out: Array
    lse: Array
    grad_out: Array
    grad_lse: Array | None
    options: Options = field(default_factory=dict)

    @property
    def dtype(self) -> str:
        """The name of the dtype of q."""
        return str(self.q.dtype.name)

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays in the order in which the backward pass takes them."""
        return self.grad_out, self.q, self.k, self.v, self.out, self.lse

    def backward(self, **more: Any) -> dict[str, Array]:
        """Return all gradients by name."""
        return named_gradients(
            headway.attention_backward, self.arrays, self.options | more, self.grad_lse
        )

    @cached_property
    def expected(self) -> dict[str, Array]:
        """The reference's gradients for the same numbers, in float64."""
        arrays = [np.array(x, dtype=np.float64, order="C") for x in self.arrays]
        options = dict(self.options)
        if "sinks" in options:
            options["sinks"] = np.array(options["sinks"], np.float64)
        grad_lse = None if self.grad_lse is None else self.grad_lse.astype(np.float64)
        backward = headway.reference.attention_backward
        return named_gradients(backward, arrays, options, grad_lse)

    @cached_property
    def terms(self) -> dict[str, float]:
        """By name, the largest sum of the magnitudes of the terms of a gradient's element."""
        return terms_of(self)

    def changed(self, **arrays: Array) -> Step:
        """Return the same step with other arrays."""
        return replace(self, **arrays)


def named_gradients(
    function: Any, arrays: Any, options: Options, grad_lse: Array | None = None, **more: Any
) -> dict[str, Array]:
    """Call a function of the backward pass and name its results, all that it can give."""
    asked = dict(more)
    names = list(NAMES)
    if "sinks" in options:
        names.append("dsinks")
        asked["sinks_grad"] = True
    if "mask" in options and options["mask"].dtype != bool:
        names.append("dmask")
        asked["mask_grad"] = True
    found = function(*arrays, grad_lse=grad_lse, **asked, **options)
    return dict(zip(names, found, strict=True))


@lru_cache(maxsize=16)
def step_of(
    problem: Problem, names: tuple[str, ...] = (), *, wide: bool = False, lse: bool = True
) -> Step:
    """Return the step of a problem with the options of these names, by the reference's forward.

    `wide`: 16-bit inputs, but outputs in float32. `lse`: the loss looks at the lse, too. The arrays
    are read-only.
    """
    q, k, v = problem.arrays()
    options = problem.options(names)
    wide_inputs = (x.astype(np.float64) for x in (q, k, v))
    out, sums = headway.reference.attention(*wide_inputs, return_lse=True, **options)
    dtype = np.dtype(np.float32) if wide and problem.dtype in HALF else q.dtype
    grad_out = problem.numbers(11, out.shape).astype(dtype)
    sums = sums.astype(lse_dtype(problem.dtype))
    grad_lse = make((problem.seed, 12), sums.shape).astype(sums.dtype) if lse else None
    for x in (q, k, v, grad_out):
        x.flags.writeable = False
    return Step(q, k, v, out.astype(dtype), sums, grad_out, grad_lse, options)


def check_step(step: Step, got: dict[str, Array], what: str, looser: float = 1.0) -> None:
    """Compare every gradient of a step with the reference: dtypes, shapes and numbers."""
    assert got.keys() == step.expected.keys()
    for name, found in got.items():
        if name in NAMES:
            wanted, allowed = step.q.dtype, GRADIENT_TOLERANCE[step.dtype]
        else:
            wanted, allowed = lse_dtype(step.dtype), wide_tolerance(step.dtype)
        if name == "dsinks" and isinstance(step.options["sinks"], np.ndarray):
            wanted = step.options["sinks"].dtype
        assert found.dtype == wanted, f"{name} of {what}: {found.dtype}, wanted {wanted}"
        allowed = max(allowed, GRADIENT_TOLERANCE[found.dtype.name])  # sinks may have fewer bits
        wanted, terms = step.expected[name], step.terms[name]
        assert_gradient(found, wanted, looser * allowed, terms, f"{name} of {what}")


def wide_tolerance(dtype: str) -> float:
    """Return the error allowed to a gradient in the accumulation type."""
    if multiplies_pairs(dtype):
        return ROUNDED_WEIGHTS
    return GRADIENT_TOLERANCE["float64" if dtype == "float64" else "float32"]


def assert_gradient(
    got: Array, expected: Array, tolerance: float, terms: float, what: str = "gradient"
) -> None:
    """Fail unless the error is within the tolerance, relative to the scale of `expected`.

    That is its largest magnitude, or a tenth of `terms`, the largest sum of the magnitudes of the
    terms that make up one element, where that is more; 1 if both are 0. float16 has 2^-14 for its
    least scale: smaller numbers are multiples of 2^-24 there.
    """
    assert got.shape == expected.shape, f"{what}: shape {got.shape}, wanted {expected.shape}"
    if expected.size == 0:
        return
    scale = max(float(np.abs(expected).max()), 0.1 * terms)
    if got.dtype == np.float16:
        scale = max(scale, 2.0**-14)
    error = np.abs(got.astype(np.float64) - expected).max() / (scale if scale > 0 else 1.0)
    assert error <= tolerance, f"{what}: error {error:.3e} of the scale, allowed {tolerance:.1e}"


def terms_of(step: Step) -> dict[str, float]:
    """Return, by name, the largest sum of the magnitudes of the terms of a gradient's element."""
    wide = [np.abs(x.astype(np.float64)) for x in (step.grad_out, step.q, step.k, step.v, step.out)]
    grad_out, q, k, v, out = wide
    group = q.shape[1] // max(k.shape[1], 1)
    options = dict(step.options)
    arrays = step.q.astype(np.float64), step.k.astype(np.float64)
    most = 1.0 / (1.0 - options.pop("dropout", 0.0))  # what a weight that is kept counts
    options.pop("seed", None)
    scores = headway.reference.attention_scores(*arrays, **options)
    lse = np.where(step.lse == -np.inf, 0.0, step.lse).astype(np.float64)[..., None]
    weights = np.exp(scores - lse)
    above = (grad_out * out).sum(axis=3, keepdims=True)
    if step.grad_lse is not None:
        above = above + np.abs(step.grad_lse[..., None])
    terms = weights * (most * grad_out @ np.repeat(v, group, axis=1).swapaxes(2, 3) + above)
    scale = abs(options["scale"]) if options.get("scale") is not None else q.shape[3] ** -0.5
    found = {
        "dq": scale * terms @ np.repeat(k, group, axis=1),
        "dk": scale * _grouped(terms.swapaxes(2, 3) @ q, group),
        "dv": _grouped(most * weights.swapaxes(2, 3) @ grad_out, group),
    }
    if "sinks" in options:
        sinks = np.array(options["sinks"], np.float64)[:, None, None]
        found["dsinks"] = (np.exp(sinks - lse) * above).sum(axis=(0, 2, 3))
    if "mask" in options:
        full = (1,) * (4 - options["mask"].ndim) + options["mask"].shape
        found["dmask"] = terms.sum(axis=tuple(n for n in range(4) if full[n] == 1))
    return {name: float(x.max(initial=0.0)) for name, x in found.items()}


def _grouped(x: Array, group: int) -> Array:
    """Sum the query heads that read one key head."""
    batch, heads, *rest = x.shape
    summed: Array = x.reshape(batch, heads // max(group, 1), group, *rest).sum(axis=2)
    return summed


def differences(
    grad_out: Array, grad_lse: Array, q: Array, k: Array, v: Array, options: Options
) -> dict[str, Array]:
    """Return central differences of ``sum(grad_out * out) + sum(grad_lse * lse)``, in float64.

    By q, k and v; by sinks and a float mask where there are any. What is -inf stays as it is.
    """
    inputs = {"dq": q, "dk": k, "dv": v}
    for name in ("sinks", "mask"):
        if name in options and options[name].dtype != bool:
            inputs[f"d{name}"] = options[name].astype(np.float64)
    given = {name: x.copy() for name, x in inputs.items()}

    def loss() -> float:
        arrays = [given[name] for name in NAMES]
        changed = {name: given[f"d{name}"] for name in ("sinks", "mask") if f"d{name}" in given}
        function = headway.reference.attention
        out, lse = function(*arrays, return_lse=True, **(options | changed))
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
