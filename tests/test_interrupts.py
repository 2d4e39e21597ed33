"""Ctrl-C during long calls of every kind: served soon, and everything works afterwards."""

from __future__ import annotations

import os

import pytest
from interruption import assert_interruptible

PROGRAM = """
import json, sys
import numpy as np
import headway as hw

hw.set_num_threads(2)
g = np.random.default_rng(1)
q, k, v = (g.standard_normal((1, 4, 33, 64)).astype(np.float32) for _ in range(3))
T = 2**18  # 35 TFLOP for 4 heads of 64 numbers

def row(*shape):
    return np.broadcast_to(np.float32(0.5), shape)

kind = sys.argv[1]
if kind == "backward":
    out, lse = hw.attention(q, k, v, return_lse=True)
    short = lambda: hw.attention_backward(out, q, k, v, out, lse)
    long = lambda: hw.attention_backward(*[row(1, 4, T, 64)] * 5, row(1, 4, T))
elif kind == "varlen":
    packed = [x[0].swapaxes(0, 1) for x in (q, k, v)]
    short = lambda: hw.attention_varlen(*packed, [0, 20, 33])
    long = lambda: hw.attention_varlen(*[row(T, 4, 64)] * 3, [0, 5, T])
elif kind == "weights":
    short = lambda: hw.attention_weights(q, k)
    long = lambda: hw.attention(row(1, 4, T, 64), row(1, 4, T, 64), row(1, 4, T, 64), softcap=2.0)
elif kind == "cache":
    cache = hw.KVCache(1, 4, 2**15, 64, grow=True)
    cache.append(row(1, 4, 2**15, 64), row(1, 4, 2**15, 64))
    cache.append(k, v)
    short = lambda: cache.attend(q)
    long = lambda: cache.attend(row(1, 16, T // 2, 64), causal=False)
elif kind == "pages":
    cache = hw.PagedKVCache(2**11, 32, 4, 64)
    a, b = cache.add(), cache.add()
    cache.append([a], row(1, 4, 2**15, 64), row(1, 4, 2**15, 64))
    cache.append([a], k, v)
    short = lambda: cache.attend([a, a], np.concatenate([q, q]))
    long = lambda: cache.attend([a], row(1, 16, T // 2, 64), causal=False)
elif kind == "module":
    module = hw.MultiHeadAttention.init(64, 256, num_heads=4)
    x = q[0, 0]
    def short():
        z = module.forward(x, save=True)
        return module.backward(z).x
    long = lambda: module(row(T, 64))
expected = short()
print("ready", flush=True)
try:
    long()
    print("finished", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
again = short()
first, second = (x if isinstance(x, tuple) else (x,) for x in (expected, again))
print(json.dumps(all(a.tobytes() == b.tobytes() for a, b in zip(first, second))))
"""


@pytest.mark.skipif(os.name != "posix", reason="this machine: has no SIGINT")
@pytest.mark.parametrize("kind", ["backward", "varlen", "weights", "cache", "pages", "module"])
def test_ctrl_c(kind: str) -> None:
    """SIGINT during a call of many seconds raises KeyboardInterrupt soon; the next call works."""
    assert_interruptible(PROGRAM, kind)
