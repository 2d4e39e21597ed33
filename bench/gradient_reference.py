"""What rows with gradients have to give: plain float64, a block of queries at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from inputs import Array, Inputs, added, allowed
from row import Row

BLOCK = 512
"""Queries whose scores are stored at once."""
WEIGHTS = ("w_query", "w_key", "w_value", "w_out")


def attention_gradients(row: Row, inputs: Inputs) -> list[Array]:
    """The result and the gradients of q, k and v for "grad_out": (B, H, T, D), (B, Hkv, T, D).

    Of the options that rows with gradients have: a window, a float mask, ALiBi, dropout.
    """
    q, k, v, grad = (inputs[name] for name in ("q", "k", "v", "grad_out"))
    group = row.num_heads // row.num_kv_heads
    out, of_q = np.empty(q.shape), np.empty(q.shape)
    of_k, of_v = np.zeros(k.shape), np.zeros(v.shape)
    for start in range(0, row.num_queries, BLOCK):
        chosen = np.arange(start, min(start + BLOCK, row.num_queries))
        end = int(chosen[-1]) + 1 + row.num_keys - row.num_queries  # a later key is hidden
        hidden, bias = ~allowed(row, inputs, chosen)[:, :end], added(row, inputs, chosen)
        factors = dropout_factors(row, chosen, end) if row.options.dropout else None
        for b, h in np.ndindex(*q.shape[:2]):
            queries, above = (x[b, h, chosen].astype(np.float64) for x in (q, grad))
            keys, values = (x[b, h // group, :end].astype(np.float64) for x in (k, v))
            weights = queries @ keys.T * row.scale
            if bias is not None:
                weights += bias[h % len(bias), :, :end]
            np.copyto(weights, -np.inf, where=hidden)
            weights -= weights.max(axis=1, keepdims=True)
            np.exp(weights, out=weights)
            weights /= weights.sum(axis=1, keepdims=True)
            of_weights, kept = above @ values.T, weights
            if factors is not None:
                of_weights *= factors[b, h]
                kept = weights * factors[b, h]
            out[b, h, chosen] = kept @ values
            of_v[b, h // group, :end] += kept.T @ above
            of_weights -= (weights * of_weights).sum(axis=1, keepdims=True)
            of_weights *= weights * row.scale  # now the gradient of q.k
            of_q[b, h, chosen] = of_weights @ keys
            of_k[b, h // group, :end] += of_weights.T @ queries
    return [out, of_q, of_k, of_v]


def dropout_factors(row: Row, queries: Array, end: int) -> Array:
    """(B, H, queries, end): 0 where a weight is dropped, else 1 / (1 - p)."""
    from headway.philox import kept_weights

    first = int(queries[0]) + row.num_keys - row.num_queries
    shape = (row.batch, row.num_heads, len(queries), end)
    kept = kept_weights(shape, [first] * row.batch, row.options.dropout, 0)
    found: Array = kept / (1 - row.options.dropout)
    return found


def module_gradients(row: Row, inputs: Inputs) -> list[Array]:
    """The result, and the gradients of x, w_query, w_key, w_value and w_out for "grad_out"."""
    wide = {name: array.astype(np.float64) for name, array in inputs.arrays.items()}
    x, above = (wide[name].reshape(-1, row.width) for name in ("x", "grad_out"))
    split = (row.batch, row.num_keys, row.num_heads, row.head_dim)

    def heads(array: Array) -> Array:
        return array.reshape(split).swapaxes(1, 2)

    def merged(array: Array) -> Array:
        return array.swapaxes(1, 2).reshape(-1, row.width)

    arrays = {name[2]: heads(x @ wide[name]) for name in WEIGHTS[:3]}  # q, k and v
    arrays["grad_out"] = heads(above @ wide["w_out"].T)
    attention = replace(row, kind="backward")
    context, *of_heads = map(merged, attention_gradients(attention, Inputs(arrays)))
    of_x = sum(of @ wide[name].T for name, of in zip(WEIGHTS[:3], of_heads, strict=True))
    of_weights = [x.T @ of for of in of_heads]
    return [context @ wide["w_out"], np.asarray(of_x), *of_weights, context.T @ above]


def expected(row: Row, inputs: Inputs) -> tuple[Array, Array]:
    """(where each array ends, all arrays one after another): the result only where it counts."""
    if row.kind == "train":
        arrays = module_gradients(row, inputs)
    else:
        arrays = attention_gradients(row, inputs)[int(row.part == "backward") :]
    return np.cumsum([array.size for array in arrays]), flat(arrays)


def flat(arrays: list[Array]) -> Array:
    """All numbers of the arrays, one after another, as one axis."""
    return np.concatenate([array.ravel() for array in arrays])
