"""A cost as text: its sizes, its products, its figures and how they grow."""

from __future__ import annotations

from textwrap import wrap

from .cost_record import FIGURES, Cost
from .text_table import TextTable

PARTS = {
    "qkv": "Q, K, V: x @ w",
    "scores": "scores: Q @ K.T",
    "context": "Z: weights @ V",
    "output": "output: Z @ w_out",
}
NAMES = dict(
    zip(
        FIGURES,
        (
            "weights",
            "weights, bytes",
            "multiply-adds",
            "multiply-adds, dense",
            "activations, bytes",
            "KV cache, bytes",
            "scores, bytes",
        ),
        strict=True,
    )
)
GROWTH = {"num_tokens": "tokens", "width": "width", "num_heads": "heads", "split": "split"}
NOTES = """\
multiply-adds  of the (query, key) pairs that are not hidden, T * (T + 1) / 2
dense          of all T * T pairs: masked products counted, as plain NumPy does
activations    what a call holds at once beside x
scores         one (T, T) matrix per head, which headway never stores"""
GROWTH_NOTES = """\
x tokens       times as much with twice the tokens
x width        with d_in and head_dim twice as large
x heads        with twice the heads of the same head_dim: d_out doubles
x split        with twice the heads of half the head_dim: d_out stays"""


def sizes(cost: Cost) -> str:
    """What the cost is of, in one line."""
    heads = f"{cost.num_heads} head{'s' * (cost.num_heads > 1)}"
    if cost.widest_head * cost.num_heads == cost.d_out:
        heads += f" of {cost.widest_head}"
    if cost.num_kv_heads < cost.num_heads:
        heads += f", {cost.num_kv_heads} for keys and values"
    out = f", output {cost.out_width}" if cost.out_width else ""
    return (
        f"{cost.stage}: batch {cost.batch}, {cost.num_tokens:,} tokens, d_in {cost.d_in}, "
        f"d_out {cost.d_out}, {heads}{out}, {cost.dtype}"
    )


def lines_of_sizes(cost: Cost) -> list[str]:
    """The same, wrapped."""
    return wrap(sizes(cost), 80)


def parts_table(cost: Cost) -> TextTable:
    """A row for each product, and their sum."""
    total = cost.num_parameters, cost.multiply_adds, cost.dense_multiply_adds
    found = [(PARTS[name], *part) for name, part in cost.parts.items()] + [("total", *total)]
    rows = [[name, *(f"{n:,}" for n in numbers)] for name, *numbers in found]
    return TextTable(["product", "weights", "multiply-adds", "dense"], rows)


def figures_table(cost: Cost) -> TextTable:
    """A row for each figure: how much it is, and times as much where something doubles."""
    growth = cost.growth()
    header = ["figure", "now", *(f"x {name}" for name in GROWTH.values())]
    rows = [
        [
            NAMES[figure],
            f"{getattr(cost, figure):,}",
            *(f"{growth[figure][name]:.3g}" if name in growth[figure] else "-" for name in GROWTH),
        ]
        for figure in FIGURES
    ]
    return TextTable(header, rows)


def text(cost: Cost) -> str:
    """All of it, in lines of at most 80 characters for usual sizes."""
    blocks = [
        lines_of_sizes(cost),
        parts_table(cost).lines(),
        figures_table(cost).lines(),
        [NOTES],
        [GROWTH_NOTES],
    ]
    return "\n\n".join("\n".join(block) for block in blocks)
