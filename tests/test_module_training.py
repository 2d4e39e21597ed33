"""Modules in training: what forward keeps, what backward refuses, parameters and assign."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import weakref
from typing import Any

import numpy as np
import pytest
from helpers import Array, assert_same_bits, make, run_python
from module_helpers import CLASSES, Module, build
from peaks import MIB, START

import headway
from headway import MultiHeadAttention, StackedMultiHeadAttention

F32 = np.float32


def nothing_saved(module: Module) -> str:
    return (
        f"backward: expected a forward call of this {type(module).__name__} that was saved, with "
        "the weights it has now, got none; call forward(x, save=True) before each backward"
    )


def assert_nothing_saved(module: Module) -> None:
    with pytest.raises(RuntimeError) as caught:
        module.backward(np.zeros((5, 8), F32))
    assert str(caught.value) == nothing_saved(module)


# What is kept -------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", CLASSES)
def test_backward_needs_a_saved_forward_and_uses_it_up(cls: type[Module]) -> None:
    module, x = build(cls), make(1, (5, 6), "float32")
    assert_nothing_saved(module)
    grad = module(x)
    module.forward(x)
    module.heads(x)
    assert_nothing_saved(module)
    module.forward(x, save=True)
    state = module.state_dict()
    for other in copy.copy(module), copy.deepcopy(module), pickle.loads(pickle.dumps(module)):
        assert_nothing_saved(other)
    assert list(state) == list(module.state_dict())
    first = module.backward(grad)
    assert_nothing_saved(module)
    module.forward(make(2, (9, 6), "float32"), save=True)
    module.forward(x, save=True)  # takes the other's place
    module(make(3, (7, 6), "float32"))  # changes nothing
    assert_same_bits(module.backward(grad).x, first.x)
    with pytest.raises(ValueError, match="x: expected 6 numbers"):
        module.forward(x[:, :5], save=True)
    assert_nothing_saved(module)


@pytest.mark.parametrize("cls", CLASSES)
def test_no_backward_with_other_weights(cls: type[Module]) -> None:
    module, x = build(cls), make(1, (5, 6), "float32")
    for name in module.parameters():
        module.forward(x, save=True)
        module.assign({name: module.parameters()[name]})
        assert_nothing_saved(module)
    if isinstance(module, StackedMultiHeadAttention):
        module.forward(x, save=True)
        module[2].w_key = module[2].w_key
        assert_nothing_saved(module)


@pytest.mark.parametrize("cls", CLASSES)
def test_what_is_kept_is_freed(cls: type[Module]) -> None:
    module, x, y = build(cls), make(1, (5, 6), "float32"), make(2, (5, 6), "float32")
    alive = weakref.ref(x), weakref.ref(y)
    module.forward(x, save=True)
    del x
    assert alive[0]() is not None  # kept, not copied
    result = module.forward(y, save=True)
    del y
    gc.collect()
    assert alive[0]() is None
    module.backward(result)
    gc.collect()
    assert alive[1]() is None


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("cls", CLASSES)
def test_the_result_may_be_written_to(cls: type[Module], plain: bool) -> None:
    module, x = build(cls, plain=plain), make(1, (5, 6), "float32")
    module.forward(x, save=True)
    grad = make(2, (5, 8), "float32")
    expected = module.backward(grad)
    module.forward(x, save=True)[...] = 7
    got = module.backward(grad)
    for name, array in expected.weights.items():
        assert_same_bits(got.weights[name], array, name)


@pytest.mark.parametrize("shape", [(0, 6), (0, 5, 6), (3, 0, 6)])
@pytest.mark.parametrize("cls", CLASSES)
def test_no_tokens(cls: type[Module], shape: tuple[int, ...]) -> None:
    module = build(cls)
    got = module.backward(module.forward(np.zeros(shape, F32), save=True))
    assert got.x.shape == shape
    for name, array in module.parameters().items():
        assert got.weights[name].shape == array.shape
        assert not got.weights[name].any()


# Refusals -----------------------------------------------------------------------------------------


REFUSED: dict[str, tuple[type[Exception], Any, str]] = {
    "a list": (
        TypeError, [[1.0]],
        "grad: expected a NumPy array or an object with __dlpack__ or __array__, got list; "
        "convert with np.asarray(grad, dtype=np.float32)",
    ),
    "float64": (
        TypeError, np.zeros((5, 8)),
        "grad: expected float32 like the module's weights, got float64; "
        "convert with grad.astype(np.float32)",
    ),
    "shape": (
        ValueError, np.zeros((1, 5, 8), F32),
        "grad: expected shape (5, 8) like the result of forward, got (1, 5, 8); "
        "pass the gradient of every number of the result",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("cls", CLASSES)
def test_refused_gradients(cls: type[Module], name: str) -> None:
    error, grad, text = REFUSED[name]
    module = build(cls)
    module.forward(make(1, (5, 6), "float32"), save=True)
    with pytest.raises(error) as caught:
        module.backward(grad)
    assert str(caught.value) == text
    module.backward(np.zeros((5, 8), F32))  # what was kept stayed


def test_a_cache_is_not_for_training() -> None:
    module = build(MultiHeadAttention)
    cache = headway.KVCache(1, 2, 8, 2)
    text = "^cache: expected None with save=True or training=True, got a cache; pass all "
    with pytest.raises(ValueError, match=text):
        module.forward(np.zeros((5, 6), F32), save=True, cache=cache)
    assert cache.lengths.tolist() == [0]
    x = make(1, (5, 6), "float32")
    assert_same_bits(module.forward(x, cache=cache), module(x))


# Parameters ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", CLASSES)
def test_parameters_are_the_attributes(cls: type[Module]) -> None:
    module = build(cls)
    parameters = module.parameters()
    assert sum(array.size for array in parameters.values()) == module.num_parameters
    for name, array in parameters.items():
        place, dot, last = name.removeprefix("heads.").partition(".")
        owner: Any = module[int(place)] if dot else module  # type: ignore[index]
        assert_same_bits(array, getattr(owner, last if dot else name))
        assert not array.flags.writeable


@pytest.mark.parametrize("cls", CLASSES)
def test_assign_replaces_what_it_is_given(cls: type[Module]) -> None:
    module, x = build(cls), make(1, (5, 6), "float32")
    new = {name: make((7, n), w.shape, "float32") for n, (name, w) in enumerate(
        module.parameters().items()
    )}  # fmt: skip
    some = list(new)[::2]
    kept = module.parameters()
    module.assign({name: new[name] for name in some})
    for name, array in module.parameters().items():
        assert_same_bits(array, new[name] if name in some else kept[name], name)
    module.assign(new)
    other = copy.copy(module)
    for array in new.values():
        array[...] = 0  # they were copied in
    assert_same_bits(module(x), other(x))
    module.assign({})
    assert_same_bits(module(x), other(x))


def test_assign_packs_what_lies_side_by_side_once(monkeypatch: pytest.MonkeyPatch) -> None:
    module, count = build(MultiHeadAttention), [0]

    def spy(*arguments: Any) -> Any:
        count[0] += 1
        return headway.packed_weights.packed_side_by_side(*arguments)  # type: ignore[attr-defined]

    monkeypatch.setattr("headway.module_base.packed_side_by_side", spy)
    module.assign(module.parameters())
    assert count == [2]  # Q, K and V; the output


def test_refused_weights_change_nothing() -> None:
    module = build(StackedMultiHeadAttention)
    before = pickle.dumps(module)
    good = {"heads.1.w_query": np.zeros((6, 2), F32)}
    for bad, error, text in (
        (
            {"heads.4.w_query": np.zeros((6, 2), F32)}, ValueError,
            "weights: expected names of parameters(), got 'heads.4.w_query'; this module has "
            + ", ".join(module.parameters()),
        ),
        (
            {"w_out": np.zeros((8, 8))}, TypeError,
            "w_out: expected float32 like the weight it replaces, got float64; "
            "convert with w_out.astype(np.float32)",
        ),
        (
            {"b_out": np.zeros((9,), F32)}, ValueError,
            "b_out: expected shape (8,), got (9,); "
            "a weight is replaced by one of the same shape",
        ),
    ):  # fmt: skip
        with pytest.raises(error) as caught:
            module.assign(good | bad)
        assert str(caught.value) == text
    assert pickle.dumps(module) == before


@pytest.mark.parametrize("cls", CLASSES)
def test_save_and_weights_of_wrong_kinds(cls: type[Module]) -> None:
    module = build(cls)
    with pytest.raises(TypeError, match="save: expected"):
        module.forward(make(1, (5, 6), "float32"), save="x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="weights: expected a mapping of names to arrays, got list"):
        module.assign([1])  # type: ignore[arg-type]


@pytest.mark.parametrize("cls", CLASSES)
def test_state_dict_of_gradients_fits_that_of_the_module(cls: type[Module]) -> None:
    module = build(cls)
    result = module.forward(make(1, (5, 6), "float32"), save=True)
    state = module.backward(result).state_dict()
    expected = module.state_dict()
    assert {name: a.shape for name, a in state.items()} == {
        name: a.shape for name, a in expected.items()
    }
    assert list(state) == list(expected)


@pytest.mark.parametrize("cls", CLASSES)
def test_steps_along_the_gradient_lower_the_loss(cls: type[Module]) -> None:
    """A few steps of gradient descent, as an optimizer takes them."""
    module, x = build(cls, np.float64), make(1, (4, 9, 6))
    wanted = make(2, (4, 9, 8))
    losses = []
    for _ in range(20):
        apart: Array = module.forward(x, save=True) - wanted
        losses.append(float((apart**2).mean()))
        gradients = module.backward(2 * apart / apart.size).weights
        weights = module.parameters()
        module.assign({name: weights[name] - 0.5 * array for name, array in gradients.items()})
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.97 * losses[0]


MEMORY = """
headway.set_num_threads(2)
module = headway.MultiHeadAttention.init(64, 64, num_heads=4, out_proj=True)
x = np.ones((1, 16384, 64), np.float32)
grad = np.ones((1, 16384, 64), np.float32)
module.forward(x[:, :9], save=True)
module.backward(grad[:, :9])
headway.release_memory()
kept = peak_of(lambda: module.forward(x, save=True))
print(json.dumps([kept, peak_of(lambda: module.backward(grad))]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="this machine: has no /proc/self/status")
def test_memory_grows_with_the_tokens_and_no_faster() -> None:
    """16,384 tokens: Q, K, V, Z and the result are 20 MiB; a matrix of scores would be 4 GiB."""
    forward, back = run_python(START + MEMORY, timeout=300)
    assert forward < 30 * MIB, f"{forward / MIB:.1f} MiB"
    assert back < 60 * MIB, f"{back / MIB:.1f} MiB"
