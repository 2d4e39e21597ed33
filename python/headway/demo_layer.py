"""The demo, second part: a layer of real size, timed beside the NumPy code for the same thing."""

import math
import statistics
import time
from collections.abc import Callable

import numpy as np

from . import functional, runtime
from .arrays import Array
from .demo_walk import AGREE, Step
from .modules import MultiHeadAttention

NUM_HEADS, NUM_TOKENS, WIDTH = 12, 1024, 768
HEAD_DIM = WIDTH // NUM_HEADS
ROUNDS = 7
BUDGET = 5.0  # seconds; at least two rounds are run


def numpy_attention(q: Array, k: Array, v: Array) -> Array:
    """Causal attention as it is usually written in NumPy: (B, H, T, D) each."""
    num_tokens, head_dim = q.shape[-2:]
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(head_dim)
    ahead = np.triu(np.ones((num_tokens, num_tokens), dtype=bool), 1)
    scores[..., ahead] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.asarray(weights @ v)


def numpy_layer(module: MultiHeadAttention, x: Array) -> Array:
    """The module's result, with the same weights, in NumPy."""
    batch, num_tokens, _ = x.shape
    q, k, v = (
        (x @ w).reshape(batch, num_tokens, NUM_HEADS, HEAD_DIM).swapaxes(1, 2)
        for w in (module.w_query, module.w_key, module.w_value)
    )
    z = numpy_attention(q, k, v).swapaxes(1, 2).reshape(batch, num_tokens, WIDTH)
    return np.asarray(z @ module.w_out + module.b_out)


def real_size() -> Step:
    """Check, then time attention alone and the whole layer, in turns with NumPy."""
    module = MultiHeadAttention.init(WIDTH, WIDTH, num_heads=NUM_HEADS, out_proj=True)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, NUM_TOKENS, WIDTH), dtype=np.float32)
    q, k, v = rng.standard_normal((3, 1, NUM_HEADS, NUM_TOKENS, HEAD_DIM), dtype=np.float32)
    calls: dict[str, tuple[Callable[[], Array], Callable[[], Array]]] = {
        "attention": (lambda: numpy_attention(q, k, v), lambda: functional.attention(q, k, v)),
        "whole layer": (lambda: numpy_layer(module, x), lambda: module(x)),
    }
    lines = [
        f"A layer of real size: {NUM_HEADS} heads, {NUM_TOKENS:,} tokens, {WIDTH} wide, float32.",
        "Milliseconds, best and median of interleaved runs, beside NumPy:",
        "",
        f"{'':<14}{'NumPy':>9}{'median':>9}{'headway':>11}{'median':>9}{'speed-up':>11}"
        f"{'difference':>13}",
    ]
    passed = True
    for name, (plain, own) in calls.items():
        expected = plain()
        difference = float(np.abs(own() - expected).max())
        passed = passed and difference <= AGREE * float(np.abs(expected).max())
        slow, fast = _interleaved(plain, own)
        times = [1e3 * t for s in (slow, fast) for t in (min(s), statistics.median(s))]
        lines.append(
            f"{name:<14}{times[0]:>9.2f}{times[1]:>9.2f}{times[2]:>11.2f}{times[3]:>9.2f}"
            f"{times[0] / times[2]:>10.1f}x{difference:>13.1e}"
        )
    about = runtime.info()
    lines += [
        "",
        "The whole layer includes the projections: headway.Projection on one side,",
        "NumPy products on the other.",
        f"Instruction set: {about['isa']}.",
        f"Threads: {about['num_threads']}, from {about['threads_source']}.",
    ]
    return Step(lines, passed)


def _interleaved(
    plain: Callable[[], Array], own: Callable[[], Array]
) -> tuple[list[float], list[float]]:
    """Seconds of both calls, taken in turns."""
    slow: list[float] = []
    fast: list[float] = []
    start = time.perf_counter()
    while len(fast) < 2 or (len(fast) < ROUNDS and time.perf_counter() - start < BUDGET / 2):
        for call, seconds in ((plain, slow), (own, fast)):
            before = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - before)
    return slow, fast
