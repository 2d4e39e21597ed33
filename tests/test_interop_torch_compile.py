"""The operator of headway.interop.torch in PyTorch's own checks, torch.compile and torch.export."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from torch_cases import CASES, assert_same_outcome, inputs_of, made, mask_of, outcome

torch = pytest.importorskip("torch")
interop = import_module("headway.interop.torch")

# Deprecations inside of PyTorch's compiler are not ours.
pytestmark = pytest.mark.filterwarnings("default")

ours = interop.scaled_dot_product_attention
operator = torch.ops.headway.scaled_dot_product_attention.default
backward = torch.ops.headway.scaled_dot_product_attention_backward.default


def every_option(grad: bool) -> tuple[Any, ...]:
    """Arguments of the operator: the mask, the slopes, the sinks and so on, in its order."""
    mask = made(torch, (2, 1, 9, 13), 4).requires_grad_(grad)
    slopes, sinks = made(torch, (6,), 5).abs(), made(torch, (6,), 6).requires_grad_(grad)
    lengths, positions = torch.tensor([13, 8]), torch.tensor([3, 1])
    return mask, slopes, sinks, lengths, positions, None, 0.0, True, "start", 0.3, [4, 0], 5.0


@pytest.fixture(autouse=True)
def fresh() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("name", ["causal", "other value width", "no queries", "no keys"])
def test_opcheck(name: str) -> None:
    case = CASES[name]
    for dtype in ("float64", "bfloat16"):
        inputs = inputs_of(torch, case, dtype, grad=dtype == "float64")
        torch.library.opcheck(operator, (*inputs, None, None, None, None, None, None, 0.0, True))


@pytest.mark.parametrize("first", [False, True], ids=["heads first", "tokens first"])
def test_opcheck_with_every_option(first: bool) -> None:
    inputs = inputs_of(torch, CASES["groups"])
    if first:
        inputs = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs]
    inputs = [x.requires_grad_() for x in inputs]
    torch.library.opcheck(operator, (*inputs, *every_option(grad=True)))


def test_opcheck_of_the_gradients() -> None:
    inputs = inputs_of(torch, CASES["groups"])
    options = every_option(grad=False)
    out, lse = operator(*inputs, *options)
    given = torch.ones_like(out), torch.ones_like(lse), *inputs, out, lse, True, True, *options
    torch.library.opcheck(backward, given)
    plain = torch.ones_like(out), None, *inputs, *operator(*inputs), False, False
    torch.library.opcheck(backward, plain)


@pytest.mark.parametrize("name", ["causal", "groups", "float mask", "five axes", "ranks broadcast"])
def test_compiled_in_one_graph(name: str) -> None:
    case = CASES[name]
    inputs, mask = inputs_of(torch, case, grad=True), mask_of(torch, case)

    def run(query: Any, key: Any, value: Any) -> Any:
        return ours(query * 2, key, value, mask, **case.options).sin()

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    got = outcome(torch, compiled, inputs)
    assert_same_outcome(got, outcome(torch, run, inputs), 1e-12)


def test_compiled_with_options_of_headway() -> None:
    inputs = inputs_of(torch, CASES["plain"], grad=True)
    sinks = made(torch, (4,), 6).requires_grad_()

    def run(query: Any, key: Any, value: Any, sinks: Any) -> Any:
        out, lse = ours(
            query,
            key,
            value,
            is_causal=True,
            align=[2, 3],
            window=5,
            softcap=4.0,
            alibi_slopes=[0.5, 0.25, 0.125, 0.0625],
            sinks=sinks,
            kv_lengths=[13, 7],
            return_lse=True,
        )
        return torch.cat([out, lse[..., None]], -1)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    got = outcome(torch, compiled, [*inputs, sinks])
    assert_same_outcome(got, outcome(torch, run, [*inputs, sinks]), 1e-12)


def test_one_graph_for_every_size() -> None:
    graphs = []

    def count(graph: Any, examples: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(ours, fullgraph=True, dynamic=True, backend=count)
    for batch, tokens in ((2, 9), (3, 17), (5, 33)):
        x = made(torch, (batch, 4, tokens, 8), tokens)
        assert torch.equal(compiled(x, x, x, is_causal=True), ours(x, x, x, is_causal=True))
    assert len(graphs) == 1


def test_inductor() -> None:
    """With nothing beside the attention there is no C++ to compile."""
    inputs = inputs_of(torch, CASES["causal"], grad=True)
    with torch._inductor.config.patch(compile_threads=1):
        compiled = torch.compile(ours, fullgraph=True)
        out = compiled(*inputs, is_causal=True)
        grads = torch.autograd.grad(out, inputs, made(torch, out.shape, 9))
    wanted = outcome(torch, ours, inputs, is_causal=True)
    assert_same_outcome([out.detach(), *grads], wanted, 1e-12)


@pytest.mark.parametrize("strict", [False, True])
def test_export(strict: bool) -> None:
    model = interop.MultiHeadAttention(8, 12, 32, 0.0, 3).eval()
    sizes = {"x": {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens", max=32)}}
    program = torch.export.export(
        model, (torch.zeros(2, 5, 8),), dynamic_shapes=sizes, strict=strict
    )
    assert [node.target for node in program.graph.nodes].count(operator) == 1
    x = made(torch, (3, 11, 8), 1, "float32")
    assert torch.equal(program.module()(x), model(x))


def test_pytorchs_own_attention_compiled_under_override() -> None:
    sdpa = torch.nn.functional.scaled_dot_product_attention
    inputs = inputs_of(torch, CASES["causal"], grad=True)

    def run(query: Any, key: Any, value: Any) -> Any:
        return sdpa(query, key, value, is_causal=True).sin()

    wanted = outcome(torch, run, inputs)
    with interop.override() as on:
        compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
        got = outcome(torch, compiled, inputs)
        assert (on.calls, on.missed) == (1, 0)
    assert_same_outcome(got, wanted, 1e-12)
    assert_same_outcome(outcome(torch, compiled, inputs), wanted, 1e-12)
