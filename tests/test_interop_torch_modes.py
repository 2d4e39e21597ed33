"""Who wants to see a call of scaled_dot_product_attention sees it: modes, transforms, classes."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

import pytest
from torch_cases import CASES, inputs_of

torch = pytest.importorskip("torch")
interop = import_module("headway.interop.torch")

ours = interop.scaled_dot_product_attention


def test_a_second_derivative_is_refused() -> None:
    query, key, value = inputs_of(torch, CASES["causal"], grad=True)
    (first,) = torch.autograd.grad(ours(query, key, value).sum(), query, create_graph=True)
    with pytest.raises(NotImplementedError, match="at most one derivative, got a second one"):
        torch.autograd.grad(first.sum(), query)


def test_transforms_and_modes_see_the_call() -> None:
    """What PyTorch wants to see goes through its dispatcher: nothing is dropped."""
    from torch.utils._python_dispatch import TorchDispatchMode

    query, key, value = inputs_of(torch, CASES["causal"])
    seen = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    with Mode():
        ours(query, key, value)
    assert seen == ["headway.scaled_dot_product_attention.default"]

    grad = torch.func.grad(lambda q: ours(q, key, value, is_causal=True).sum())(query)
    leaf = query.clone().requires_grad_()
    ours(leaf, key, value, is_causal=True).sum().backward()
    assert torch.allclose(grad, leaf.grad)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch says that it calls the operator in a loop
        each = torch.func.vmap(lambda q: ours(q, key, value))(torch.stack([query, query + 1]))
    assert torch.allclose(each[1], ours(query + 1, key, value))


@pytest.mark.filterwarnings("ignore:.*deprecated")  # inside of PyTorch's forward mode
def test_forward_mode_is_refused() -> None:
    query, key, value = inputs_of(torch, CASES["causal"])
    text = "expected tensors without a derivative of forward mode, got one; take gradients backward"
    with torch.autograd.forward_ad.dual_level():
        assert ours(query, key, value).shape == query.shape
        dual = torch.autograd.forward_ad.make_dual(query, query)
        with pytest.raises(NotImplementedError, match=text):
            ours(dual, key, value)
    with pytest.raises(NotImplementedError, match=text):
        torch.func.jvp(lambda q: ours(q, key, value), (query,), (query,))


def test_a_class_with_its_own_functions_is_asked() -> None:
    class Named(torch.Tensor):
        @classmethod
        def __torch_function__(
            cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            assert function is ours
            return "asked", sorted(kwargs or {})[:2]

    query, key, value = inputs_of(torch, CASES["causal"])
    assert ours(query.as_subclass(Named), key, value) == ("asked", ["alibi_slopes", "align"])


def test_a_mode_for_functions_sees_the_call() -> None:
    seen = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(function)
            return function(*args, **(kwargs or {}))

    inputs = inputs_of(torch, CASES["causal"])
    with Mode():
        got = ours(*inputs, is_causal=True)
    assert seen[0] is ours
    assert torch.equal(got, ours(*inputs, is_causal=True))


@pytest.mark.filterwarnings("ignore::UserWarning")  # PyTorch says that it calls it in a loop
def test_gradients_of_several_results_at_once() -> None:
    """``is_grads_batched`` gives what one call after the other gives."""
    inputs = inputs_of(torch, CASES["causal"], grad=True)
    out = ours(*inputs, is_causal=True)
    given = torch.randn(3, *out.shape, dtype=out.dtype)
    found = torch.autograd.grad(out, inputs, given, retain_graph=True, is_grads_batched=True)
    for n, each in enumerate(given):
        alone = torch.autograd.grad(out, inputs, each, retain_graph=True)
        for x, y in zip(found, alone, strict=True):
            assert torch.allclose(x[n], y)
