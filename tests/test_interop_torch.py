"""headway.interop.torch.scaled_dot_product_attention against PyTorch's function and headway's."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest
from helpers import TOLERANCE, assert_close, assert_same_bits, make_qkv
from torch_cases import CASES, Case, assert_same_outcome, inputs_of, made, mask_of, outcome

import headway

torch = pytest.importorskip("torch")
interop = import_module("headway.interop.torch")

ours = interop.scaled_dot_product_attention
theirs = torch.nn.functional.scaled_dot_product_attention


def options_of(case: Case, dtype: str = "float64") -> dict[str, Any]:
    return {"attn_mask": mask_of(torch, case, dtype), **case.options}


@pytest.mark.parametrize("grad", [False, True], ids=["result", "gradients"])
@pytest.mark.parametrize("name", CASES)
def test_the_same_as_pytorch(name: str, grad: bool) -> None:
    case = CASES[name]
    inputs, options = inputs_of(torch, case, grad=grad), options_of(case)
    got = outcome(torch, ours, inputs, **options)
    assert_same_outcome(got, outcome(torch, theirs, inputs, **options), 1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["causal", "groups", "bool mask", "float mask"])
def test_the_same_as_headway(name: str, dtype: str, isa: str, threads: int) -> None:
    """The very bits of headway.attention on the same memory."""
    case = CASES[name]
    inputs, options = inputs_of(torch, case, dtype), options_of(case, dtype)
    arrays = [interop_array(x) for x in inputs]
    mask = options["attn_mask"]
    wanted = headway.attention(
        *arrays,
        causal=options.get("is_causal", False),
        align="start",
        mask=None if mask is None else interop_array(mask),
    )
    got = ours(*inputs, **options)
    assert got.dtype is inputs[0].dtype
    assert_same_bits(interop_array(got), wanted)
    recorded = ours(inputs[0].requires_grad_(), *inputs[1:], **options)
    assert_same_bits(interop_array(recorded.detach()), wanted, "with autograd")


def interop_array(x: Any) -> Any:
    if x.dtype is torch.bfloat16:
        dtypes = pytest.importorskip("ml_dtypes")
        return x.view(torch.int16).numpy().view(dtypes.bfloat16)
    return x.numpy()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gradients_of_half_precision(dtype: str) -> None:
    case = CASES["causal"]
    wide = [x.double() for x in inputs_of(torch, case, dtype)]
    half = [x.to(getattr(torch, dtype)).requires_grad_() for x in wide]
    got = outcome(torch, ours, half, is_causal=True)
    assert all(x.dtype is half[0].dtype for x in got)
    wanted = outcome(torch, theirs, [x.requires_grad_() for x in wide], is_causal=True)
    assert_same_outcome([x.double() for x in got], wanted, 4 * TOLERANCE[dtype])


@pytest.mark.parametrize("alone", [0, 1, 2])
def test_a_gradient_by_one_input_alone(alone: int) -> None:
    inputs = inputs_of(torch, CASES["causal"], "bfloat16")
    wanted = outcome(torch, ours, [x.clone().requires_grad_() for x in inputs], is_causal=True)
    inputs[alone].requires_grad_()
    got = outcome(torch, ours, inputs, is_causal=True)
    assert torch.equal(got[1], wanted[1 + alone])


VIEWS = {
    "tokens first": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "every second token": lambda x: torch.stack([x, x + 1], 3).flatten(2, 3)[:, :, ::2],
    "part of a row": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
    "heads expanded": lambda x: x[:, :1].expand_as(x),
    "columns": lambda x: x.mT.contiguous().mT,
    "negated lazily": lambda x: torch.complex(x, -x).conj().imag,
    "a parameter": torch.nn.Parameter,
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("grad", [False, True], ids=["result", "gradients"])
def test_strides(view: str, grad: bool) -> None:
    given = [VIEWS[view](x).detach() for x in inputs_of(torch, CASES["causal, more keys"])]
    with torch.set_grad_enabled(grad):
        views = [x.requires_grad_(grad) for x in given]
        plain = [x.detach().clone().contiguous().requires_grad_(grad) for x in given]
        got = outcome(torch, ours, views, is_causal=True)
        assert_same_outcome(got, outcome(torch, theirs, plain, is_causal=True), 1e-12)


def test_nothing_is_copied_and_the_result_is_written_in_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The core is told the tensors' own addresses, or gets arrays on their memory."""
    seen: list[tuple[int, tuple[int, ...]]] = []
    from headway.interop import _tensors as tensors
    from headway.interop import _torch_ops as torch_ops

    run, attention = tensors.attend_at, torch_ops.attention

    def at_addresses(*operands: Any) -> bool:
        seen[:] = [(x[0], x[-1]) for x in operands[:4]]
        return run(*operands)

    def on_arrays(*arrays: Any, out: Any, **options: Any) -> Any:
        arrays = (*arrays, out)
        seen[:] = [(x.ctypes.data, tuple(n // x.itemsize for n in x.strides)) for x in arrays]
        return attention(*arrays[:3], out=out, **options)

    monkeypatch.setattr(tensors, "attend_at", at_addresses)
    monkeypatch.setattr(torch_ops, "attention", on_arrays)
    joined = made(torch, (2, 9, 3, 4, 8), 1, "bfloat16")
    inputs = [x.transpose(1, 2) for x in joined.unbind(2)]
    for options in ({"is_causal": True}, {"window": 3}):
        seen.clear()
        out = ours(*inputs, **options)
        assert seen == [(x.data_ptr(), x.stride()) for x in (*inputs, out)]
        assert out.transpose(1, 2).is_contiguous()


ODD = {
    "no memory": lambda x: torch._efficientzerotensor(x.shape, dtype=x.dtype),
    "without values": lambda x: x.to("meta"),
    "sparse": lambda x: x.to_sparse(),
    "of three axes": lambda x: x[0],
    "no tokens": lambda x: x[:, :, :0],
    "another width": lambda x: x[..., :-1],
    "negated lazily": lambda x: torch.complex(x, -x).conj().imag,
    "columns": lambda x: x.mT.contiguous().mT,
}


@pytest.mark.parametrize("at", range(3), ids=["query", "key", "value"])
@pytest.mark.parametrize("kind", ODD)
def test_no_address_is_handed_on_of_what_the_core_cannot_read(kind: str, at: int) -> None:
    from headway.interop._torch_ops import attend_plain

    given = [made(torch, (2, 4, 7, 8), seed, "float32") for seed in range(3)]
    assert attend_plain(*given, True, None, False) is not None
    given[at] = ODD[kind](given[at])
    if (kind, at) == ("another width", 2):
        assert attend_plain(*given, True, None, False).shape == (2, 4, 7, 7)
    else:
        assert attend_plain(*given, True, None, False) is None


def test_the_result_lies_in_memory_as_the_query() -> None:
    query, key, value = inputs_of(torch, CASES["plain"])
    first = query.transpose(1, 2).contiguous().transpose(1, 2)
    for options in ({}, {"window": 2}):
        assert ours(query, key, value, **options).is_contiguous()
        assert ours(first, key, value, **options).transpose(1, 2).is_contiguous()
        assert ours(first.requires_grad_(), key, value, **options).stride() == first.stride()
        first = first.detach()


OPTIONS: dict[str, dict[str, Any]] = {
    "window": {"window": 3},
    "window of two": {"window": (1, 2)},
    "softcap": {"softcap": 2.0},
    "end": {"align": "end", "is_causal": True},
    "position": {"align": 2, "is_causal": True},
    "positions": {"align": [1, 4], "is_causal": True},
    "lengths": {"kv_lengths": [13, 6]},
    "slopes": {"alibi_slopes": [0.5, 0.25, 0.125, 0.0625]},
    "sinks": {"sinks": [0.1, -1.0, 2.0, float("-inf")]},
}


@pytest.mark.parametrize("as_tensor", [False, True], ids=["numbers", "tensors"])
@pytest.mark.parametrize("name", [*OPTIONS, "all"])
def test_options_of_headway(name: str, as_tensor: bool) -> None:
    given: dict[str, Any] = {}
    for each, option in OPTIONS.items():
        if name in (each, "all"):
            given |= option
    inputs = inputs_of(torch, CASES["plain"], grad=True)
    arrays = [x.detach().numpy() for x in inputs]
    renamed = {"causal" if key == "is_causal" else key: x for key, x in given.items()}
    wanted = {"causal": False, "align": "start"} | renamed
    out, lse = headway.attention(*arrays, return_lse=True, **wanted)
    grad_out = np.ones_like(out)
    grads = headway.attention_backward(grad_out, *arrays, out, lse, **wanted)
    if as_tensor:
        for key in ("alibi_slopes", "sinks"):
            if key in given:
                given[key] = torch.tensor(given[key], dtype=torch.float64)
        for key in ("align", "kv_lengths"):
            if isinstance(given.get(key), list):
                given[key] = torch.tensor(given[key])
    got, rows = ours(*inputs, return_lse=True, **given)
    got.sum().backward()
    assert_same_bits(got.detach().numpy(), out)
    assert_same_bits(rows.detach().numpy(), lse)
    for x, expected in zip(inputs, grads, strict=True):
        assert_close(x.grad.numpy(), expected, 1e-14)


@pytest.mark.parametrize("masked", [False, True])
def test_gradients_by_differences(masked: bool) -> None:
    """Of the result and the lse, by query, key, value, a broadcast mask and the sinks."""
    inputs = [made(torch, (2, 2, 5, 4), n).requires_grad_() for n in range(3)]
    inputs.append(made(torch, (2, 1, 5), 3).requires_grad_())
    inputs.append(made(torch, (2,), 4).requires_grad_())

    def run(query: Any, key: Any, value: Any, mask: Any, sinks: Any) -> Any:
        mask = mask if masked else None
        options = {"softcap": 3.0, "window": 3, "align": 1, "return_lse": True}
        return ours(query, key, value, mask, is_causal=True, sinks=sinks, **options)

    assert torch.autograd.gradcheck(run, inputs)


def test_layout() -> None:
    inputs = inputs_of(torch, CASES["causal, more keys"])
    wanted = ours(*inputs, is_causal=True)
    swapped = [x.transpose(1, 2) for x in inputs]
    got = ours(*swapped, is_causal=True, layout="BTHD")
    assert torch.equal(got, wanted.transpose(1, 2))
    three = ours(*(x[0] for x in swapped), is_causal=True, layout="BTHD")
    assert torch.equal(three, wanted[0].transpose(0, 1))
    rows = ours(*swapped, is_causal=True, layout="BTHD", return_lse=True)[1]
    assert torch.equal(rows, ours(*inputs, is_causal=True, return_lse=True)[1])


def test_autocast() -> None:
    inputs = inputs_of(torch, CASES["causal"], "float32")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = ours(*inputs, is_causal=True)
        assert out.dtype is theirs(*inputs, is_causal=True).dtype is torch.bfloat16
        assert ours(*(x.double() for x in inputs)).dtype is torch.float64
    assert torch.equal(out, ours(*(x.bfloat16() for x in inputs), is_causal=True))


def test_without_the_dtype_of_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """The everyday call reads the bits; what needs NumPy's dtype names the package."""
    inputs = inputs_of(torch, CASES["causal"], "bfloat16")
    wanted = ours(*inputs, is_causal=True)
    monkeypatch.setitem(__import__("sys").modules, "ml_dtypes", None)
    assert torch.equal(ours(*inputs, is_causal=True), wanted)
    with pytest.raises(ImportError, match=r"need the package ml_dtypes: pip install 'headway\["):
        ours(*inputs, window=3)


def test_small_arrays_of_numpy_are_not_tensors() -> None:
    q, k, v = make_qkv(1, "float32")
    with pytest.raises(TypeError, match=r"query: expected a torch\.Tensor, got ndarray; convert"):
        ours(q, k, v)
