"""Calls of PyTorch's scaled_dot_product_attention, and comparisons of what comes out of them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from helpers import assert_close


class Case(NamedTuple):
    """Shapes of query, key and value; what the mask is; the other arguments; where it goes."""

    query: tuple[int, ...]
    key: tuple[int, ...]
    value: tuple[int, ...]
    mask: tuple[str, tuple[int, ...]] | None = None  # kind and shape
    options: Mapping[str, Any] = MappingProxyType({})
    counted: tuple[int, int] = (1, 0)  # calls and missed: PyTorch's fused kernel is asked, or not


MISSED, NEITHER = (0, 1), (0, 0)


Q, K = (2, 4, 9, 8), (2, 4, 13, 8)

CASES = {
    "plain": Case(Q, K, K),
    "causal": Case(Q, Q, Q, options={"is_causal": True}),
    "causal, more keys": Case(Q, K, K, options={"is_causal": True}),
    "causal, more queries": Case(K, Q, Q, options={"is_causal": True}),
    "scale": Case(Q, K, K, options={"scale": 0.7}),
    "scale 0": Case(Q, K, K, options={"scale": 0.0}),
    "negative scale": Case(Q, Q, Q, options={"scale": -0.3}),
    "bool mask": Case(Q, K, K, ("bool", (9, 13))),
    "bool mask, each row": Case(Q, K, K, ("bool", (2, 4, 9, 13))),
    "padding": Case(Q, K, K, ("bool", (2, 1, 1, 13))),
    "float mask": Case(Q, K, K, ("float", (9, 13))),
    "float mask, each head": Case(Q, K, K, ("float", (1, 4, 9, 13))),
    "float mask, each entry": Case(Q, K, K, ("float", (2, 1, 9, 1))),
    "float mask, one row": Case(Q, K, K, ("float", (1, 13))),
    "mask and causal": Case(Q, K, K, ("float", (9, 13)), {"is_causal": True}),
    "hidden rows": Case(Q, K, K, ("hidden", (9, 13))),
    "groups": Case((2, 6, 9, 8), (2, 2, 13, 8), (2, 2, 13, 8), options={"enable_gqa": True}),
    "groups, causal, mask": Case(
        (2, 6, 9, 8),
        (2, 3, 9, 8),
        (2, 3, 9, 8),
        ("bool", (2, 1, 9, 9)),
        {"enable_gqa": True, "is_causal": True, "scale": 0.2},
    ),
    "one of all": Case((1, 1, 1, 1), (1, 1, 1, 1), (1, 1, 1, 1)),
    "odd sizes": Case((1, 3, 37, 17), (1, 3, 71, 17), (1, 3, 71, 17)),
    "one query": Case((3, 2, 1, 16), (3, 2, 65, 16), (3, 2, 65, 16)),
    "many keys": Case((1, 2, 130, 32), (1, 2, 130, 32), (1, 2, 130, 32), None, {"is_causal": True}),
    "other value width": Case(Q, K, (2, 4, 13, 5), counted=MISSED),
    "one head": Case((9, 8), (13, 8), (13, 8), ("float", (9, 13)), counted=MISSED),
    "no batch": Case(Q[1:], K[1:], K[1:], ("bool", (4, 9, 13)), counted=MISSED),
    "five axes": Case((3, *Q), (3, *K), (3, *K), ("float", (2, 1, 9, 13)), counted=MISSED),
    "five axes, mask for each": Case(
        (3, *Q), (3, *K), (3, *K), ("bool", (3, 1, 1, 9, 13)), counted=MISSED
    ),
    "three axes of mask": Case(Q, K, K, ("float", (4, 9, 13)), counted=MISSED),
    "batch broadcast": Case(Q, (1, *K[1:]), (1, *K[1:]), counted=MISSED),
    "query batch broadcast": Case((1, *Q[1:]), K, K, counted=MISSED),
    "one key head for all": Case(Q, (2, 1, 13, 8), (2, 1, 13, 8), counted=MISSED),
    "one query head": Case((2, 1, 9, 8), K, K, counted=MISSED),
    "ranks broadcast": Case(Q, (13, 8), (13, 8), counted=MISSED),
    "no queries": Case((2, 4, 0, 8), K, K, counted=NEITHER),
    "no keys": Case(Q, (2, 4, 0, 8), (2, 4, 0, 8), counted=NEITHER),
    "no batch entries": Case((0, *Q[1:]), (0, *K[1:]), (0, *K[1:]), counted=NEITHER),
    "no heads": Case((2, 0, 9, 8), (2, 0, 13, 8), (2, 0, 13, 8), counted=NEITHER),
}


def made(torch: Any, shape: tuple[int, ...], seed: int, dtype: str = "float64") -> Any:
    """A tensor of normal random numbers."""
    numbers = np.random.default_rng(seed).standard_normal(shape)
    return torch.from_numpy(numbers).to(getattr(torch, dtype))


def mask_of(torch: Any, case: Case, dtype: str = "float64") -> Any:
    """The mask of a case: a bool one shows each query one key at least, "hidden" does not."""
    if case.mask is None:
        return None
    kind, shape = case.mask
    numbers = made(torch, shape, 4)
    if kind == "float":
        return numbers.to(getattr(torch, dtype))
    shown = numbers > -0.5
    shown[..., 0] = True
    if kind == "hidden":
        shown[..., 2, :] = False
        shown[..., 5:, :] = False
    return shown


def inputs_of(torch: Any, case: Case, dtype: str = "float64", grad: bool = False) -> list[Any]:
    """Query, key and value of a case."""
    shapes = case.query, case.key, case.value
    return [made(torch, shape, n, dtype).requires_grad_(grad) for n, shape in enumerate(shapes)]


def outcome(torch: Any, function: Any, inputs: list[Any], **options: Any) -> list[Any]:
    """The result of a call and the gradients of its weighted sum by the inputs that need one."""
    out = function(*inputs, **options)
    if not any(x.requires_grad for x in inputs):
        return [out]
    weights = made(torch, tuple(out.shape), 9).to(out.dtype)
    wanted = [x for x in inputs if x.requires_grad]
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), wanted)]


def assert_same_outcome(got: list[Any], expected: list[Any], tolerance: float) -> None:
    """Fail unless results and gradients agree, each relative to its scale."""
    names = ("result", "gradient by query", "by key", "by value", "by the mask")
    for name, mine, theirs in zip(names, got, expected, strict=False):
        assert mine.dtype is theirs.dtype, name
        a, b = (x.detach().double().numpy() for x in (mine, theirs))
        assert_close(a, b, tolerance, name)
    assert len(got) == len(expected)
