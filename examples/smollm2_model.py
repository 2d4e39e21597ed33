"""SmolLM2 (the Llama architecture) in NumPy and headway: the file, the layers, the memory.

Shapes: T tokens of `width` numbers; H query heads and Hkv key heads of head_dim numbers each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import headway

Array = npt.NDArray[np.float32]

QUANTISED = ("int8", "fp8_e4m3")
ROWS_AT_ONCE = 128
"""Tokens that go through the feed-forward part together: the numbers stay in a core's cache."""


def read_file(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """The fields of a GGUF file by name, and its weights in float32, (d_out, d_in) each."""
    from gguf import GGUFReader, dequantize

    reader = GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    weights = {t.name: dequantize(t.data, t.tensor_type) for t in reader.tensors}
    return fields, weights


@dataclass(frozen=True)
class Config:
    """The sizes of the model."""

    num_layers: int
    width: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_base: float
    epsilon: float
    context: int

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Config:
        """The sizes that stand in the fields of a file."""
        if fields.get("general.architecture") != "llama":
            raise ValueError(
                "the file: expected the architecture 'llama', got "
                f"{fields.get('general.architecture')!r}"
            )
        width = fields["llama.embedding_length"]
        num_heads = fields["llama.attention.head_count"]
        return cls(
            num_layers=fields["llama.block_count"],
            width=width,
            num_heads=num_heads,
            num_kv_heads=fields["llama.attention.head_count_kv"],
            head_dim=width // num_heads,
            rotary_base=fields["llama.rope.freq_base"],
            epsilon=fields["llama.attention.layer_norm_rms_epsilon"],
            context=fields["llama.context_length"],
        )


class Memory:
    """The keys and values of one text so far: a KVCache for each layer.

    A cache of 16-bit numbers takes queries, keys and values of 16 bits; a quantised one takes
    float32 and quantises by itself.
    """

    def __init__(
        self, config: Config, capacity: int, dtype: str = "float32", *, grow: bool = False
    ) -> None:
        sizes = (1, config.num_kv_heads, capacity, config.head_dim)
        self.caches = [
            headway.KVCache(*sizes, dtype=dtype, grow=grow) for _ in range(config.num_layers)
        ]
        self.dtype = np.dtype("float32" if dtype in QUANTISED else dtype)
        self.length = 0

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens, in the layers that have more."""
        for cache in self.caches:
            cache.truncate(np.minimum(cache.lengths, length))
        self.length = length


class Layer:
    """One of the model's layers: attention, then the feed-forward part, each added to x."""

    def __init__(self, weights: dict[str, Array], number: int, config: Config) -> None:
        def linear(*names: str) -> headway.Projection:
            """Those linear layers as one product: their columns side by side."""
            parts = [weights.pop(f"blk.{number}.{name}.weight") for name in names]
            return headway.Projection(np.concatenate(parts).T)

        self.config = config
        self.attention_norm = weights.pop(f"blk.{number}.attn_norm.weight")
        self.qkv = linear("attn_q", "attn_k", "attn_v")
        self.attention_out = linear("attn_output")
        self.feed_norm = weights.pop(f"blk.{number}.ffn_norm.weight")
        self.gate_up = linear("ffn_gate", "ffn_up")
        self.feed_out = linear("ffn_down")

    def __call__(self, x: Array, start: int, cache: headway.KVCache, dtype: Any) -> Array:
        """The next x, (T, width), of the tokens from position `start` on; their keys are kept."""
        x = x + self.attend(rms_norm(x, self.attention_norm, self.config), start, cache, dtype)
        for first in range(0, len(x), ROWS_AT_ONCE):
            rows = x[first : first + ROWS_AT_ONCE]
            rows += self.feed_forward(rms_norm(rows, self.feed_norm, self.config))
        return x

    def attend(self, x: Array, start: int, cache: headway.KVCache, dtype: Any) -> Array:
        """(T, width): every token attends to itself and to all before it that the cache holds."""
        config = self.config
        first_key, first_value = config.num_heads, config.num_heads + config.num_kv_heads
        heads = self.qkv(x).reshape(len(x), -1, config.head_dim)  # (T, H + 2 Hkv, head_dim)
        turned = heads[:, :first_value]
        # A GGUF file has the rows of llama's query and key weights in the order for such pairs.
        headway.rotary_embedding(
            turned, start, base=config.rotary_base, interleaved=True, layout="BTHD", out=turned
        )
        heads = heads.astype(dtype, copy=False)
        keys, values = heads[:, first_key:first_value], heads[:, first_value:]
        cache.append(keys.transpose(1, 0, 2), values.transpose(1, 0, 2))
        context = cache.attend(heads[None, :, :first_key], layout="BTHD")  # (1, T, H, head_dim)
        return self.attention_out(context.reshape(x.shape).astype(np.float32, copy=False))

    def feed_forward(self, x: Array) -> Array:
        """silu(gate) * up, (T, hidden), and back to (T, width)."""
        both = self.gate_up(x)
        size = both.shape[1] // 2
        gate, up = both[:, :size], both[:, size:]
        hidden = np.negative(gate)
        np.exp(hidden, out=hidden)  # infinity where the gate is shut: gate / infinity is 0
        hidden += 1
        np.divide(gate, hidden, out=hidden)
        hidden *= up
        return self.feed_out(hidden)


class SmolLM2:
    """The model: token ids in, logits of the next token out. All weights in float32."""

    def __init__(self, fields: dict[str, Any], weights: dict[str, Array]) -> None:
        self.config = Config.of(fields)
        self.embedding = weights["token_embd.weight"]  # (vocabulary, width)
        self.head = headway.Projection(self.embedding.T)  # the same numbers: the head is tied
        self.norm = weights["output_norm.weight"]
        self.layers = [Layer(weights, n, self.config) for n in range(self.config.num_layers)]

    def __call__(self, ids: Sequence[int], memory: Memory) -> Array:
        """Logits, (vocabulary,), of what follows these tokens, which follow those in the memory.

        Where it fails or is interrupted, the memory is as it was.
        """
        start = memory.length
        try:
            with np.errstate(over="ignore"):
                x = self.embedding[np.asarray(ids)]
                for layer, cache in zip(self.layers, memory.caches, strict=True):
                    x = layer(x, start, cache, memory.dtype)
            logits: Array = self.head(rms_norm(x[-1:], self.norm, self.config))[0]
        except BaseException:
            memory.truncate(start)
            raise
        memory.length = start + len(ids)
        return logits


def rms_norm(x: Array, weight: Array, config: Config) -> Array:
    """x, (T, width), each token over its root mean square, times the weight."""
    root = np.einsum("ti,ti->t", x, x)[:, None]
    root /= x.shape[1]
    root += config.epsilon
    np.sqrt(root, out=root)
    normed: Array = x / root
    normed *= weight
    return normed
