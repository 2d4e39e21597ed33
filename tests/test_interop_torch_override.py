"""headway.interop.torch.override: PyTorch's own attention on headway, with its own autograd."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module

import pytest
from helpers import run_python
from test_interop_torch import VIEWS
from torch_cases import CASES, assert_same_outcome, inputs_of, made, mask_of, outcome

torch = pytest.importorskip("torch")
interop = import_module("headway.interop.torch")

override, Override = interop.override, interop.Override
sdpa = torch.nn.functional.scaled_dot_product_attention
FUSED = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
MATH = torch.nn.attention.SDPBackend.MATH


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """PyTorch's kernels stand where they stood, after each test."""
    before = kernels()
    yield
    assert kernels() == before


def kernels() -> list[str]:
    names = FUSED, torch.ops.aten._scaled_dot_product_attention_math
    return [torch._C._dispatch_dump_table(f"aten::{name.__name__}") for name in names]


@pytest.mark.parametrize("grad", [False, True], ids=["result", "gradients"])
@pytest.mark.parametrize("name", CASES)
def test_the_same_as_without(name: str, grad: bool) -> None:
    case = CASES[name]
    inputs = inputs_of(torch, case, grad=grad)
    options = {"attn_mask": mask_of(torch, case), **case.options}
    wanted = outcome(torch, sdpa, inputs, **options)
    with override() as on:
        got = outcome(torch, sdpa, inputs, **options)
    assert_same_outcome(got, wanted, 1e-12)
    assert (on.calls, on.missed) == case.counted
    for mine, theirs in zip(got, wanted, strict=True):
        assert mine.stride() == theirs.stride()


@pytest.mark.parametrize("grad", [False, True], ids=["result", "gradients"])
@pytest.mark.parametrize("name", ["causal, more keys", "float mask, each head"])
@pytest.mark.parametrize("view", VIEWS)
def test_strides(view: str, name: str, grad: bool) -> None:
    """Only a last axis that is not contiguous keeps PyTorch's own path."""
    case = CASES[name]
    inputs = [VIEWS[view](x).detach().requires_grad_(grad) for x in inputs_of(torch, case)]
    mask = mask_of(torch, case)
    if mask is not None:
        mask = torch.stack([mask, -mask], -1)[..., 0].mT.contiguous().mT
    options = {"attn_mask": mask, **case.options}
    wanted = outcome(torch, sdpa, inputs, **options)
    with override() as on:
        got = outcome(torch, sdpa, inputs, **options)
    assert_same_outcome(got, wanted, 1e-12)
    apart = ("columns", "negated lazily")
    assert (on.calls, on.missed) == ((0, 1) if view in apart else (1, 0))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_other_dtypes(dtype: str) -> None:
    case = CASES["float mask"]
    inputs = inputs_of(torch, case, dtype, grad=True)
    mask = mask_of(torch, case, dtype)
    wanted = outcome(torch, sdpa, inputs, attn_mask=mask)
    with override() as on:
        got = outcome(torch, sdpa, inputs, attn_mask=mask)
        again = outcome(torch, interop.scaled_dot_product_attention, inputs, attn_mask=mask)
    assert_same_outcome(got, wanted, {"float32": 2e-5}.get(dtype, 0.02))
    assert all(torch.equal(a, b) for a, b in zip(got, again, strict=True)), "not on headway"
    assert on.calls == 1


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("name", ["causal", "hidden rows", "groups"])
def test_forward_and_backward_on_two_sides_of_the_end(name: str, before: bool) -> None:
    """A graph made under an override goes backward after it, and the other way round."""
    case = CASES[name]
    options = {"attn_mask": mask_of(torch, case), **case.options}
    inputs = inputs_of(torch, case, grad=True)
    wanted = outcome(torch, sdpa, inputs, **options)
    if before:
        out = sdpa(*inputs, **options)
        with override():
            grads = torch.autograd.grad((out * made(torch, out.shape, 9)).sum(), inputs)
    else:
        with override():
            out = sdpa(*inputs, **options)
        grads = torch.autograd.grad((out * made(torch, out.shape, 9)).sum(), inputs)
    assert_same_outcome([out.detach(), *grads], wanted, 1e-12)


def test_what_pytorch_sends_elsewhere_is_counted_as_missed() -> None:
    q, k, v = inputs_of(torch, CASES["causal"])
    mask = made(torch, (9, 9), 3).requires_grad_()
    with override() as on:
        for run in (
            lambda: sdpa(q, k, v, dropout_p=0.1),
            lambda: sdpa(q, k, v, attn_mask=mask).sum().backward(),
            lambda: sdpa(q.mT.contiguous().mT, k, v),
            lambda: sdpa(q.requires_grad_(), k, v, dropout_p=0.1).sum().backward(),
        ):
            before = on.missed
            run()
            assert (on.calls, on.missed) == (0, before + 1)
        with torch.nn.attention.sdpa_kernel(MATH):
            sdpa(q, k, v)
        with torch.inference_mode():
            sdpa(q, k, v, dropout_p=0.1)
        assert (on.calls, on.missed) == (0, 6)


def test_a_call_that_headway_cannot_serve_keeps_the_kernel_of_pytorch() -> None:
    """The operator called with what PyTorch does not send there: its own kernel answers."""
    q, k, v = inputs_of(torch, CASES["causal"])
    other = made(torch, (2, 2, 9, 8), 5)
    with pytest.raises(RuntimeError) as wanted:
        FUSED(q, k, v.float())
    with override() as on:
        with pytest.raises(RuntimeError) as got:
            FUSED(q, k, v.float())
        assert str(got.value) == str(wanted.value)
        assert (on.calls, on.missed) == (0, 1)
        FUSED(q, other, other)
        assert (on.calls, on.missed) == (1, 1)


def test_what_headway_cannot_read_or_compute_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    from headway.interop import _torch_kernels as torch_kernels

    q, k, v = inputs_of(torch, CASES["causal"])
    with override() as on:
        assert sdpa(q, k, v, scale=float("inf")).isnan().any()
        assert (on.calls, on.missed) == (0, 1)
        monkeypatch.setattr(torch_kernels, "has_bfloat16", lambda: False)
        half = [x.bfloat16().requires_grad_() for x in (q, k, v)]
        sdpa(*half).sum().backward()
        assert (on.calls, on.missed) == (0, 2)


def test_nesting_and_plain_calls() -> None:
    q, k, v = inputs_of(torch, CASES["causal"])
    first = override()
    sdpa(q, k, v)
    with override() as second:
        sdpa(q, k, v)
        third = Override()
        with suppress(ZeroDivisionError), third:
            sdpa(q, k, v)
            raise ZeroDivisionError
        first.restore()
        assert (first.active, second.active, third.active) == (False, True, False)
        sdpa(q, k, v)
    sdpa(q, k, v)
    assert [each.calls for each in (first, second, third)] == [3, 3, 1]
    first.restore()  # ending it twice changes nothing
    with first as again:
        sdpa(q, k, v)
    assert again is first
    assert repr(first) == "Override(ended, calls=4, missed=0)"


def test_a_plain_call_lasts_without_a_reference() -> None:
    q, k, v = inputs_of(torch, CASES["causal"])
    override()
    gc.collect()
    with override() as on:
        sdpa(q, k, v)
    assert on.calls == 1
    from headway.interop import _torch_kernels as torch_kernels

    (kept,) = torch_kernels.tallies
    assert kept.calls == 1
    kept.restore()


def test_a_process_may_end_under_an_override() -> None:
    code = (
        "import json, torch\n"
        "from headway.interop.torch import override\n"
        "on, x = override(), torch.ones(1, 2, 3, 4)\n"
        "torch.nn.functional.scaled_dot_product_attention(x, x, x)\n"
        "print(json.dumps(on.calls))"
    )
    assert run_python(code, timeout=300) == 1  # it imports PyTorch


def test_no_warning_reaches_the_user(recwarn: pytest.WarningsRecorder) -> None:
    with override():
        sdpa(*inputs_of(torch, CASES["causal"]))
    assert not recwarn.list


@pytest.mark.parametrize(
    ("change", "got"),
    [("name", "none"), ("arguments", "query key value"), ("library", r"no torch\.library\.get_")],
)
def test_another_version_of_pytorch(change: str, got: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from headway.interop import _torch_kernels as torch_kernels
    from headway.interop import _torch_override as torch_override

    arguments = dict(torch_kernels.ARGUMENTS)
    if change == "name":
        arguments = {"_scaled_dot_product_no_such_attention": "query", **arguments}
    elif change == "arguments":
        arguments[torch_kernels.FORWARD] = "query key value sinks"
    else:
        monkeypatch.delattr(torch.library, "get_kernel")
    monkeypatch.setattr(torch_override, "ARGUMENTS", arguments)
    text = rf"override: expected the operator aten::\w+ with the arguments query.*, got {got}.*"
    with pytest.raises(RuntimeError, match=text + r"PyTorch \d.*; call headway\.interop\.torch"):
        override()
    assert not torch_kernels.tallies
