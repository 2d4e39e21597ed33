"""The steps of a whole call or module, in order, and the fused kernel's result beside them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .arrays import Array
from .calls import Call
from .options import Options
from .trace_head import Head, head_steps, options_of_head
from .trace_steps import Step, joined, record

if TYPE_CHECKING:
    from .module_base import AttentionModule


class Weights(NamedTuple):
    """Weight and bias of Q, K or V of one head, and where they are from."""

    w: Array  # (d_in, head_dim)
    b: Array | None  # (head_dim,)
    shared: str  # which other heads use it; "" for none


_ASKS = {"query": "asks for", "key": "offers to be found by", "value": "hands on when found"}
_LETTER = {"query": "Q", "key": "K", "value": "V"}


# A call -------------------------------------------------------------------------------------------


def call_steps(call: Call, layout: str) -> Iterator[Step]:
    """The steps of ``attention(q, k, v, <options>)``."""
    options = call.options or Options()
    num_heads = call.q.shape[1]
    group = num_heads // max(call.k.shape[1], 1)
    contexts = []
    for h in range(num_heads):
        places = {"q": h, "k": h // group, "v": h // group}
        q, k, v = (
            x[:, n].astype(call.wide)
            for x, n in zip((call.q, call.k, call.v), places.values(), strict=True)
        )
        for (name, n), x in zip(places.items(), (q, k, v), strict=True):
            yield _operand(name, h + 1, n, x, call.rank, layout, group)
        head = Head(
            h + 1,
            q,
            k,
            v,
            call.scale,
            call.causal,
            call.offsets,
            options_of_head(options, h),
            call.rank == 4,
        )
        steps = head_steps(head)
        yield from steps
        contexts.append(steps[-1].array)
    yield _all_contexts(contexts, call, layout)


def _operand(name: str, n: int, h: int, x: Array, rank: int, layout: str, group: int) -> Step:
    """Q, K or V of head n, which is entry h of the array as it was given."""
    kind = {"q": "query", "k": "key", "v": "value"}[name]
    place = {("BHTD", 4): f"[:, {h}]", ("BTHD", 4): f"[:, :, {h}]"}.get((layout, rank), "")
    if rank == 3:
        place = f"[{h}]" if layout == "BHTD" else f"[:, {h}]"
    axes = ("queries" if name == "q" else "keys", "head_dim")
    shared = "" if name == "q" else _sharing(h, group)
    about = f"What each token {_ASKS[kind]}{shared}."
    batched = rank == 4
    return Step(
        f"{name.upper()}_{n}",
        record(x if batched else x[0]),
        f"{name}{place}",
        about,
        ("batch", *axes) if batched else axes,
        n,
    )


def _all_contexts(contexts: list[Array], call: Call, layout: str) -> Step:
    """Z as the call returns it, in its rank and layout."""
    axis = {("BHTD", 4): 1, ("BTHD", 4): 2, ("BHTD", 3): 0, ("BTHD", 3): 1}.get((layout, call.rank))
    axes = ["batch", "queries", "head_dim"][4 - max(call.rank, 3) :]
    if axis is None:
        z = contexts[0]
    else:
        axes.insert(axis, "heads")
        shape = [call.q.shape[0], call.q.shape[2], call.v.shape[3]][4 - call.rank :]
        shape.insert(axis, 0)
        z = np.stack(contexts, axis) if contexts else np.empty(shape, call.wide)
    names = [f"Z_{n}" for n in range(1, len(contexts) + 1)]
    formula = joined(names) if len(names) > 1 else "Z_1"
    about = "The context vectors of all heads, as attention returns them."
    return Step("Z", record(z), formula, about, tuple(axes))


# A module -----------------------------------------------------------------------------------------


def module_steps(module: AttentionModule, x: Array, options: Options) -> Iterator[Step]:
    """The steps of ``module(x)`` for a checked x; the options hold its dropout, if any."""
    wide = np.dtype("float64" if x.dtype == np.float64 else "float32")
    batched = x.ndim == 3
    wide_x = x.astype(wide)
    first = ("batch",) if batched else ()
    about = "The embedded tokens: one row of d_in numbers each."
    yield Step("x", record(wide_x), "", about, (*first, "tokens", "d_in"))
    contexts = []
    for n, weights in enumerate(_weights_of_heads(module), start=1):
        yield from _weight_steps(n, weights, wide)
        made = {}
        for kind, one in weights.items():
            made[kind] = _product(wide_x, one.w, one.b)
            letter = _LETTER[kind]
            bias = "" if one.b is None else f" + b_{kind}_{n}"
            yield Step(
                f"{letter}_{n}",
                record(made[kind]),
                f"x @ w_{kind}_{n}{bias}",
                f"What each token {_ASKS[kind]}{one.shared}.",
                (*first, "queries" if kind == "query" else "keys", "head_dim"),
                n,
            )
        q, k, v = (y if batched else y[None] for y in made.values())
        head = Head(n, q, k, v, None, True, [0] * len(q), options, batched)
        steps = head_steps(head)
        yield from steps
        contexts.append(steps[-1].array)
    yield from _merged(module, contexts, first, wide)


def _weight_steps(n: int, weights: dict[str, Weights], wide: Any) -> Iterator[Step]:
    for kind, one in weights.items():
        about = f"Makes the {kind} of every token{one.shared}."
        axes = ("d_in", "head_dim")
        yield Step(f"w_{kind}_{n}", record(one.w.astype(wide)), "", about, axes, n)
    for kind, one in weights.items():
        if one.b is not None:
            about = f"Is added to the {kind} of every token{one.shared}."
            yield Step(f"b_{kind}_{n}", record(one.b.astype(wide)), "", about, axes[1:], n)


def _merged(
    module: AttentionModule, contexts: list[Array], first: tuple[str, ...], wide: Any
) -> Iterator[Step]:
    z = np.concatenate(contexts, axis=-1)
    names = [f"Z_{n}" for n in range(1, len(contexts) + 1)]
    formula, about = "Z_1", "The context vectors of the only head."
    if len(names) > 1:
        formula, about = joined(names), "The context vectors of all heads, side by side."
    yield Step("Z", record(z), formula, about, (*first, "queries", "d_out"))
    w_out, b_out = getattr(module, "w_out", None), getattr(module, "b_out", None)
    if w_out is None:
        return
    about = "The output projection: mixes the heads."
    yield Step("w_out", record(w_out.astype(wide)), "", about, ("d_out", "width"))
    if b_out is not None:
        about = "Is added to every row of the output."
        yield Step("b_out", record(b_out.astype(wide)), "", about, ("width",))
    yield Step(
        "output",
        record(_product(z, w_out, b_out)),
        "Z @ w_out" + ("" if b_out is None else " + b_out"),
        "What the module returns.",
        (*first, "queries", "width"),
    )


@np.errstate(all="ignore")
def _product(x: Array, w: Array, b: Array | None) -> Array:
    """``x @ w + b`` in the dtype of x."""
    product = x @ w.astype(x.dtype)
    return np.asarray(product if b is None else product + b.astype(x.dtype))


def _weights_of_heads(module: AttentionModule) -> Iterator[dict[str, Weights]]:
    """For each head the weights of its queries, keys and values."""
    from .head_stack import StackedMultiHeadAttention

    if isinstance(module, StackedMultiHeadAttention):
        for head in module:
            yield from _weights_of_heads(head)
        return
    size, group = module.head_dim, module.num_heads // module.num_kv_heads
    every = module._weights
    for h in range(module.num_heads):
        found = {}
        for kind in _LETTER:
            n = h if kind == "query" else h // group
            columns = slice(n * size, (n + 1) * size)
            bias = every.get(f"b_{kind}")
            found[kind] = Weights(
                every[f"w_{kind}"][:, columns],
                None if bias is None else bias[columns],
                "" if kind == "query" else _sharing(n, group),
            )
        yield found


def _sharing(kv_head: int, group: int) -> str:
    """Which query heads use this key head, if there are several."""
    if group == 1:
        return ""
    first = kv_head * group + 1
    return f", the same for heads {first} to {first + group - 1}"


# Comparison ---------------------------------------------------------------------------------------

ALLOWED = {"float64": 1e-12, "float32": 2e-5, "float16": 2.0**-7, "bfloat16": 2.0**-4}
"""Largest difference from the kernel, relative to the largest number, by the input's dtype.

The trace does not round between the steps; the kernel rounds its result to 16 bits, and a module
its Q, K and V, too.
"""


def compare(step: Array, kernel: Array) -> tuple[float, float]:
    """(largest difference, largest number); the former is infinite where NaN or inf differ."""
    one, other = step.astype(np.float64), kernel.astype(np.float64)
    finite = np.isfinite(one) & np.isfinite(other)
    same = np.array_equal(one[~finite], other[~finite], equal_nan=True)
    with np.errstate(over="ignore"):
        difference = float(np.abs(one[finite] - other[finite]).max(initial=0.0))
    largest = float(np.abs(one[finite]).max(initial=0.0))
    return (difference if same else np.inf), largest
