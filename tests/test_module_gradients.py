"""The gradients of the modules: against float64, central differences, torch, and each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gradients import GRADIENT_TOLERANCE
from helpers import DTYPES, Array, assert_close, assert_same_bits, dtype_of, make
from module_helpers import CLASSES, Module, both_stages, build, reference_gradients, renamed

import headway
from headway import CausalAttention, Gradients, MultiHeadAttention, StackedMultiHeadAttention


def backward(module: Module, x: Array, seed: int = 9) -> tuple[Gradients, Array]:
    """The gradients for a random grad, and it."""
    result = module.forward(x, save=True)
    assert_same_bits(result, module(x))
    grad = make((seed, 1), result.shape, result.dtype.name)
    return module.backward(grad), grad


def assert_gradients(module: Module, x: Array) -> None:
    """Fail unless every gradient is that of float64, and has the shape of what it belongs to."""
    got, grad = backward(module, x)
    of_x, of_weights = reference_gradients(module, x, grad)
    tolerance = GRADIENT_TOLERANCE[module.dtype.name]
    assert got.x.flags.c_contiguous
    assert got.x.dtype == module.dtype
    assert_close(got.x, of_x, tolerance, "x")
    parameters = module.parameters()
    assert list(got.weights) == list(parameters)
    for name, array in got.weights.items():
        assert array.shape == parameters[name].shape
        assert array.dtype == module.dtype
        scale = abs(of_weights[name]).max()
        if name.endswith(("query", "key")):  # may be 0, as where a token sees itself alone
            kind = name.rpartition("_")[2]
            scale = max(scale, abs(of_weights[name.replace(kind, "value")]).max())
        error = abs(array.astype(np.float64) - of_weights[name]).max()
        assert error <= tolerance * scale, f"{name}: {error / scale:.3e} of the scale"


# Numbers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cls", CLASSES)
def test_gradients(cls: type[Module], dtype: str, plain: bool, isa: str, threads: int) -> None:
    """One sequence and a batch, one token and many; with and without biases and w_out."""
    module = build(cls, dtype, plain=plain)
    for shape in ((5, 6), (1, 6), (2, 37, 6)):
        assert_gradients(module, make(1, shape, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_many_tokens_and_wide_heads(dtype: str, isa: str) -> None:
    options = {"num_heads": 3, "num_kv_heads": 1, "qkv_bias": True, "out_proj": True}
    module = MultiHeadAttention.init(70, 120, dtype=dtype_of(dtype), **options)
    assert_gradients(module, make(2, (2, 260, 70), dtype))


def test_some_biases_and_another_width() -> None:
    w = make(1, (3, 6, 8))
    for b_query, b_key, b_value, b_out in ((True, False, True, False), (False, True, False, True)):
        module = MultiHeadAttention(
            *w,
            num_heads=2,
            b_query=make(2, (8,)) if b_query else None,
            b_key=make(3, (8,)) if b_key else None,
            b_value=make(4, (8,)) if b_value else None,
            w_out=make(5, (8, 3)),
            b_out=make(6, (3,)) if b_out else None,
        )
        got, grad = backward(module, make(7, (2, 5, 6)))
        of_x, of_weights = reference_gradients(module, make(7, (2, 5, 6)), grad)
        assert_close(got.x, of_x, 1e-12)
        assert set(got.weights) == set(module.parameters())
        for name in set(got.weights) - {"b_key"}:
            assert_close(got.weights[name], of_weights[name], 1e-12, name)


@pytest.mark.parametrize("cls", CLASSES)
def test_central_differences(cls: type[Module], isa: str) -> None:
    """The loss moves along a random direction of x and of each weight as its gradient says."""
    module, x = build(cls, "float64"), make(1, (2, 7, 6))
    got, grad = backward(module, x)
    step = 1e-5

    def loss(more: Array, name: str = "", direction: Array | float = 0.0) -> float:
        other = build(cls, "float64")
        if name:
            other.assign({name: other.parameters()[name] + direction})
        return float((other(x + more) * grad).sum())

    none = np.zeros(x.shape)
    direction = make(2, x.shape)
    slope = (loss(step * direction) - loss(-step * direction)) / (2 * step)
    assert slope == pytest.approx((got.x * direction).sum(), abs=1e-6)
    for name, array in got.weights.items():
        direction = make(3, array.shape)
        ahead, behind = (loss(none, name, sign * step * direction) for sign in (1, -1))
        slope = (ahead - behind) / (2 * step)
        assert slope == pytest.approx((array * direction).sum(), abs=1e-6), name


def test_heads_of_different_widths() -> None:
    heads = [CausalAttention.init(6, size, dtype=np.float64, seed=size) for size in (3, 5)]
    module = StackedMultiHeadAttention(heads, w_out=make(1, (8, 4)))
    x, grad = make(2, (2, 9, 6)), make(3, (2, 9, 4))
    module.forward(x, save=True)
    got = module.backward(grad)
    of_x = np.zeros(x.shape)
    for n, (head, columns) in enumerate(zip(heads, (slice(3), slice(3, 8)), strict=True)):
        above = grad @ make(1, (8, 4))[columns].T
        part, of_weights = reference_gradients(head, x, above)
        of_x += part
        for name, array in of_weights.items():
            assert_close(got.weights[f"heads.{n}.{name}"], array, 1e-12, name)
    assert_close(got.x, of_x, 1e-12)


# Bits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("out_proj", [False, True])
def test_both_stages_agree(out_proj: bool, dtype: str, isa: str, threads: int) -> None:
    """Gradients of the weights to the bit; that of x is summed in another order."""
    options = {"num_heads": 5, "qkv_bias": True, "out_proj": out_proj, "dtype": dtype_of(dtype)}
    stacked, merged = both_stages(23, 70, seed=4, **options)
    x = make(5, (2, 70, 23), dtype)
    one, other = backward(stacked, x)[0], backward(merged, x)[0]
    expected = renamed(stacked, other.weights)
    assert list(one.weights) == list(expected)
    for name, array in expected.items():
        assert_same_bits(one.weights[name], array, name)
    assert_close(one.x, other.x.astype(np.float64), GRADIENT_TOLERANCE[dtype], "x")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.usefixtures("any_threads")
def test_threads(cls: type[Module], dtype: str, isa: str) -> None:
    module, x = build(cls, dtype), make(2, (2, 130, 6), dtype)
    headway.set_num_threads(1)
    expected, _ = backward(module, x)
    for count in (2, 3, 7):
        headway.set_num_threads(count)
        got, _ = backward(module, x)
        assert_same_bits(got.x, expected.x, f"{count} threads")
        for name, array in expected.weights.items():
            assert_same_bits(got.weights[name], array, f"{name}, {count} threads")


@pytest.mark.parametrize("cls", CLASSES)
def test_strides(cls: type[Module]) -> None:
    """Any strides of x and grad give what contiguous arrays do."""
    module, x = build(cls, "float32"), make(1, (3, 8, 6), "float32")
    result = module.forward(x, save=True)
    grad = make(2, result.shape, "float32")
    expected = module.backward(grad)
    for view in (
        lambda a: np.stack([a, a], axis=2)[:, :, 1],
        lambda a: a.swapaxes(0, 1).copy().swapaxes(0, 1),
        np.asfortranarray,
    ):
        module.forward(view(x), save=True)
        got = module.backward(view(grad))
        assert_same_bits(got.x, expected.x)
        for name, array in expected.weights.items():
            assert_same_bits(got.weights[name], array, name)


# torch --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_torch(kv_heads: int, dtype: str) -> None:
    torch: Any = pytest.importorskip("torch")
    module = MultiHeadAttention.init(
        24, 32, num_heads=4, num_kv_heads=kv_heads, qkv_bias=True, out_proj=True,
        dtype=dtype_of(dtype),
    )  # fmt: skip
    x = make(4, (2, 33, 24), dtype)
    got, grad = backward(module, x)
    like = getattr(torch, dtype)

    def leaf(array: Array) -> Any:
        return torch.tensor(array.astype(np.float64)).to(like).requires_grad_()

    weights = {name: leaf(w) for name, w in module.parameters().items()}
    given = leaf(x)

    def projected(kind: str, count: int) -> Any:
        rows = given @ weights[f"w_{kind}"] + weights[f"b_{kind}"]
        return rows.unflatten(-1, (count, 8)).transpose(1, 2)

    q, k, v = projected("query", 4), projected("key", kv_heads), projected("value", kv_heads)
    k, v = (a.repeat_interleave(4 // kv_heads, dim=1) for a in (k, v))
    z = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    result = z.transpose(1, 2).flatten(-2) @ weights["w_out"] + weights["b_out"]
    result.backward(leaf(grad).detach())
    tolerance = 2 * GRADIENT_TOLERANCE[dtype]  # both have rounded

    def wide(tensor: Any) -> Array:
        array: Array = tensor.grad.double().numpy()
        return array

    assert_close(got.x, wide(given), tolerance, "x")
    for name in set(weights) - {"b_key"}:
        assert_close(got.weights[name], wide(weights[name]), tolerance, name)
