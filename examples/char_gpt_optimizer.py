"""The numbers of a model in one vector, and how a step of training changes them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from char_gpt_layers import Array


class Parameters:
    """Named arrays that are views of one vector: the matrices first, then the vectors.

    A step of the optimizer, the norm of a gradient and a checkpoint see the vector; the layers see
    the arrays. Weight decay acts on the matrices only.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], flat: Array | None = None) -> None:
        self.shapes = dict(sorted(shapes.items(), key=lambda item: -min(len(item[1]), 2)))
        sizes = {name: math.prod(shape) for name, shape in self.shapes.items()}
        self.flat = np.zeros(sum(sizes.values()), np.float32) if flat is None else flat
        self.num_decayed = sum(sizes[n] for n, shape in self.shapes.items() if len(shape) > 1)
        self.arrays: dict[str, Array] = {}
        start = 0
        for name, shape in self.shapes.items():
            self.arrays[name] = self.flat[start : start + sizes[name]].reshape(shape)
            start += sizes[name]

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]

    def __setitem__(self, name: str, value: Array) -> None:
        self.arrays[name][...] = value


def clip(grad: Array, most: float) -> float:
    """Scale a gradient to a norm of `most` where it is longer; the norm it had."""
    norm = math.sqrt(np.square(grad).sum(dtype=np.float64))
    if norm > most:
        grad *= most / norm
    return norm


def learning_rate(step: int, *, peak: float, warmup: int, steps: int) -> float:
    """The rate of a step, counted from 0: a line up to the peak, then a cosine to a tenth of it."""
    if step < warmup:
        return peak * (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return peak * (0.55 + 0.45 * math.cos(math.pi * done))


class AdamW:
    """Adam with decoupled weight decay: Loshchilov and Hutter, Decoupled Weight Decay, 2019."""

    def __init__(
        self,
        parameters: Parameters,
        *,
        betas: tuple[float, float] = (0.9, 0.99),
        epsilon: float = 1e-8,
        decay: float = 0.1,
    ) -> None:
        self.parameters = parameters
        self.betas, self.epsilon, self.decay = betas, epsilon, decay
        self.mean = np.zeros_like(parameters.flat)
        self.square = np.zeros_like(parameters.flat)
        self.steps = 0

    def step(self, grad: Array, rate: float) -> None:
        """Change the parameters by a gradient of theirs, (size,), which is used up."""
        self.steps += 1
        weights, (first, second) = self.parameters.flat, self.betas
        self.mean *= first
        self.mean += (1 - first) * grad
        np.square(grad, out=grad)
        grad *= 1 - second
        self.square *= second
        self.square += grad
        np.sqrt(self.square, out=grad)
        grad *= 1 / math.sqrt(1 - second**self.steps)
        grad += self.epsilon
        np.divide(self.mean, grad, out=grad)
        grad *= rate / (1 - first**self.steps)
        weights[: self.parameters.num_decayed] *= 1 - rate * self.decay
        weights -= grad
