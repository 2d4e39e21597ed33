"""The layers of examples/train_char_gpt.py: their gradients by central differences, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from example_files import module
from helpers import make

layers = module("char_gpt_layers")
optimizer = module("char_gpt_optimizer")

Array = Any
STEP = 1e-5
ROWS = 130
"""More than go through the steps of a layer together, and no multiple of it."""


def slopes(function: Callable[[Array], Array], x: Array, places: int = 40) -> Array:
    """d function / d x[place] by central differences, for places drawn at random, with them."""
    drawn = np.random.default_rng(1).choice(x.size, min(places, x.size), replace=False)
    found = []
    for place in drawn:
        ends = []
        for sign in (1, -1):
            moved = x.copy()
            moved.reshape(-1)[place] += sign * STEP
            ends.append(float(function(moved)))
        found.append((ends[0] - ends[1]) / (2 * STEP))
    return drawn, np.array(found)


def assert_gradient(function: Callable[[Array], Array], x: Array, grad: Array) -> None:
    places, expected = slopes(function, x)
    assert grad.shape == x.shape
    np.testing.assert_allclose(grad.reshape(-1)[places], expected, rtol=1e-6, atol=1e-8)


def test_layer_norm() -> None:
    x, weight, bias = 3 * make(0, (ROWS, 7)) + 2, make(1, (7,)), make(2, (7,))
    result, _ = layers.layer_norm(x, weight, bias)
    centred = x - x.mean(axis=1, keepdims=True)
    expected = centred / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5) * weight + bias
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("which", [0, 1, 2], ids=["x", "weight", "bias"])
def test_the_gradients_of_layer_norm(which: int) -> None:
    inputs = [3 * make(0, (ROWS, 7)) + 2, make(1, (7,)), make(2, (7,))]
    grad = make(3, (ROWS, 7))
    _, normed = layers.layer_norm(*inputs)
    found = layers.layer_norm_backward(grad, normed, inputs[1])

    def through(moved: Array) -> Array:
        return (layers.layer_norm(*inputs[:which], moved, *inputs[which + 1 :])[0] * grad).sum()

    assert_gradient(through, inputs[which], found[which])


def test_gelu() -> None:
    x = np.array([[-50.0, -1.0, 0.0, 1.0, 50.0]])
    expected = [[0.0, -0.15880801, 0.0, 0.84119199, 50.0]]  # as torch has it for "tanh"
    np.testing.assert_allclose(layers.gelu(x)[0], expected, atol=1e-8)


def test_the_gradient_of_gelu() -> None:
    x, grad = 2 * make(0, (ROWS, 9)), make(1, (ROWS, 9))
    found = layers.gelu_backward(grad, x, layers.gelu(x)[1])
    assert_gradient(lambda moved: (layers.gelu(moved)[0] * grad).sum(), x, found)


def test_cross_entropy_and_its_gradient() -> None:
    logits = 4 * make(0, (ROWS, 11))
    targets = np.random.default_rng(0).integers(0, 11, ROWS)
    loss, grad = layers.cross_entropy(logits, targets)
    weights = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert loss == pytest.approx(-np.log(weights[np.arange(ROWS), targets]).mean(), rel=1e-12)
    assert_gradient(lambda moved: layers.cross_entropy(moved, targets)[0], logits, grad)


def test_cross_entropy_of_large_logits_is_finite() -> None:
    logits = np.array([[1e4, -1e4, 0.0]], np.float32)
    loss, grad = layers.cross_entropy(logits, np.array([1]))
    assert loss == 2e4
    np.testing.assert_array_equal(grad, [[1, -1, 0]])


def test_the_gradient_of_an_embedding() -> None:
    table = make(0, (6, 5))
    ids = np.array([4, 0, 4, 2, 2, 4])
    grad = make(1, (6, 5))
    found = layers.embedding_backward(grad, ids, 6)
    assert_gradient(lambda moved: (moved[ids] * grad).sum(), table, found)
    assert not found[[1, 3, 5]].any()
    assert not layers.embedding_backward(grad[:0], ids[:0], 6).any()


def test_dropout_keeps_the_mean() -> None:
    scale = layers.dropout_scale((300, 300), 0.25, np.random.default_rng(0))
    assert scale.dtype == np.float32
    np.testing.assert_array_equal(np.unique(scale), np.float32([0, 1 / 0.75]))
    assert scale.mean() == pytest.approx(1, abs=0.01)
    assert (layers.dropout_scale((9,), 0.0, np.random.default_rng(0)) == 1).all()


# Optimizer ----------------------------------------------------------------------------------------


def test_the_arrays_are_views_of_the_vector() -> None:
    parameters = optimizer.Parameters({"bias": (3,), "weight": (2, 3), "norm": (2,)})
    parameters["weight"] = np.ones((2, 3))
    parameters["bias"] = np.full(3, 2)
    np.testing.assert_array_equal(parameters.flat, [1] * 6 + [2] * 3 + [0] * 2)
    assert parameters.num_decayed == 6


def test_clip() -> None:
    grad = np.array([3, 4], np.float32)
    assert optimizer.clip(grad, 6.0) == 5
    np.testing.assert_array_equal(grad, [3, 4])
    assert optimizer.clip(grad, 2.5) == 5
    np.testing.assert_allclose(grad, [1.5, 2])


def test_the_learning_rate_rises_and_falls() -> None:
    rates = [optimizer.learning_rate(n, peak=2.0, warmup=10, steps=110) for n in range(110)]
    np.testing.assert_allclose(rates[:10], np.arange(1, 11) * 0.2)
    assert rates[10] == 2
    assert rates[60] == pytest.approx(1.1)
    assert rates[-1] == pytest.approx(0.2, abs=0.001)
    assert (np.diff(rates[10:]) < 0).all()
    assert optimizer.learning_rate(0, peak=2.0, warmup=1, steps=1) == 2
