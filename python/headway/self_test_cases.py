"""What ``headway check`` computes: small problems, each with the reference's answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from . import reference
from .arrays import Array
from .cache import KVCache
from .functional import attention
from .matrices import attention_scores, attention_weights
from .merging import merge_partials
from .modules import MultiHeadAttention
from .packed import attention_varlen
from .projection import Projection
from .rope import rotary_embedding
from .slopes import alibi_slopes
from .weights import checked_dtype

DTYPES = ("float32", "float64", "float16", "bfloat16")

TOLERANCES = {"float64": 1e-12, "float32": 2e-5, "float16": 2.0**-9, "bfloat16": 2.0**-6}
"""Error allowed to a result, relative to its largest number; of 16 bits two steps of the dtype."""

Results = tuple[Array, ...]


class Problem(NamedTuple):
    """A call, what it should return, and the largest error allowed to each result."""

    name: str
    call: Callable[[], Results]
    wanted: Results
    allowed: tuple[float, ...]


class _Inputs:
    """Draws arrays of one dtype; the seed decides all of them."""

    def __init__(self, dtype: str) -> None:
        self.name, self.dtype = dtype, checked_dtype(dtype)
        self.tolerance = TOLERANCES[dtype]
        self.wide = TOLERANCES["float64" if dtype == "float64" else "float32"]
        """Error allowed to what is returned in the accumulation type."""
        self._rng = np.random.default_rng(0)

    def array(self, *shape: int) -> Array:
        return np.asarray(self._rng.standard_normal(shape).astype(self.dtype))

    def qkv(self, heads: int, kv_heads: int, queries: int, keys: int, dim: int) -> list[Array]:
        """q, k and v of two sequences."""
        kv = (2, kv_heads, keys, dim)
        return [self.array(2, heads, queries, dim), self.array(*kv), self.array(*kv)]

    def problem(self, name: str, arrays: list[Array], **options: Any) -> Problem:
        """Attention with these options: the context and the lse."""

        def call() -> Results:
            q, k, v = arrays
            out, lse = attention(q, k, v, return_lse=True, **options)
            return out, lse

        wanted = reference.attention(*_wide(*arrays), return_lse=True, **options)
        return Problem(name, call, wanted, (self.tolerance, self.wide))


def _wide(*arrays: Array) -> tuple[Any, ...]:
    return tuple(x.astype(np.float64) for x in arrays)


def problems(dtype: str) -> Iterator[Problem]:
    """All of them, in this dtype; "bfloat16" needs ``ml_dtypes``."""
    draw = _Inputs(dtype)
    yield from _shapes(draw)
    yield from _options(draw)
    yield from _other_calls(draw)
    yield from _modules(draw)
    yield _hidden(draw)


def _shapes(draw: _Inputs) -> Iterator[Problem]:
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


def _options(draw: _Inputs) -> Iterator[Problem]:
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


def _other_calls(draw: _Inputs) -> Iterator[Problem]:
    yield _packed(draw)
    q, k, v = draw.qkv(2, 2, 30, 30, 32)
    wide = _wide(q, k)
    yield Problem(
        "weights and scores",
        lambda: (attention_weights(q, k), attention_scores(q, k)),
        (reference.attention_weights(*wide), reference.attention_scores(*wide)),
        (draw.tolerance, draw.wide),
    )
    wanted = reference.attention(*_wide(q, k, v))

    def in_pieces() -> Results:
        cache = KVCache(2, 2, 30, 32, dtype=draw.dtype)
        found = []
        for start, end in ((0, 17), (17, 29), (29, 30)):
            piece = slice(start, end)
            cache.append(k[:, :, piece], v[:, :, piece])
            found.append(cache.attend(q[:, :, piece]))
        return (np.concatenate(found, axis=2),)

    yield Problem("cache", in_pieces, (wanted,), (draw.tolerance,))

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
        (reference.rotary_embedding(wide[0], positions),),
        (draw.tolerance,),
    )


def _packed(draw: _Inputs) -> Problem:
    """Three sequences, one after another."""
    starts = [0, 30, 31, 100]
    q, k, v = (draw.array(100, heads, 32) for heads in (4, 2, 2))
    wide = _wide(q, k, v)
    wanted = reference.attention_varlen(wide[0], wide[1], wide[2], starts)
    return Problem(
        "packed sequences",
        lambda: (attention_varlen(q, k, v, starts),),
        (wanted,),
        (draw.tolerance,),
    )


def _modules(draw: _Inputs) -> Iterator[Problem]:
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
    wide = {name: array.astype(np.float64) for name, array in module._weights.items()}
    shape = (len(x), module.num_heads, module.head_dim)
    q, k, v = (
        (x.astype(np.float64) @ wide[f"w_{kind}"] + wide[f"b_{kind}"]).reshape(shape)
        for kind in ("query", "key", "value")
    )
    z = reference.attention(q, k, v, layout="BTHD").reshape(len(x), -1)
    return np.asarray(z @ wide["w_out"] + wide["b_out"])


def _hidden(draw: _Inputs) -> Problem:
    """NaN and infinity where nobody may look, and a query that sees nothing."""
    q, k, v = draw.qkv(2, 2, 40, 40, 32)
    wanted = reference.attention(*_wide(*(x[:, :, :-1] for x in (q, k, v))))
    k[:, :, -1], v[:, :, -1] = math.nan, math.inf

    def call() -> Results:
        seen = attention(q, k, v)[:, :, :-1]
        return seen, attention(q, k, v, kv_lengths=np.zeros(2, np.int64))

    return Problem("hidden keys", call, (wanted, np.zeros(q.shape)), (draw.tolerance, 0.0))
