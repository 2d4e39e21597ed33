"""Who is timed: headway, NumPy as a user would write it, and PyTorch where it is installed."""

from __future__ import annotations

import importlib.util
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from shapes import Array, Case

import headway

Call = Callable[[], Any]


class Rival(ABC):
    """One contestant: sets its threads, prepares a call, hands its result over as an array."""

    name: str

    @abstractmethod
    def version(self) -> str: ...

    @abstractmethod
    def set_threads(self, threads: int) -> None: ...

    @abstractmethod
    def prepare(self, case: Case, q: Array, k: Array, v: Array) -> Call:
        """A call without arguments that does all the work and nothing else."""

    def offers(self, case: Case) -> bool:
        return True

    def to_numpy(self, result: Any) -> Array:
        return np.asarray(result)


class Headway(Rival):
    """``headway.attention`` with its defaults."""

    name = "headway"

    def version(self) -> str:
        return headway.__version__

    def set_threads(self, threads: int) -> None:
        headway.set_num_threads(threads)

    def prepare(self, case: Case, q: Array, k: Array, v: Array) -> Call:
        return lambda: headway.attention(q, k, v)


def numpy_attention(q: Array, k: Array, v: Array) -> Array:
    """Batched products, mask and softmax, without any trick."""
    group = q.shape[1] // k.shape[1]
    if group > 1:
        k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    num_queries, num_keys = q.shape[2], k.shape[2]
    scores = q @ k.swapaxes(-1, -2) / q.dtype.type(math.sqrt(q.shape[-1]))
    hidden = np.triu(np.ones((num_queries, num_keys), dtype=bool), k=num_keys - num_queries + 1)
    scores = np.where(hidden, q.dtype.type(-np.inf), scores)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    context: Array = weights @ v
    return context


class NumPy(Rival):
    """``numpy_attention``, the products in NumPy's BLAS."""

    name = "numpy"
    max_score_bytes = 2**30

    def version(self) -> str:
        return np.__version__

    def set_threads(self, threads: int) -> None:
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

        threadpool_limits(threads, user_api="blas")

    def offers(self, case: Case) -> bool:
        """Not where the stored scores alone would fill more than a gibibyte."""
        return case.score_bytes <= self.max_score_bytes

    def prepare(self, case: Case, q: Array, k: Array, v: Array) -> Call:
        return lambda: numpy_attention(q, k, v)


class Torch(Rival):
    """``torch.nn.functional.scaled_dot_product_attention`` on tensors that share q, k and v."""

    name = "torch"

    def version(self) -> str:
        import torch

        return str(torch.__version__)

    def set_threads(self, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)

    def prepare(self, case: Case, q: Array, k: Array, v: Array) -> Call:
        import torch
        from torch.nn.functional import scaled_dot_product_attention

        tq, tk, tv = (torch.from_numpy(array) for array in (q, k, v))
        options: dict[str, Any] = {}
        if case.num_queries == case.num_keys:
            options["is_causal"] = True
        elif case.num_queries > 1:
            ones = torch.ones(case.num_queries, case.num_keys, dtype=torch.bool)
            options["attn_mask"] = ones.tril(case.num_keys - case.num_queries)
        if case.num_heads != case.num_kv_heads:
            options["enable_gqa"] = True

        def call() -> Any:
            with torch.inference_mode():
                return scaled_dot_product_attention(tq, tk, tv, **options)

        return call

    def to_numpy(self, result: Any) -> Array:
        return np.asarray(result.numpy())


def installed() -> list[Rival]:
    """Every contestant that can run here, headway first."""
    found: list[Rival] = [Headway(), NumPy()]
    if importlib.util.find_spec("torch") is not None:
        found.append(Torch())
    return found


TOLERANCES = {"float32": 2e-5, "float64": 1e-12}


def error_against_reference(case: Case, q: Array, k: Array, v: Array, got: Array) -> float:
    """Largest difference to ``headway.reference``, relative to the largest expected number.

    All rows where there are at most 256 queries; else 16 rows each from the start, the middle
    and the end, every batch entry and head of them.
    """
    count, past = case.num_queries, case.num_keys - case.num_queries
    starts, length = ([0], count) if count <= 256 else ([0, count // 2 - 8, count - 16], 16)
    largest, scale = 0.0, 0.0
    for start in starts:
        rows = slice(start, start + length)
        expected = headway.reference.attention(
            *(array.astype(np.float64) for array in (q[:, :, rows], k, v)), align=past + start
        )
        difference = np.abs(got[:, :, rows].astype(np.float64) - expected)
        if not np.isfinite(difference).all():
            return math.inf
        largest = max(largest, float(difference.max()))
        scale = max(scale, float(np.abs(expected).max()))
    return largest / scale
