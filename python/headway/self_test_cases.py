"""What ``headway check`` computes: small problems, each with the reference's answer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from . import reference
from .arrays import Array
from .functional import attention
from .matrices import attention_scores, attention_weights
from .merging import merge_partials
from .modules import MultiHeadAttention
from .packed import attention_varlen
from .projection import Projection
from .rope import rotary_embedding
from .self_test_caches import caches
from .self_test_inputs import Inputs, Problem, Results, wide
from .slopes import alibi_slopes


def problems(dtype: str) -> Iterator[Problem]:
    """All of them, in this dtype; "bfloat16" needs ``ml_dtypes``."""
    draw = Inputs(dtype)
    yield from _shapes(draw)
    yield from _options(draw)
    yield from _other_calls(draw)
    yield from caches(draw)
    yield from _modules(draw)
    yield _hidden(draw)


def _shapes(draw: Inputs) -> Iterator[Problem]:
    yield draw.problem("prefill", draw.qkv(3, 3, 67, 67, 64))
    yield draw.problem("long prefill", [x[:1] for x in draw.qkv(2, 1, 600, 600, 80)])
    yield draw.problem("narrow heads, shared keys", draw.qkv(6, 2, 33, 33, 5))
    yield draw.problem("chunk", draw.qkv(4, 2, 5, 300, 64))
    yield draw.problem("decoding", draw.qkv(4, 2, 1, 700, 64))
    yield draw.problem("without the causal mask", draw.qkv(2, 2, 9, 40, 32), causal=False)
    swapped = [x.swapaxes(1, 2) for x in draw.qkv(4, 2, 50, 50, 48)]
    yield draw.problem("strided views", swapped, layout="BTHD")
    q, k, v = draw.qkv(2, 2, 12, 30, 16)
    yield draw.problem("values wider than keys", [q, k, np.concatenate([v, v], axis=-1)])


def _options(draw: Inputs) -> Iterator[Problem]:
    sizes = (4, 2, 60, 90, 32)
    keys = np.arange(90)
    options: dict[str, dict[str, Any]] = {
        "window": {"window": (20, 0)},
        "soft cap": {"softcap": 3.0},
        "ALiBi": {"alibi_slopes": alibi_slopes(4)},
        "sinks": {"sinks": np.linspace(-1.0, 2.0, 4)},
        "lengths": {"kv_lengths": np.array([90, 41])},
        "bool mask": {"mask": keys % 7 != 3},
        "float mask": {"mask": draw.array(4, 60, 90)},
    }
    for name, given in options.items():
        yield draw.problem(name, draw.qkv(*sizes), **given)
    every: dict[str, Any] = {}
    for name, given in options.items():
        every |= given if name != "float mask" else {}
    yield draw.problem("options together", draw.qkv(*sizes), scale=0.3, **every)


def _other_calls(draw: Inputs) -> Iterator[Problem]:
    yield _packed(draw)
    q, k, v = draw.qkv(2, 2, 30, 30, 32)
    wide_qk = wide(q, k)
    yield Problem(
        "weights and scores",
        lambda: (attention_weights(q, k), attention_scores(q, k)),
        (reference.attention_weights(*wide_qk), reference.attention_scores(*wide_qk)),
        (draw.tolerance, draw.wide),
    )
    wanted = reference.attention(*wide(q, k, v))

    def in_parts() -> Results:
        parts = [
            attention(q, k[:, :, part], v[:, :, part], align=align, return_lse=True)
            for part, align in ((slice(0, 13), 0), (slice(13, 30), -13))
        ]
        outs, lses = zip(*parts, strict=True)
        return (merge_partials(outs, lses)[0],)

    yield Problem("merged parts", in_parts, (wanted,), (2 * draw.tolerance,))
    positions = np.arange(30) + 1000
    yield Problem(
        "rotary embedding",
        lambda: (rotary_embedding(q, positions),),
        (reference.rotary_embedding(wide_qk[0], positions),),
        (draw.tolerance,),
    )


def _packed(draw: Inputs) -> Problem:
    """Three sequences, one after another."""
    starts = [0, 30, 31, 100]
    q, k, v = (draw.array(100, heads, 32) for heads in (4, 2, 2))
    q64, k64, v64 = wide(q, k, v)
    wanted = reference.attention_varlen(q64, k64, v64, starts)
    return Problem(
        "packed sequences",
        lambda: (attention_varlen(q, k, v, starts),),
        (wanted,),
        (draw.tolerance,),
    )


def _modules(draw: Inputs) -> Iterator[Problem]:
    x, weight, bias = draw.array(70, 50), draw.array(50, 90), draw.array(90)
    project = Projection(weight, bias)
    product = x.astype(np.float64) @ weight.astype(np.float64) + bias.astype(np.float64)
    yield Problem("projection", lambda: (project(x),), (product,), (draw.tolerance,))
    efficient = MultiHeadAttention.init(
        50, 64, num_heads=4, qkv_bias=True, out_proj=True, dtype=draw.dtype
    )
    stacked = efficient.split()
    z = _module_result(efficient, x)
    allowed = 4 * draw.tolerance  # Q, K, V and Z are rounded on the way
    yield Problem(
        "both stages of the module",
        lambda: (efficient(x), stacked(x)),
        (z, z),
        (allowed, allowed),
    )


def _module_result(module: MultiHeadAttention, x: Array) -> Array:
    """The module's result in float64."""
    weights = {name: array.astype(np.float64) for name, array in module._weights.items()}
    shape = (len(x), module.num_heads, module.head_dim)
    q, k, v = (
        (x.astype(np.float64) @ weights[f"w_{kind}"] + weights[f"b_{kind}"]).reshape(shape)
        for kind in ("query", "key", "value")
    )
    z = reference.attention(q, k, v, layout="BTHD").reshape(len(x), -1)
    return np.asarray(z @ weights["w_out"] + weights["b_out"])


def _hidden(draw: Inputs) -> Problem:
    """NaN and infinity where nobody may look, and a query that sees nothing."""
    q, k, v = draw.qkv(2, 2, 40, 40, 32)
    wanted = reference.attention(*wide(*(x[:, :, :-1] for x in (q, k, v))))
    k[:, :, -1], v[:, :, -1] = math.nan, math.inf

    def call() -> Results:
        seen = attention(q, k, v)[:, :, :-1]
        return seen, attention(q, k, v, kv_lengths=np.zeros(2, np.int64))

    return Problem("hidden keys", call, (wanted, np.zeros(q.shape)), (draw.tolerance, 0.0))
