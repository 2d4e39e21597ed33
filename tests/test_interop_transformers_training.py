"""Models of transformers in training: gradients, dropout, checkpoints, the compiler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from helpers import assert_close, make
from tiny_models import DECODERS, ENCODER, NO_SDPA, SEQUENCE_TO_SEQUENCE, VOCABULARY, made

from headway.interop import transformers as ours

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", "5.24", reason="transformers 5.24: its models")

CASES = {
    **{name: ("AutoModelForCausalLM", config) for name, config in DECODERS.items()},
    **{name: ("AutoModelForSeq2SeqLM", config) for name, config in SEQUENCE_TO_SEQUENCE.items()},
    "bert": ("AutoModelForMaskedLM", ENCODER),
}


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Iterator[None]:
    ours.register()
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # the models are tiny
    yield
    torch.set_num_threads(before)


def batch(padding: str = "left") -> dict[str, Any]:
    """Two rows, the first four tokens shorter, with the tokens themselves as labels."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(4, VOCABULARY, (2, 11), generator=generator)
    shown = torch.ones_like(ids)
    shown[0, slice(0, 4) if padding == "left" else slice(7, None)] = 0
    labels = ids.masked_fill(shown == 0, -100)
    labels[0, 4] = -100  # padding has nothing to say of the first token after it
    return {"input_ids": ids * shown, "attention_mask": shown, "labels": labels}


def gradients(model: Any, implementation: str, inputs: dict[str, Any]) -> dict[str, Any]:
    """The gradient of the loss by every parameter that has one."""
    model.set_attn_implementation(implementation)
    model.zero_grad()
    model(**inputs).loss.backward()
    named = model.named_parameters()
    return {name: each.grad.numpy().copy() for name, each in named if each.grad is not None}


@pytest.mark.parametrize("padding", [None, "left"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_of_every_parameter(name: str, padding: str | None) -> None:
    """Sinks and position biases among them; in float64 where PyTorch's function is to be had."""
    model, theirs = made(*CASES[name]), "eager"
    if name not in NO_SDPA:
        model, theirs = model.double(), "sdpa"
    inputs = batch(padding or "left")
    if padding is None:
        inputs = {"input_ids": inputs["input_ids"], "labels": inputs["input_ids"]}
    got, wanted = (gradients(model, each, inputs) for each in ("headway", theirs))
    assert got.keys() == wanted.keys()
    largest = max(abs(each).max() for each in wanted.values())
    for parameter, gradient in wanted.items():
        assert abs(got[parameter] - gradient).max() <= 1e-5 * largest, parameter


def test_gradients_through_the_weights() -> None:
    """A loss of the weights and the contexts both."""
    query, key, value = (
        torch.from_numpy(make(n, (2, h, 6, 8))).requires_grad_() for n, h in enumerate((4, 2, 2))
    )
    bias = torch.from_numpy(make(4, (1, 4, 6, 6))).requires_grad_()
    sinks = torch.from_numpy(make(5, (4,))).requires_grad_()
    target = torch.from_numpy(make(6, (2, 4, 6, 6)))

    def loss(*inputs: Any) -> Any:
        q, k, v, b, s = inputs
        out, weights = ours.attention_forward(
            torch.nn.Module(), q, k, v, None, position_bias=b, s_aux=s, output_attentions=True
        )
        return (out**2).sum() + (weights * target).sum()

    assert torch.autograd.gradcheck(loss, (query, key, value, bias, sinks), eps=1e-6)


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("kind", ["none", "bool", "float", "broadcast"])
def test_gradients_of_a_call(kind: str, softcap: float | None) -> None:
    query, key, value = (
        torch.from_numpy(make(n, (2, t, h, 4))).transpose(1, 2).requires_grad_()
        for n, (t, h) in enumerate(((3, 4), (5, 2), (5, 2)))
    )
    shape = (1, 4, 1, 5) if kind == "broadcast" else (2, 1, 3, 5)
    mask = None if kind == "none" else torch.from_numpy(make(7, shape))
    if kind == "bool":
        mask = mask > -0.5
    elif mask is not None:
        mask.requires_grad_()
    sinks = torch.from_numpy(make(5, (4,))).requires_grad_()

    def task(*inputs: Any) -> Any:
        *arrays, s, m = inputs
        module = torch.nn.Module()
        return ours.attention_forward(module, *arrays, m, s_aux=s, softcap=softcap)[0]

    assert torch.autograd.gradcheck(task, (query, key, value, sinks, mask), eps=1e-6)


def test_no_graph_where_none_is_wanted() -> None:
    query = torch.from_numpy(make(1, (1, 2, 3, 4))).requires_grad_()
    with torch.no_grad():
        out, _ = ours.attention_forward(torch.nn.Module(), query, query, query, None)
    assert not out.requires_grad
    out, _ = ours.attention_forward(torch.nn.Module(), query, query, query, None)
    assert out.requires_grad
    (first,) = torch.autograd.grad(out.sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match="first derivatives alone"):
        first.sum().backward()


def test_sixteen_bits() -> None:
    """Gradients of a call as near to those in float64 as PyTorch's own."""
    pytest.importorskip("ml_dtypes")
    shapes = (2, 4, 9, 16), (2, 2, 9, 16), (2, 2, 9, 16)
    arrays = [torch.from_numpy(make(n, shape)).to(torch.bfloat16) for n, shape in enumerate(shapes)]
    above = torch.from_numpy(make(5, (2, 9, 4, 16))).to(torch.bfloat16)

    def task(dtype: Any) -> list[Any]:
        inputs = [x.to(dtype).requires_grad_() for x in arrays]
        out, _ = ours.attention_forward(torch.nn.Module(), *inputs, None)
        assert out.dtype is dtype
        return list(torch.autograd.grad((out * above.to(dtype)).sum(), inputs))

    for got, wanted in zip(task(torch.bfloat16), task(torch.float64), strict=True):
        assert got.dtype is torch.bfloat16
        assert_close(got.double().numpy(), wanted.numpy(), 2.0**-6)


def test_dropout() -> None:
    """PyTorch's generator decides what is dropped; the backward pass drops the same."""
    q, k, v = (torch.from_numpy(make(n, (2, 2, 9, 4))) for n in range(3))
    v.requires_grad_()

    def task(seed: int) -> Any:
        torch.manual_seed(seed)
        return ours.attention_forward(torch.nn.Module(), q, k, v, None, dropout=0.4)[0]

    out = task(1)
    assert torch.equal(out, task(1))
    assert not torch.equal(out, task(2))
    above = torch.from_numpy(make(5, tuple(out.shape)))
    (gradient,) = torch.autograd.grad(task(1), v, above)
    assert torch.allclose((gradient * v).sum(), (above * out).sum())  # out is linear in v


def test_checkpoints_of_activations() -> None:
    """The forward pass runs twice, and gives the same gradients."""
    model = made(*CASES["llama"]).train()
    wanted = gradients(model, "headway", batch())
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    enable({"use_reentrant": False})
    for name, got in gradients(model, "headway", batch()).items():
        assert_close(got, wanted[name], 1e-6, name)


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # of PyTorch's compiler
def test_the_compiler_goes_around_it() -> None:
    from transformers import AttentionInterface

    function = AttentionInterface()["headway"]
    query = torch.from_numpy(make(1, (1, 2, 5, 4))).requires_grad_()

    def task(x: Any) -> Any:
        return function(torch.nn.Module(), x * 2, x, x, None)[0] * 2

    compiled = torch.compile(task, backend="eager")
    assert torch.equal(compiled(query), task(query))
    got, wanted = (torch.autograd.grad(each(query).sum(), query)[0] for each in (compiled, task))
    assert torch.equal(got, wanted)
