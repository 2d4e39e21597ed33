"""The parts of a small GPT that headway has no module for, with their gradients, in NumPy.

Shapes: N rows (tokens) of `width` numbers. No product of matrices is left to NumPy, whose BLAS
library has threads of its own; so the bits of a result do not depend on the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

EPSILON = 1e-5
ROWS_AT_ONCE = 128
"""Rows that go through several steps together: their numbers stay in a core's cache."""

GELU_FACTOR = math.sqrt(2 / math.pi)
GELU_CUBE = 0.044715


def blocks(count: int) -> Iterator[slice]:
    """The rows 0 to count in pieces."""
    for start in range(0, count, ROWS_AT_ONCE):
        yield slice(start, min(start + ROWS_AT_ONCE, count))


# Layer norm ---------------------------------------------------------------------------------------


class Normed(NamedTuple):
    """What the gradient of a layer norm needs: rows before weight and bias, and 1 / deviation."""

    rows: Array  # (N, width)
    inverse: Array  # (N, 1)


def layer_norm(x: Array, weight: Array, bias: Array) -> tuple[Array, Normed]:
    """Each row of x, (N, width), less its mean, over its deviation; times weight, plus bias."""
    result, rows = np.empty_like(x), np.empty_like(x)
    inverse = np.empty((len(x), 1), x.dtype)
    for part in blocks(len(x)):
        normed, root = rows[part], inverse[part]
        np.subtract(x[part], x[part].mean(axis=1, keepdims=True), out=normed)
        np.einsum("ni,ni->n", normed, normed, out=root[:, 0])
        root /= x.shape[1]
        root += EPSILON
        np.sqrt(root, out=root)
        np.divide(1, root, out=root)
        normed *= root
        np.multiply(normed, weight, out=result[part])
        result[part] += bias
    return result, Normed(rows, inverse)


def layer_norm_backward(grad: Array, normed: Normed, weight: Array) -> tuple[Array, Array, Array]:
    """Gradients of x, (N, width), of the weight and of the bias, for that of the result.

    With n the row before the weight and g = grad * weight, both over the width:
    dx = (g - mean(g) - n * mean(g * n)) / deviation.
    """
    d_x = np.empty_like(grad)
    d_weight, d_bias = np.zeros_like(weight), np.zeros_like(weight)
    for part in blocks(len(grad)):
        rows, result = normed.rows[part], d_x[part]
        products = grad[part] * rows
        d_weight += products.sum(axis=0)
        d_bias += grad[part].sum(axis=0)
        products *= weight
        np.multiply(grad[part], weight, out=result)
        result -= result.mean(axis=1, keepdims=True)
        np.multiply(rows, products.mean(axis=1, keepdims=True), out=products)
        result -= products
        result *= normed.inverse[part]
    return d_x, d_weight, d_bias


# GELU ---------------------------------------------------------------------------------------------


def gelu(x: Array) -> tuple[Array, Array]:
    """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))), and that tanh for the gradient.

    The approximation of Hendrycks and Gimpel, Gaussian Error Linear Units, 2016.
    """
    result, tanh = np.empty_like(x), np.empty_like(x)
    for part in blocks(len(x)):
        rows, bent, out = x[part], tanh[part], result[part]
        np.multiply(rows, rows, out=bent)
        bent *= GELU_FACTOR * GELU_CUBE
        bent += GELU_FACTOR
        bent *= rows
        np.tanh(bent, out=bent)
        np.add(bent, 1, out=out)
        out *= rows
        out *= 0.5
    return result, tanh


def gelu_backward(grad: Array, x: Array, tanh: Array) -> Array:
    """The gradient of x for that of gelu(x)."""
    result = np.empty_like(grad)
    for part in blocks(len(x)):
        rows, bent, out = x[part], tanh[part], result[part]
        np.multiply(rows, rows, out=out)
        out *= 3 * GELU_FACTOR * GELU_CUBE
        out += GELU_FACTOR
        out *= rows  # x times the slope of what the tanh is of
        slope = bent * bent
        np.subtract(1, slope, out=slope)
        out *= slope
        out += bent
        out += 1
        out *= 0.5
        out *= grad[part]
    return result


# Embedding, loss, dropout -------------------------------------------------------------------------


def embedding_backward(grad: Array, ids: Array, size: int) -> Array:
    """The gradient of an embedding, (size, width): the rows of grad, (N, width), summed by id."""
    result = np.zeros((size, grad.shape[1]), grad.dtype)
    if len(ids):
        order = np.argsort(ids, kind="stable")
        found = ids[order]
        starts = np.flatnonzero(np.diff(found, prepend=found[0] - 1))
        result[found[starts]] = np.add.reduceat(grad[order], starts, axis=0)
    return result


def cross_entropy(logits: Array, targets: Array) -> tuple[float, Array]:
    """The mean of -log softmax(logits)[target] over N rows, and its gradient, (N, vocabulary)."""
    count = len(logits)
    losses = np.empty(count, np.float64)
    grad = np.empty_like(logits)
    for part in blocks(count):
        weights, wanted = grad[part], (np.arange(part.stop - part.start), targets[part])
        np.subtract(logits[part], logits[part].max(axis=1, keepdims=True), out=weights)
        chosen = weights[wanted]
        np.exp(weights, out=weights)
        sums = weights.sum(axis=1, keepdims=True)
        losses[part] = np.log(sums[:, 0]) - chosen
        weights /= sums * count
        weights[wanted] -= 1 / count
    return float(losses.mean()), grad


def dropout_scale(shape: tuple[int, ...], dropout: float, generator: np.random.Generator) -> Array:
    """What dropout multiplies by: 0 for what is dropped, 1 / (1 - dropout) for the others."""
    kept = generator.random(shape, dtype=np.float32) >= dropout
    return kept * np.float32(1 / (1 - dropout))
