"""headway: its functions with what a row asks for, its modules with their defaults."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from inputs import Array, Inputs, thd
from rows import Row

import headway
from headway import _core

from . import Prepare, Prepared, Unsupported, own_cache, own_training
from .copies import cold_copies


def versions() -> dict[str, str]:
    return {"headway": headway.__version__}


def threads() -> int:
    return headway.get_num_threads()


def default_isa() -> str:
    """The instruction set that headway takes by itself."""
    return os.environ.get("HEADWAY_ISA") or headway.available_isas()[0]


def use(row: Row) -> None:
    """Choose the row's instruction set."""
    wanted = row.isa or default_isa()
    if wanted not in headway.available_isas():
        raise Unsupported(f"this CPU or build has no {wanted}")
    headway.set_isa(wanted)


def peak(kind: str, seconds: float, isa: str | None) -> float | None:
    """GFLOP/s of multiply-adds alone, by as many threads as headway uses here."""
    headway.set_isa(isa or default_isa())
    return _core.peak(seconds, headway.get_num_threads(), kind)


def read_bandwidth(seconds: float, num_bytes: int) -> float:
    """GB/s at which that many threads read an array of this size."""
    words = np.ones(num_bytes // 8, np.uint64)
    return _core.read_bandwidth(seconds, headway.get_num_threads(), words)


def attention(row: Row, inputs: Inputs) -> Prepared:
    use(row)
    q, k, v = (inputs[name] for name in "qkv")
    if row.layout == "BHTD":
        return Prepared(lambda: headway.attention(q, k, v), lambda out: out)
    q, k, v = (thd(array) for array in (q, k, v))
    return Prepared(
        lambda: headway.attention(q, k, v, layout="BTHD"), lambda out: out.swapaxes(1, 2)
    )


def keywords(row: Row, inputs: Inputs) -> dict[str, Any]:
    """The row's options as headway takes them."""
    options = row.options
    given: dict[str, Any] = {}
    if options.mask:
        given["mask"] = inputs["mask"]
    if options.window is not None:
        given["window"] = (options.window, 0)
    if options.softcap:
        given["softcap"] = options.softcap
    if options.alibi:
        given["alibi_slopes"] = inputs["slopes"]
    if options.sinks:
        given["sinks"] = inputs["sinks"]
    if options.length is not None:
        given |= {"kv_lengths": np.full(row.batch, options.length), "align": "start"}
    if options.dropout:
        given |= {"dropout": options.dropout, "seed": 0}
    return given


def options(row: Row, inputs: Inputs) -> Prepared:
    use(row)
    q, k, v = (inputs[name] for name in "qkv")
    given = keywords(row, inputs)
    return Prepared(lambda: headway.attention(q, k, v, **given), lambda out: out)


def packed(row: Row, inputs: Inputs) -> Prepared:
    use(row)
    q, k, v = (inputs[name] for name in "qkv")
    starts = np.cumsum([0, *row.lengths])
    return Prepared(
        lambda: headway.attention_varlen(q, k, v, starts), lambda out: out.swapaxes(0, 1)
    )


def plain(row: Row, inputs: Inputs) -> Prepared:
    """The call without the row's options, or of the longest sequence alone; what it is held to.

    Its result is that of the whole row, since that is what it is compared with.
    """
    whole = PREPARE["headway"](row, inputs)
    if row.kind == "backward":
        made = own_training.backward(row, inputs, {})
        return replace(made, result=lambda _: whole.result(whole.call()))
    q, k, v = (inputs[name] for name in "qkv")
    if row.kind == "packed":
        first = row.lengths.index(max(row.lengths))
        start = sum(row.lengths[:first])
        rows = slice(start, start + row.lengths[first])
        q, k, v = (x[None, rows] for x in (q, k, v))
    layout = "BTHD" if row.kind == "packed" else "BHTD"
    return Prepared(
        lambda: headway.attention(q, k, v, layout=layout), lambda _: whole.result(whole.call())
    )


def weights_of(inputs: Inputs) -> list[Array]:
    return [inputs[name] for name in ("w_query", "w_key", "w_value")]


def module_of(row: Row, inputs: Inputs) -> headway.MultiHeadAttention:
    return headway.MultiHeadAttention(
        *weights_of(inputs), num_heads=row.num_heads, w_out=inputs["w_out"]
    )


def module(row: Row, inputs: Inputs) -> Prepared:
    use(row)
    layer, x = module_of(row, inputs), inputs["x"]
    return Prepared(lambda: layer(x), lambda out: out)


def stacked(row: Row, inputs: Inputs) -> Prepared:
    use(row)
    layer, x = module_of(row, inputs).split(), inputs["x"]
    return Prepared(lambda: layer(x), lambda out: out)


def module_parts(row: Row, inputs: Inputs) -> tuple[Callable[[], Array], Callable[[], Any], Any]:
    """The module's pieces, each by itself: both products, the attention, the last product."""
    first = headway.Projection(np.concatenate(weights_of(inputs), axis=1))
    last = headway.Projection(inputs["w_out"])
    x = inputs["x"]
    merged = first(x)
    q, k, v = np.moveaxis(
        merged.reshape(row.batch, row.num_keys, 3, row.num_heads, row.head_dim), 2, 0
    )
    context = headway.attention(q, k, v, layout="BTHD")  # on whole lines, as in the module
    out = context.reshape(x.shape)

    def products() -> Array:
        first(x)
        return last(out)

    def attend() -> Any:
        return headway.attention(q, k, v, layout="BTHD", out=context)

    return products, attend, lambda: last(out)


def products_alone(row: Row, inputs: Inputs) -> Prepared:
    use(row)
    products, attend, _ = module_parts(row, inputs)
    attend()
    return Prepared(products, lambda out: out)


def attention_alone(row: Row, inputs: Inputs) -> Prepared:
    use(row)
    _, attend, finish = module_parts(row, inputs)
    return Prepared(attend, lambda _: finish())


def projection(row: Row, inputs: Inputs) -> Prepared:
    use(row)
    x = inputs["x"]
    layers = [headway.Projection(weight) for weight in cold_copies(row, inputs["weight"])]
    for layer in layers:
        layer(x[:1])  # packs
    following = itertools.cycle(layers).__next__
    return Prepared(lambda: following()(x), lambda out: out)


def decode(row: Row, inputs: Inputs) -> Prepared:
    use(row)
    return own_cache.decode(row, inputs)


def decode_bfloat16(row: Row, inputs: Inputs) -> Prepared:
    use(row)
    return own_cache.decode_bfloat16(row, inputs)


def read(row: Row, inputs: Inputs) -> Prepared:
    use(row)
    return own_cache.read(row, inputs)


def backward(row: Row, inputs: Inputs) -> Prepared:
    use(row)
    return own_training.backward(row, inputs, keywords(row, inputs))


def train(row: Row, inputs: Inputs) -> Prepared:
    use(row)
    return own_training.step(module_of(row, inputs), inputs)


def train_assigning(row: Row, inputs: Inputs) -> Prepared:
    use(row)
    return own_training.step(module_of(row, inputs), inputs, assign=True)


def by_kind(row: Row, inputs: Inputs) -> Prepared:
    """headway's own function for what the row asks for."""
    functions: dict[str, Prepare] = {
        "attention": attention,
        "module": module,
        "projection": projection,
        "options": options,
        "packed": packed,
        "decode": decode,
        "backward": backward,
        "train": train,
    }
    return functions[row.kind](row, inputs)


PREPARE: dict[str, Prepare] = {
    "headway": by_kind,
    "headway-plain": plain,
    "headway-bfloat16": decode_bfloat16,
    "read": read,
    "headway@1": by_kind,
    "headway@2": by_kind,
    "headway-assign": train_assigning,
    "headway-products": products_alone,
    "headway-attention": attention_alone,
    "stage-1": stacked,
    "stage-2": module,
}
