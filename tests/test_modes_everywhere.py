"""The caller's floating-point mode in every entry point: the same bits, and the mode left alone."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import DTYPES, Array, bits, dtype_of, make, make_qkv
from test_floating_point_mode import MODES, control, mode

import headway as hw
from headway import frequencies

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64",
    reason="this machine: its floating-point environment has another layout",
)

OPTIONS: dict[str, Any] = {
    "softcap": 1.7, "window": 40, "alibi_slopes": [0.3, 0.1, 0.7, 0.01], "sinks": [0.1, 1, 2, 3],
}  # fmt: skip


SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"factor": 3.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "yarn": {"factor": 5.0},
}


def rotated(x: Array, name: str) -> Array:
    """Frequencies are kept for the next call: here they are made anew."""
    frequencies._turning.cache_clear()
    scaling = {"rope_type": name, **SCALINGS[name]}
    if name != "linear":
        scaling["original_max_position_embeddings"] = 64
    return hw.rotary_embedding(x, 777, base=4321.0, scaling=scaling)


class Calls:
    """Arrays of one dtype with the smallest numbers among them, and every entry point by name."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.q, self.k, self.v = make_qkv(
            1, dtype, heads=(4, 2), tokens=(50, 70), head_dim=16, value_dim=20
        )
        small = np.array(1, f"u{self.v.itemsize}").view(self.v.dtype)
        self.v[0, 0, :, :5] = small
        self.q[0, 0, :, 3] = small
        self.mask = make(4, (50, 70), dtype)
        self.out, self.lse = hw.attention(self.q, self.k, self.v, return_lse=True)
        self.grad = make(5, self.out.shape, dtype)
        self.weight, self.bias = make(6, (16, 24), dtype), make(7, (24,), dtype)
        self.module = hw.MultiHeadAttention.init(
            16, 24, num_heads=3, qkv_bias=True, out_proj=True, dtype=dtype_of(dtype)
        )
        self.x = self.q[0, 0]
        self.packed = [x[0].swapaxes(0, 1) for x in (self.q, self.k, self.v)]

    def backward(self) -> tuple[Array, ...]:
        args = self.grad, self.q, self.k, self.v, self.out, self.lse
        more: dict[str, Any] = {"mask": self.mask, "mask_grad": True, "sinks_grad": True}
        return hw.attention_backward(*args, **more, **OPTIONS)

    def cached(self, dtype: str, paged: bool) -> list[Array]:
        how: dict[str, Any] = {"dtype": dtype, "v_head_dim": 20}
        cache: Any = (
            hw.PagedKVCache(9, 16, 2, 16, **how) if paged else hw.KVCache(1, 2, 80, 16, **how)
        )
        before = ([cache.add()],) if paged else ()
        cache.append(*before, self.k, self.v)
        return [cache.attend(*before, self.q), cache.attend(*before, self.q[:, :, :1]), cache.keys]

    def projected(self) -> list[Array]:
        project = hw.Projection(self.weight, self.bias)
        z = project.forward(self.x, save=True)
        grads = project.backward(z)
        return [z, grads.x, *grads.weights.values()]

    def trained(self) -> list[Array]:
        z = self.module.forward(self.x, save=True)
        grads = self.module.backward(z)
        return [z, self.module.heads(self.x), grads.x, *grads.weights.values()]

    def table(self) -> dict[str, Callable[[], Any]]:
        q, k, v = self.q, self.k, self.v
        float_cache = {
            f"cache, paged {p}": lambda p=p: self.cached(self.dtype, p) for p in (False, True)
        }
        small_caches: dict[str, Callable[[], Any]] = {}
        if self.dtype != "float64":
            small_caches = {n: lambda n=n: self.cached(n, False) for n in ("int8", "fp8_e4m3")}
        return {
            "plain": lambda: hw.attention(q, k, v),
            "options": lambda: hw.attention(q, k, v, mask=self.mask, return_lse=True, **OPTIONS),
            "dropout": lambda: hw.attention(q, k, v, dropout=0.3, seed=5),
            "weights": lambda: hw.attention_weights(q, k, **OPTIONS),
            "scores": lambda: hw.attention_scores(q, k, stage="capped", softcap=2.0),
            "varlen": lambda: hw.attention_varlen(
                *self.packed, [0, 20, 50], [0, 30, 70], return_lse=True
            ),
            "backward": self.backward,
            "varlen backward": lambda: hw.attention_varlen_backward(
                *(x[0].swapaxes(0, 1) for x in (self.grad, q, k, v, self.out)), self.lse[0],
                [0, 20, 50], [0, 30, 70],
            ),
            "merge": lambda: hw.merge_partials([self.out, self.grad], [self.lse, self.lse * 2]),
            "rotary": lambda: hw.rotary_embedding(q, 12345),
            **{f"rotary, {name}": lambda name=name: rotated(q, name) for name in SCALINGS},
            "slopes": lambda: hw.alibi_slopes(12),
            "projection": self.projected,
            "module": self.trained,
            "init": lambda: list(
                hw.MultiHeadAttention.init(
                    16, 24, num_heads=3, qkv_bias=True, dtype=dtype_of(self.dtype)
                ).parameters().values()
            ),
            "trace": lambda: [step.array for step in hw.trace(q, k, v, **OPTIONS)],
            **float_cache,
            **small_caches,
        }  # fmt: skip


def _bytes(found: Any) -> list[bytes]:
    arrays = list(found) if isinstance(found, (tuple, list)) else [found]
    return [bits(np.asarray(x)).tobytes() for x in arrays]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bit", MODES.values(), ids=MODES.keys())
def test_every_entry_point(dtype: str, bit: int, threads: int) -> None:
    """The same bits in every mode, in one thread and in two; the mode is still set after."""
    calls = Calls(dtype).table()
    expected = {name: _bytes(call()) for name, call in calls.items()}
    found, left = {}, {}
    with mode(bit):
        before = control()
        for name, call in calls.items():
            found[name] = _bytes(call())
            left[name] = control()
    assert before & bit == bit
    assert [name for name in calls if left[name] != before] == []
    assert [name for name in calls if found[name] != expected[name]] == []
