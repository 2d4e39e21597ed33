"""The attention function of transformers: what a call means, and what is refused."""

from __future__ import annotations

import doctest
import sys
from typing import Any

import numpy as np
import pytest
from helpers import TOLERANCE, assert_close, make

import headway
from headway.interop import transformers as ours
from headway.interop._differentiable import Settings, weights_of

torch = pytest.importorskip("torch")

B, H, HKV, TQ, TK, D, DV = 2, 4, 2, 5, 7, 8, 6


def tensors(dtype: str = "float64", keys: int = TK) -> tuple[Any, Any, Any]:
    """Query, key and value as a model has them: (B,T,H,D) in memory."""
    shapes = (B, TQ, H, D), (B, keys, HKV, D), (B, keys, HKV, DV)
    return tuple(
        torch.from_numpy(make(n, shape)).to(getattr(torch, dtype)).transpose(1, 2)
        for n, shape in enumerate(shapes)
    )


def call(*inputs: Any, mask: Any = None, causal: bool = True, **options: Any) -> Any:
    module = torch.nn.Module()
    module.is_causal = causal
    return ours.attention_forward(module, *inputs, mask, **options)


def wanted(*inputs: Any, **options: Any) -> Any:
    """The reference's contexts as (B,T,H,Dv), in float64."""
    arrays = [x.to(torch.float64).numpy() for x in inputs]
    options = {n: x.numpy() if hasattr(x, "numpy") else x for n, x in options.items()}
    return headway.reference.attention(*arrays, **options).swapaxes(1, 2)


def hidden_at_random(*shape: int) -> Any:
    return torch.from_numpy(make(9, shape) > -0.4)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_every_dtype(dtype: str, isa: str, threads: int) -> None:
    inputs = tensors(dtype)
    out, weights = call(*inputs)
    assert weights is None
    assert (out.shape, out.dtype) == ((B, TQ, H, DV), inputs[0].dtype)
    assert out.is_contiguous()
    assert_close(out.double().numpy(), wanted(*inputs, align="start"), TOLERANCE[dtype])


@pytest.mark.parametrize("keys", [TQ, TK])
@pytest.mark.parametrize(("given", "owned"), [(None, True), (None, False), (True, False)])
def test_a_call_without_a_mask(keys: int, given: bool | None, owned: bool) -> None:
    """Causal from key 0 on; the argument counts before the module."""
    inputs = tensors(keys=keys)
    causal = owned if given is None else given
    got, _ = call(*inputs, causal=owned, is_causal=given)
    assert_close(got.numpy(), wanted(*inputs, causal=causal, align="start"), 1e-12)


def test_one_query_without_a_mask_sees_all() -> None:
    query, key, value = tensors()
    got, _ = call(query[:, :, :1], key, value)
    assert_close(got.numpy(), wanted(query[:, :, :1], key, value, causal=False), 1e-12)


def test_a_module_that_says_nothing_is_causal() -> None:
    inputs = tensors()
    got, _ = ours.attention_forward(torch.nn.Module(), *inputs, None)
    assert_close(got.numpy(), wanted(*inputs, align="start"), 1e-12)


@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("shape", [(B, 1, TQ, TK), (1, 1, TQ, TK), (B, H, TQ, TK), (B, 1, 1, TK)])
def test_the_mask_says_all(kind: str, shape: tuple[int, ...]) -> None:
    """With a mask there is no other causality, and every option counts beside it."""
    mask, inputs = hidden_at_random(*shape), tensors()
    if kind == "float":
        mask = torch.where(mask, torch.from_numpy(make(8, shape)), -torch.inf)
    sinks = torch.from_numpy(make(7, (H,)))
    got, _ = call(*inputs, mask=mask, scaling=0.3, softcap=1.5, s_aux=sinks, sliding_window=2)
    expected = wanted(*inputs, causal=False, mask=mask, scale=0.3, softcap=1.5, sinks=sinks)
    assert_close(got.numpy(), expected, 1e-12)


@pytest.mark.parametrize("kind", ["none", "bool", "float"])
def test_a_position_bias_is_added(kind: str) -> None:
    inputs, bias = tensors(), torch.from_numpy(make(6, (1, H, TQ, TK)))
    mask = None if kind == "none" else hidden_at_random(B, 1, TQ, TK)
    joined = bias if mask is None else torch.where(mask, bias, -torch.inf)
    if kind == "float":
        mask = torch.where(mask, 0.25, -torch.inf).double()
        joined = bias + mask
    got, _ = call(*inputs, mask=mask, position_bias=bias)
    expected = wanted(*inputs, causal=mask is None, align="start", mask=joined)
    assert_close(got.numpy(), expected, 1e-12)


@pytest.mark.parametrize("kind", ["none", "bool", "float"])
@pytest.mark.parametrize("causal", [True, False])
def test_packed_sequences_see_themselves(causal: bool, kind: str) -> None:
    query, key, value = (x[:1] for x in tensors(keys=TQ))
    mask = None if kind == "none" else hidden_at_random(1, 1, TQ, TQ)
    shown = np.ones((1, 1, TQ, TQ), bool) if mask is None else mask.numpy()
    if kind == "float":
        mask = torch.where(mask, 0.0, -torch.inf)
    member = np.arange(TQ) >= 2
    same = member[:, None] == member
    at = torch.tensor([0, 2, 5], dtype=torch.int32)
    got, _ = call(query, key, value, mask=mask, causal=causal, cu_seq_lens_q=at, cu_seq_lens_k=at)
    options = {"causal": causal and mask is None, "mask": torch.from_numpy(shown & same)}
    assert_close(got.numpy(), wanted(query, key, value, **options), 1e-12)


def test_one_entry_serves_the_batch() -> None:
    query, key, value = tensors()
    got, _ = call(query[:1], key, value, causal=False)
    both = query[:1].expand(B, -1, -1, -1)
    assert_close(got.numpy(), wanted(both, key, value, causal=False), 1e-12)


@pytest.mark.parametrize("options", [{}, {"softcap": 1.5}, {"s_aux": torch.tensor([0.5] * H)}])
@pytest.mark.parametrize("kind", ["none", "bool", "float"])
@pytest.mark.parametrize("grad", [False, True])
def test_weights(grad: bool, kind: str, options: dict[str, Any]) -> None:
    """By our kernels, or by PyTorch's operators where gradients are wanted: the same numbers."""
    query, key, value = tensors()
    mask = None if kind == "none" else hidden_at_random(B, 1, TQ, TK)
    if mask is not None:
        mask[0, 0, 1] = False  # a row that may attend to nothing
    if kind == "float":
        mask = torch.where(mask, 0.25, -torch.inf).double()
    query.requires_grad_(grad)
    settings = Settings(mask is None, None, options.get("softcap"), 0.0, None)
    got = weights_of(query, key, mask, options.get("s_aux"), settings)
    query.requires_grad_(False)
    _, same = call(query, key, value, mask=mask, output_attentions=True, **options)
    assert_close(same.numpy(), got.detach().numpy(), 1e-14)
    named = {"softcap": options.get("softcap"), "sinks": options.get("s_aux")}
    arrays = {n: x.numpy() if hasattr(x, "numpy") else x for n, x in named.items()}
    expected = headway.reference.attention_weights(
        query.numpy(),
        key.numpy(),
        causal=mask is None,
        align="start",
        mask=None if mask is None else mask.numpy(),
        **arrays,
    )
    assert got.requires_grad is grad
    assert_close(got.detach().numpy(), expected, 1e-12)


def test_negated_views_and_empty_calls() -> None:
    query, key, value = tensors()
    negated = torch.imag(torch.view_as_complex(torch.stack([key, -key], -1)).conj())
    assert negated.is_neg()
    assert_close(call(query, negated, value)[0].numpy(), call(query, key, value)[0].numpy(), 0.0)
    assert call(query[:, :, :0], key, value)[0].shape == (B, 0, H, DV)
    assert call(query[:0], key[:0], value[:0])[0].shape == (0, TQ, H, DV)


REFUSED: list[tuple[type[Exception], str, dict[str, Any]]] = [
    (TypeError, "head_mask: expected no keyword that may change", {"head_mask": torch.ones(H)}),
    (TypeError, "indices: expected no keyword that may change", {"indices": 0}),
    (TypeError, "attention_mask: expected a torch.Tensor, got ndarray", {"mask": np.ones((5, 7))}),
    (
        ValueError,
        "attention_mask: expected a shape that",
        {"mask": torch.ones(3, 5, 7, dtype=torch.bool)},
    ),
    (
        TypeError,
        "attention_mask: expected bool or a float",
        {"mask": torch.ones(5, 7, dtype=torch.int64)},
    ),
    (ValueError, "sliding_window: expected a mask that holds", {"sliding_window": 6}),
    (TypeError, "position_bias: expected float32", {"position_bias": torch.ones(5, 7).bool()}),
    (ValueError, "sinks: expected shape", {"s_aux": torch.ones(2)}),
    (TypeError, "s_aux: expected float32", {"s_aux": torch.ones(4, dtype=torch.int64)}),
    (ValueError, "softcap: expected a finite number", {"softcap": -1.0}),
    (TypeError, "cu_seq_lens_k: expected a torch.Tensor", {"cu_seq_lens_q": torch.tensor([0, 5])}),
    (ValueError, "cu_seq_lens_q: expected rising", {"cu_seq_lens_q": torch.tensor([0, 4])}),
    (
        ValueError,
        "cu_seq_lens_k: expected that of the queries",
        {
            "cu_seq_lens_q": torch.tensor([0, 2, 5]),
            "cu_seq_lens_k": torch.tensor([0, 3, 7]),
        },
    ),
]


@pytest.mark.parametrize(("kind", "text", "options"), REFUSED)
def test_what_is_refused(kind: type[Exception], text: str, options: dict[str, Any]) -> None:
    inputs = tensors()
    if "cu_seq_lens_q" in options:
        inputs = tuple(x[:1] for x in inputs)
    with pytest.raises(kind, match=text):
        call(*inputs, **options)


def test_tensors_that_are_refused() -> None:
    query, key, value = tensors()
    for wrong, text in (
        (query.numpy(), "query: expected a torch.Tensor, got ndarray"),
        (query.to("meta"), r"query: expected a tensor on the CPU, got one on meta"),
        (query.to_sparse(), "query: expected a dense tensor, got layout torch.sparse_coo"),
        (query.to(torch.complex64), "query: expected float32, float64, .* got complex64"),
    ):
        with pytest.raises(TypeError, match=text):
            call(wrong, key, value)
    with pytest.raises(ValueError, match="query: expected 4 axes"):
        call(query[0], key, value)
    with pytest.raises(TypeError, match=r"key: expected .*float64 like query, got .*float32"):
        call(query, key.float(), value)


@pytest.mark.parametrize("keyword", ["position_ids", "use_cache", "cache", "deterministic"])
def test_keywords_that_change_nothing(keyword: str) -> None:
    inputs = tensors()
    assert torch.equal(call(*inputs)[0], call(*inputs, **{keyword: torch.ones(1)})[0])
    assert torch.equal(call(*inputs)[0], call(*inputs, head_mask=None, return_lse=False)[0])


def test_names() -> None:
    pytest.importorskip("transformers")
    from transformers import AttentionInterface

    for name in ("eager", "", "flash_attention_9", "someone/kernel", "paged|headway"):
        with pytest.raises(ValueError, match="name: expected one without a meaning"):
            ours.register(name)
    with pytest.raises(ValueError, match="name: expected one that no other attention has"):
        ours.register("sdpa")
    with pytest.raises(TypeError, match="name: expected a string, got int"):
        ours.register(3)  # type: ignore[arg-type]
    ours.register("another-name")
    first = AttentionInterface()["another-name"]
    ours.register("another-name")
    assert AttentionInterface()["another-name"] is first
    assert first(torch.nn.Module(), *tensors(), None)[0].shape == (B, TQ, H, DV)


@pytest.mark.parametrize("absent", ["torch", "transformers"])
def test_without_a_package(absent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, absent, None)
    text = rf"needs the package {absent}.*pip install 'headway\[transformers\]'"
    with pytest.raises(ImportError, match=text):
        ours.register()


def test_examples() -> None:
    pytest.importorskip("transformers")
    failed, tried = doctest.testmod(ours, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert (failed, tried > 0) == (0, True)
