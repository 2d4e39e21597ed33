"""NumPy arrays that count the multiply-adds of their products, and attention written with them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from headway import CausalAttention, MultiHeadAttention, StackedMultiHeadAttention

Array = np.ndarray[Any, Any]


class Counter:
    """Multiply-adds of the arrays that it made, and of what is computed from them."""

    def __init__(self) -> None:
        self.multiply_adds = 0

    def array(self, x: Array) -> Counted:
        """A copy of ``x`` whose products are counted here."""
        made = x.copy().view(Counted)
        made.counter = self
        return made


class Counted(np.ndarray):  # type: ignore[type-arg]
    """Counts in matmul and einsum; any other product of arrays with a sum is refused."""

    counter: Counter | None = None

    def __array_finalize__(self, source: Any) -> None:
        self.counter = getattr(source, "counter", None)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        plain = [np.asarray(x) for x in inputs]
        result = getattr(ufunc, method)(*plain, **options)
        if ufunc is np.matmul:
            summed = plain[0].shape[-1]
            self._count(result.size * summed)
        return self._wrapped(result)

    def __array_function__(self, function: Any, types: Any, given: Any, options: Any) -> Any:
        assert function not in (np.dot, np.tensordot, np.inner, np.vdot), "not counted"
        if function is np.einsum:
            formula, *operands = given
            assert len(operands) == 2, "one product at a time"
            sizes: dict[str, int] = {}
            for axes, x in zip(formula.split("->")[0].split(","), operands, strict=True):
                sizes |= dict(zip(axes, x.shape, strict=True))
            self._count(math.prod(sizes.values()))
            return self._wrapped(np.einsum(formula, *map(np.asarray, operands), **options))
        return super().__array_function__(function, types, given, options)

    def _count(self, multiply_adds: int) -> None:
        assert self.counter is not None
        self.counter.multiply_adds += multiply_adds

    def _wrapped(self, result: Any) -> Any:
        if isinstance(result, np.ndarray):
            result = result.view(Counted)
            result.counter = self.counter
        return result


class Number:
    """A number that counts how often it is multiplied."""

    multiplications = 0

    def __init__(self, value: float) -> None:
        self.value = value

    def __mul__(self, other: Number) -> Number:
        Number.multiplications += 1
        return Number(self.value * other.value)

    def __add__(self, other: Number) -> Number:
        return Number(self.value + other.value)

    def __radd__(self, start: int) -> Number:
        return Number(start + self.value)


def softmax(scores: Array) -> Array:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def dense(q: Array, k: Array, v: Array) -> Array:
    """Causal attention (B, T, D) as it is written in NumPy: every pair, then a mask."""
    scores = np.einsum("bqd,bkd->bqk", q, k) / math.sqrt(q.shape[-1])
    scores[:, np.triu(np.ones(scores.shape[1:], bool), 1)] = -np.inf
    return softmax(scores) @ v


def unmasked(q: Array, k: Array, v: Array) -> Array:
    """The same, query by query: what a query may not see is not computed."""
    rows = []
    for i in range(q.shape[1]):
        keys, values = k[:, : i + 1], v[:, : i + 1]
        scores = q[:, i : i + 1] @ keys.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
        rows.append(np.einsum("bqk,bkd->bqd", softmax(scores), values))
    return np.concatenate(rows, axis=1)


def plain_module(module: Any, x: Array, attend: Any, counter: Counter) -> Array:
    """What the module computes for ``x`` (B, T, d_in), in products that are counted."""
    counted = counter.array(x)
    if isinstance(module, MultiHeadAttention):
        parts = merged_heads(module, counted, attend, counter)
    else:
        heads = [module] if isinstance(module, CausalAttention) else list(module)
        parts = [attend(*projections(head, counted, counter)) for head in heads]
    z = np.concatenate(parts, axis=-1)
    w_out, b_out = getattr(module, "w_out", None), getattr(module, "b_out", None)
    if w_out is not None:
        z = z @ counter.array(w_out)
    return np.asarray(z if b_out is None else z + b_out)


def projections(module: Any, x: Array, counter: Counter) -> list[Array]:
    found = []
    for kind in ("query", "key", "value"):
        weight, bias = getattr(module, f"w_{kind}"), getattr(module, f"b_{kind}")
        product = x @ counter.array(weight)
        found.append(product if bias is None else product + bias)
    return found


def merged_heads(
    module: MultiHeadAttention, x: Array, attend: Any, counter: Counter
) -> list[Array]:
    """Z_1 ... Z_H; a group of query heads reads one head of keys and values."""
    q, k, v = projections(module, x, counter)
    size, group = module.head_dim, module.num_heads // module.num_kv_heads
    parts = []
    for h in range(module.num_heads):
        own, shared = (slice(n * size, (n + 1) * size) for n in (h, h // group))
        parts.append(attend(q[..., own], k[..., shared], v[..., shared]))
    return parts


def uneven_heads(**options: Any) -> StackedMultiHeadAttention:
    """Two heads that differ in head_dim."""
    return StackedMultiHeadAttention(
        [CausalAttention.init(6, width, seed=width, **options) for width in (3, 5)],
        w_out=np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4),
    )
