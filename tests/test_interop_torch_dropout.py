"""Dropout in headway.interop.torch: headway's own, with a seed from PyTorch's generator."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from helpers import assert_close, assert_same_bits
from torch_cases import CASES, assert_same_outcome, inputs_of, made, outcome

import headway

torch = pytest.importorskip("torch")
interop = import_module("headway.interop.torch")

pytestmark = pytest.mark.filterwarnings("default")  # deprecations inside of PyTorch's compiler

ours = interop.scaled_dot_product_attention


@pytest.mark.parametrize("seed", [0, 7, 2**63 + 5, 2**64 - 1])
def test_a_seed_drops_what_it_drops_in_headway(seed: int) -> None:
    inputs = inputs_of(torch, CASES["causal"], grad=True)
    arrays = [x.detach().numpy() for x in inputs]
    options: dict[str, Any] = {"align": "start", "dropout": 0.3, "seed": seed}
    out, lse = headway.attention(*arrays, return_lse=True, **options)
    got = ours(*inputs, is_causal=True, dropout_p=0.3, seed=seed)
    assert_same_bits(got.detach().numpy(), out)
    grad_out = made(torch, out.shape, 9)
    grads = headway.attention_backward(grad_out.numpy(), *arrays, out, lse, **options)
    for mine, wanted in zip(torch.autograd.grad(got, inputs, grad_out), grads, strict=True):
        assert_close(mine.numpy(), wanted, 1e-14)


def test_without_a_seed_pytorchs_generator_decides() -> None:
    inputs = inputs_of(torch, CASES["causal"])
    torch.manual_seed(3)
    first, second = (ours(*inputs, dropout_p=0.4) for _ in range(2))
    torch.manual_seed(3)
    again = ours(*inputs, dropout_p=0.4)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    state = torch.random.get_rng_state()
    ours(*inputs)
    ours(*inputs, dropout_p=0.4, seed=1)
    assert torch.equal(state, torch.random.get_rng_state()), "drew a number that it did not need"


def test_gradients_by_differences() -> None:
    inputs = [made(torch, (2, 2, 5, 4), n).requires_grad_() for n in range(3)]

    def run(*inputs: Any) -> Any:
        return ours(*inputs, is_causal=True, dropout_p=0.4, seed=5, return_lse=True)

    assert torch.autograd.gradcheck(run, inputs)


def test_the_mean_over_seeds_is_the_call_without() -> None:
    inputs = inputs_of(torch, CASES["causal"])
    mean = sum(ours(*inputs, is_causal=True, dropout_p=0.25, seed=n) for n in range(3000)) / 3000
    assert_close(mean.numpy(), ours(*inputs, is_causal=True).numpy(), 0.03)


def test_a_probability_of_1_drops_all_as_in_pytorch() -> None:
    inputs = inputs_of(torch, CASES["causal"], grad=True)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    wanted = outcome(torch, sdpa, inputs, dropout_p=1.0)
    got = outcome(torch, ours, inputs, dropout_p=1.0)
    assert_same_outcome(got, wanted, 0.0)


def test_opcheck() -> None:
    inputs = inputs_of(torch, CASES["groups"], grad=True)
    operator = torch.ops.headway.scaled_dot_product_attention.default
    options = None, None, None, None, None, torch.tensor(-3), 0.3, True
    torch.library.opcheck(operator, (*inputs, *options))


def test_the_operator_itself_wants_a_seed() -> None:
    inputs = inputs_of(torch, CASES["causal"])
    operator = torch.ops.headway.scaled_dot_product_attention.default
    with pytest.raises(ValueError, match=r"seed: expected a tensor of one int64 where dropout_p"):
        operator(*inputs, dropout_p=0.3)


def test_compiled() -> None:
    inputs = inputs_of(torch, CASES["causal"], grad=True)

    def run(*inputs: Any) -> Any:
        return ours(*inputs, is_causal=True, dropout_p=0.3)

    torch._dynamo.reset()
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    torch.manual_seed(4)
    got = outcome(torch, compiled, inputs)
    assert not torch.equal(got[0], compiled(*inputs)), "one seed for every run of the graph"
    torch.manual_seed(4)
    assert_same_outcome(got, outcome(torch, run, inputs), 1e-12)
    torch._dynamo.reset()


def test_a_recomputed_layer_drops_the_same() -> None:
    """torch.utils.checkpoint computes a layer again on the way back, from the same generator."""
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(6)
    model = interop.MultiHeadAttention(8, 12, 16, 0.3, 3).double().train()
    x = made(torch, (2, 9, 8), 1).requires_grad_()

    def gradients(run: Any) -> list[Any]:
        torch.manual_seed(7)
        return list(torch.autograd.grad(run(x).square().sum(), [x, *model.parameters()]))

    recomputed = gradients(lambda x: checkpoint(model, x, use_reentrant=False))
    for mine, wanted in zip(recomputed, gradients(model), strict=True):
        assert torch.equal(mine, wanted)


def test_the_module_drops_in_training_alone() -> None:
    torch.manual_seed(6)
    model = interop.MultiHeadAttention(8, 12, 16, 0.3, 3)
    x = made(torch, (2, 9, 8), 1, "float32")
    assert not torch.equal(model.train()(x), model(x))
    assert torch.equal(model.eval()(x), model(x))
