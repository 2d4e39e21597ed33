"""Problems of the accuracy table: arrays of a dtype, and the result in a wider one.

Up to `SQUARE` tokens every token asks, and some rows are compared; beyond, the last `LAST` tokens
ask, and all of their rows are compared. Two heads, one of them with the sign of the logits turned.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from inputs import Array, numpy_dtype

DTYPES = ("float32", "float64", "float16", "bfloat16")
TOKENS = (64, 1024, 8192, 65536)
LOGITS = ("ordinary", "1e4", "1e30", "equal keys")
HEAD_DIM = 64
HEADS = 2
SQUARE = 1024
LAST = 16
COMPARED = 128
"""Rows of each head that are compared, at most."""
DISTINCT = 8
"""Different keys where logits are near 1e30: there, others than equal ones are far apart."""


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    dtype: str
    tokens: int
    logits: str

    @property
    def id(self) -> str:
        return f"{self.dtype}/{self.tokens}/{self.logits}"

    @property
    def num_queries(self) -> int:
        return self.tokens if self.tokens <= SQUARE else LAST


@dataclass
class Problem:
    """q (1, H, Tq, D), k and v (1, H, T, D) in the case's dtype; causal.

    The last query stands at the last key. `which` (T,): keys of one number are equal; None where
    all differ.
    """

    q: Array
    k: Array
    v: Array
    scale: float
    which: Array | None


def make(case: Case, seed: int) -> Problem:
    """The arrays of a case; the same normal numbers for every dtype, then rounded.

    ordinary: logits of a few units. 1e4: some units around 1e4, and around -1e4. 1e30: near 1e30
    and near -1e30, `DISTINCT` different keys. equal keys: one key, its logits ordinary in the
    first head, near 1e30 in the second one (of float16: in every second seed).
    """
    rng = np.random.default_rng((seed, case.tokens, LOGITS.index(case.logits)))
    keys, queries, dim = case.tokens, case.num_queries, HEAD_DIM
    q: Array = rng.standard_normal((HEADS, queries, dim), np.float32)
    k: Array = rng.standard_normal((HEADS, keys, dim), np.float32)
    v: Array = rng.standard_normal((HEADS, keys, dim), np.float32)
    scale = dim**-0.5
    which: Array | None = None
    # float16 has no such numbers: there the scale is large instead of the keys.
    in_keys = case.dtype != "float16"
    if case.logits == "1e4":
        # A common part u of all keys, and queries along it.
        u = np.sign(rng.standard_normal(dim)).astype(np.float32)
        q = u + q / 8
        k += u * np.float32(1e4 / 8) * np.array([[[1]], [[-1]]], np.float32)
    elif case.logits == "1e30":
        which = rng.integers(0, DISTINCT, keys)
        q = np.abs(q)
        k = np.abs(k[:, :DISTINCT])[:, which % k.shape[1]] * np.array([[[1]], [[-1]]], np.float32)
        k, scale = (k * np.float32(1e30), scale) if in_keys else (k, scale * 1e30)
    elif case.logits == "equal keys":
        which = np.zeros(keys, int)
        k = np.repeat(k[:, :1], keys, axis=1)
        if in_keys:
            k[1] *= np.float32(1e30)
        elif seed % 2:
            scale *= 1e30
    q, k, v = (x[None].astype(numpy_dtype(case.dtype)) for x in (q, k, v))
    return Problem(q, k, v, scale, which)


def compared_rows(case: Case, seed: int) -> Array:
    """Which queries are compared: the first and the last ones, and some at random."""
    count = case.num_queries
    if count <= COMPARED:
        return np.arange(count)
    drawn = np.random.default_rng((seed, 7)).permutation(np.arange(8, count - 8))[: COMPARED - 16]
    return np.sort(np.concatenate([np.arange(8), drawn, np.arange(count - 8, count)]))


def truth(problem: Problem, chosen: Array) -> Array:
    """(H, chosen queries, D) in float64; computed in long double where the input is float64.

    Logits are made for each different key, so that equal keys have equal logits to the last bit.
    """
    wide = np.longdouble if problem.q.dtype == np.float64 else np.float64
    q, k, v = (x[0].astype(wide) for x in (problem.q, problem.k, problem.v))
    keys, past = k.shape[1], k.shape[1] - q.shape[1]
    found = np.empty((len(q), len(chosen), v.shape[2]), wide)
    for head in range(len(q)):
        different, which = k[head], problem.which
        if which is not None:
            _, first, which = np.unique(which, return_index=True, return_inverse=True)
            different = different[first]
        for block in np.array_split(np.arange(len(chosen)), max(1, keys * len(chosen) // 2**21)):
            logits = q[head, chosen[block]] @ different.T * wide(problem.scale)
            if which is not None:
                logits = logits[:, which]
            hidden = np.arange(keys) > chosen[block][:, None] + past
            logits[hidden] = -np.inf
            weights = np.exp(logits - logits.max(axis=1, keepdims=True))
            found[head, block] = weights @ v[head] / weights.sum(axis=1, keepdims=True)
    return found.astype(np.float64)
