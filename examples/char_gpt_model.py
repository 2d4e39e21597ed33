"""A small GPT in NumPy and headway: the loss, its gradients, and the next character.

Its layers, as in GPT-2: the embedding of a token plus that of its position; blocks of attention and
MLP, each after a layer norm and added to x; a layer norm; logits by the embedding of the tokens.
Shapes: B sequences of T tokens, N = B * T rows of `width` numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from char_gpt_layers import (
    Array,
    Normed,
    cross_entropy,
    dropout_scale,
    embedding_backward,
    gelu,
    gelu_backward,
    layer_norm,
    layer_norm_backward,
)
from char_gpt_optimizer import Parameters

import headway

ATTENTION = ("w_query", "w_key", "w_value", "w_out", "b_out")


@dataclass(frozen=True)
class Config:
    """The sizes of the model."""

    layers: int
    heads: int
    width: int
    context: int
    vocabulary: int = 256
    dropout: float = 0.0

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every weight by name; matrices are used as x @ weight."""
        width, hidden = self.width, 4 * self.width
        shapes: dict[str, tuple[int, ...]] = {
            "embedding": (self.vocabulary, width),
            "positions": (self.context, width),
        }
        for n in range(self.layers):
            shapes |= {f"{n}.attention.{name}": (width, width) for name in ATTENTION[:-1]}
            shapes |= {
                f"{n}.attention.b_out": (width,),
                f"{n}.mlp_in.weight": (width, hidden),
                f"{n}.mlp_in.bias": (hidden,),
                f"{n}.mlp_out.weight": (hidden, width),
                f"{n}.mlp_out.bias": (width,),
            }
        norms = [f"{n}.{part}_norm" for n in range(self.layers) for part in ("attention", "mlp")]
        for name in (*norms, "norm"):
            shapes |= {f"{name}.weight": (width,), f"{name}.bias": (width,)}
        return shapes


def initial(config: Config, generator: np.random.Generator) -> Parameters:
    """Weights as GPT-2 draws them: smaller ones where a branch is added to x; biases of 0."""
    parameters = Parameters(config.shapes())
    for name, array in parameters.arrays.items():
        if array.ndim == 2:
            ends_branch = name.endswith(("w_out", "mlp_out.weight"))
            deviation = 0.02 / math.sqrt(2 * config.layers) if ends_branch else 0.02
            parameters[name] = deviation * generator.standard_normal(array.shape, np.float32)
        elif name.endswith("norm.weight"):
            array.fill(1)
    return parameters


class Memory:
    """The keys and values of one text so far: a KVCache for each block."""

    def __init__(self, config: Config) -> None:
        sizes = (1, config.heads, config.context, config.width // config.heads)
        self.caches = [headway.KVCache(*sizes) for _ in range(config.layers)]
        self.length = 0

    def reset(self) -> None:
        """Forget everything."""
        for cache in self.caches:
            cache.reset()
        self.length = 0


class Block:
    """Attention and MLP, each after a layer norm and added to x."""

    def __init__(self, config: Config, number: int, parameters: Parameters) -> None:
        self.config, self.parameters, self.name = config, parameters, f"{number}."
        w_query, w_key, w_value, w_out, b_out = (self.of(f"attention.{name}") for name in ATTENTION)
        self.attention = headway.MultiHeadAttention(
            w_query,
            w_key,
            w_value,
            num_heads=config.heads,
            w_out=w_out,
            b_out=b_out,
            dropout=config.dropout,
        )
        self.load()

    def of(self, name: str) -> Array:
        """A weight of this block."""
        return self.parameters[self.name + name]

    def load(self) -> None:
        """Take the weights as they are now."""
        self.attention.assign({name: self.of(f"attention.{name}") for name in ATTENTION})
        self.mlp_in = headway.Projection(self.of("mlp_in.weight"), self.of("mlp_in.bias"))
        self.mlp_out = headway.Projection(self.of("mlp_out.weight"), self.of("mlp_out.bias"))

    def norm(self, x: Array, part: str) -> tuple[Array, Normed]:
        """The layer norm before a part of the block."""
        return layer_norm(x, self.of(f"{part}_norm.weight"), self.of(f"{part}_norm.bias"))

    def __call__(self, x: Array, batch: int, cache: headway.KVCache | None = None) -> None:
        """Add to x, (N, width), what the block finds in it."""
        rows, _ = self.norm(x, "attention")
        x += self.attention(rows.reshape(batch, -1, x.shape[1]), cache=cache).reshape(x.shape)
        rows, _ = self.norm(x, "mlp")
        x += self.mlp_out(gelu(self.mlp_in(rows))[0])

    def forward(self, x: Array, batch: int, generator: np.random.Generator) -> None:
        """The same in training: with dropout, and what the gradient needs is kept."""
        dropout = self.config.dropout
        seed = int(generator.integers(2**63)) if dropout else None
        rows, self.attention_normed = self.norm(x, "attention")
        rows = rows.reshape(batch, -1, x.shape[1])
        added = self.attention.forward(rows, save=True, training=True, seed=seed)
        added = added.reshape(x.shape)
        if dropout:
            self.attention_scale = dropout_scale(x.shape, dropout, generator)
            added *= self.attention_scale
        x += added
        rows, self.mlp_normed = self.norm(x, "mlp")
        self.hidden = self.mlp_in.forward(rows, save=True)
        active, self.tanh = gelu(self.hidden)
        added = self.mlp_out.forward(active, save=True)
        if dropout:
            self.mlp_scale = dropout_scale(x.shape, dropout, generator)
            added *= self.mlp_scale
        x += added

    def backward(self, grad: Array, batch: int, into: Parameters) -> None:
        """Turn the gradient of the result, (N, width), into that of x, the weights' into `into`."""
        dropout = self.config.dropout
        found = self.mlp_out.backward(grad * self.mlp_scale if dropout else grad)
        self.put(found.weights, "mlp_out.", into)
        found = self.mlp_in.backward(gelu_backward(found.x, self.hidden, self.tanh))
        self.put(found.weights, "mlp_in.", into)
        grad += self.norm_backward(found.x, self.mlp_normed, "mlp", into)
        found = self.attention.backward(
            (grad * self.attention_scale if dropout else grad).reshape(batch, -1, grad.shape[1])
        )
        self.put(found.weights, "attention.", into)
        d_rows = found.x.reshape(grad.shape)
        grad += self.norm_backward(d_rows, self.attention_normed, "attention", into)

    def norm_backward(self, grad: Array, normed: Normed, part: str, into: Parameters) -> Array:
        """The gradient of the input of a layer norm."""
        name = f"{self.name}{part}_norm"
        weight = self.parameters[f"{name}.weight"]
        d_x, into[f"{name}.weight"], into[f"{name}.bias"] = layer_norm_backward(
            grad, normed, weight
        )
        return d_x

    def put(self, weights: dict[str, Array], part: str, into: Parameters) -> None:
        """Copy the gradients of a module's weights to their places."""
        for name, grad in weights.items():
            into[self.name + part + name] = grad


class CharGPT:
    """The model: it reads its weights from `parameters`, at first and at each `load`."""

    def __init__(self, config: Config, parameters: Parameters) -> None:
        self.config, self.parameters = config, parameters
        self.blocks = [Block(config, n, parameters) for n in range(config.layers)]
        self.gradients = Parameters(config.shapes())
        self.load()

    def load(self) -> None:
        """Take the weights as they are now: the modules pack copies of them."""
        for block in self.blocks:
            block.load()
        self.head = headway.Projection(self.parameters["embedding"].T)

    def embed(self, ids: Array, start: int = 0) -> Array:
        """x, (N, width), of tokens, (B, T), at the positions from `start` on."""
        positions = self.parameters["positions"][start : start + ids.shape[1]]
        x: Array = self.parameters["embedding"][ids] + positions
        return x.reshape(-1, self.config.width)

    def final_norm(self, x: Array) -> tuple[Array, Normed]:
        """The layer norm before the logits."""
        return layer_norm(x, self.parameters["norm.weight"], self.parameters["norm.bias"])

    def loss(self, ids: Array, targets: Array) -> float:
        """The mean loss in nats for tokens, (B, T), and those that follow each of them."""
        x = self.embed(ids)
        for block in self.blocks:
            block(x, len(ids))
        return cross_entropy(self.head(self.final_norm(x)[0]), targets.reshape(-1))[0]

    def learn(self, ids: Array, targets: Array, generator: np.random.Generator) -> float:
        """The same in training; `gradients` holds those of the weights afterwards."""
        batch, into = len(ids), self.gradients
        x = self.embed(ids)
        for block in self.blocks:
            block.forward(x, batch, generator)
        rows, normed = self.final_norm(x)
        loss, grad = cross_entropy(self.head.forward(rows, save=True), targets.reshape(-1))
        found = self.head.backward(grad)
        grad, into["norm.weight"], into["norm.bias"] = layer_norm_backward(
            found.x, normed, self.parameters["norm.weight"]
        )
        for block in reversed(self.blocks):
            block.backward(grad, batch, into)
        from_input = embedding_backward(grad, ids.reshape(-1), self.config.vocabulary)
        into["embedding"] = from_input + found.weights["weight"].T
        into["positions"] = np.zeros_like(self.parameters["positions"])
        into["positions"][: ids.shape[1]] = grad.reshape(batch, -1, self.config.width).sum(axis=0)
        return loss

    def logits(self, ids: Array, memory: Memory) -> Array:
        """(vocabulary,): what may follow the tokens, (T,), which follow those in the memory."""
        x = self.embed(ids[None], memory.length)
        for block, cache in zip(self.blocks, memory.caches, strict=True):
            block(x, 1, cache)
        memory.length += len(ids)
        logits: Array = self.head(self.final_norm(x[-1:])[0])[0]
        return logits
