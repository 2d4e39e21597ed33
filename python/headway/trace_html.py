"""A trace as a page: the way from x to Z, the weights of each head, and every step in a table."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .markup import Markup, element
from .trace_build import ALLOWED
from .trace_pictures import Picture, picture
from .trace_steps import Step, shape_text
from .trace_style import CSS
from .trace_svg import hatching, heat_map, scale_bar, swatch, thumbnail
from .trace_text import facts

if TYPE_CHECKING:
    from .trace_record import Trace

MOST_CELLS = 4800  # cells of all pictures of weights together
LARGEST, SMALLEST = 40, 8  # cells along one side of a picture of weights
MOST_HEADS = 16  # heads with a picture of their weights
STRIP_HEADS, STRIP_SIDE = 4, 16  # heads whose way is drawn; cells along a side there
TABLE_SIDE = 16  # rows and columns of a table of numbers

STRIP = (("Q", "K", "V"), ("scores",), ("mask",), ("weights",), ("Z",))
"""What the way of one head leads through; things in brackets stand side by side."""


def page(trace: Trace, batch: int) -> str:
    """A whole HTML page."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"Trace of {trace.subject}"),
        element(
            "style",
            Markup("html, body { margin: 0; padding: 0; }\n.headway { min-height: 100vh; }" + CSS),
        ),
    )
    body = element("body", element("main", _content(trace, batch), class_="headway"))
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def fragment(trace: Trace, batch: int) -> str:
    """The page without its frame, to be put into another page."""
    return element("div", element("style", Markup(CSS)), _content(trace, batch), class_="headway")


def _content(trace: Trace, batch: int) -> Markup:
    name = f"hatch-{zlib.crc32(trace.steps[-1].array.tobytes()):08x}"
    entry = facts(trace, batch)
    return element(
        "div",
        hatching(name),
        element("h1", "From tokens to context vectors"),
        element("p", element("code", trace.subject), f": {entry}", class_="soft"),
        element("p", "Options: ", element("code", trace.options)) if trace.options else "",
        _verdict(trace),
        _way(trace, batch, name),
        _weights(trace, batch, name),
        _all_steps(trace),
        class_="inner",
    )


def _verdict(trace: Trace) -> Markup:
    mark = element("span", "They agree.", class_="good")
    if not trace.agrees:
        mark = element("span", "They do not agree.", class_="bad")
    last = trace.steps[-1].name
    return element(
        "p",
        f"Every step below is computed in NumPy. Its last, {last}, differs from the result of the "
        f"fused kernel ({trace.isa}) by at most {trace.difference:.1e}; the largest number is "
        f"{trace.largest:.2g}. ",
        mark,
        f" Allowed for {trace.dtype}: {ALLOWED[trace.dtype]:.0e} of the largest number.",
    )


# The way ------------------------------------------------------------------------------------------


def _way(trace: Trace, batch: int, hatch: str) -> list[Markup]:
    words = (
        "Rows are tokens. Blue is positive, orange negative, and stronger is larger; hatched cells "
        "are hidden. A value is shown where the pointer rests."
    )
    if max((max(step.matrix(batch).shape) for step in trace), default=0) > STRIP_SIDE:
        words += (
            " A cell of a large matrix is the mean of a block; of weights, what it gives to one."
        )
    parts = [element("h2", "The way, head by head"), element("p", words, class_="soft")]
    for n in range(1, min(trace.num_heads, STRIP_HEADS) + 1):
        groups = [[f"{kind}_{n}" for kind in kinds] for kinds in STRIP]
        if "x" in trace:
            groups.insert(0, ["x"])
        parts.append(element("h3", f"Head {n}"))
        parts.append(_strip(trace, batch, groups, hatch))
    if trace.num_heads > STRIP_HEADS:
        parts.append(
            element(
                "p",
                f"The way of heads {STRIP_HEADS + 1} to {trace.num_heads} is the same, "
                "with numbers of their own.",
                class_="soft",
            )
        )
    if trace.num_heads > 1:
        contexts = [f"Z_{n}" for n in range(1, min(trace.num_heads, STRIP_HEADS) + 1)]
        merged = [contexts, ["Z"], *([["output"]] if "output" in trace else [])]
        parts.append(element("h3", "All heads together"))
        parts.append(_strip(trace, batch, merged, hatch))
    return parts


def _strip(trace: Trace, batch: int, groups: list[list[str]], hatch: str) -> Markup:
    items = []
    for group in groups:
        drawn = [_small(picture(trace, name, batch, STRIP_SIDE), hatch) for name in group]
        items.append(element("li", element("div", drawn, class_="beside")))
    return element("ol", items, class_="strip", role="list")


def _small(drawn: Picture, hatch: str) -> Markup:
    name, shape = drawn.step.name, shape_text(drawn.step.shape)
    caption = element("figcaption", element("code", name), " ", element("span", shape))
    return element("figure", thumbnail(drawn, hatch), caption)


# Weights ------------------------------------------------------------------------------------------


def _weights(trace: Trace, batch: int, hatch: str) -> list[Markup]:
    shown = min(trace.num_heads, MOST_HEADS)
    if not shown:
        return []
    side = min(LARGEST, max(SMALLEST, int(math.sqrt(MOST_CELLS / shown))))
    first = picture(trace, "weights_1", batch, side)
    legend = [
        element("span", "0 ", scale_bar(), " 1"),
        element("span", swatch(hatch), " hidden"),
    ]
    words = "A row is a query; it shows how much of each value goes into its context vector."
    if first.rows.blocked or first.columns.blocked:
        words += (
            f" {trace['weights_1'].shape[-2]:,} queries and {trace['weights_1'].shape[-1]:,} keys "
            "are drawn in blocks: a cell is the weight that a query of its block gives to all keys "
            "of its block, on average."
        )
    if shown < trace.num_heads:
        words += f" The first {shown} of {trace.num_heads} heads are drawn."
    cards = []
    for n in range(1, shown + 1):
        drawn = first if n == 1 else picture(trace, f"weights_{n}", batch, side)
        cards.append(_card(trace, drawn, n, batch, hatch))
    return [
        element("h2", "Who looks at whom"),
        element("p", words, class_="soft"),
        element("div", legend, class_="legend"),
        element("div", cards, class_="grid"),
    ]


def _card(trace: Trace, drawn: Picture, n: int, batch: int, hatch: str) -> Markup:
    caption = element(
        "figcaption",
        element("strong", f"Head {n}"),
        " ",
        element("code", drawn.step.name),
        " ",
        element("span", shape_text(drawn.step.shape)),
    )
    plot = element(
        "div",
        heat_map(drawn, hatch),
        class_="scroll",
        tabindex=0,
        role="group",
        aria_label=f"Picture of the weights of head {n}",
    )
    table = element(
        "div",
        _table(picture(trace, drawn.step.name, batch, TABLE_SIDE)),
        class_="scroll",
        tabindex=0,
        role="group",
        aria_label=f"Table of the weights of head {n}",
    )
    numbers = element("details", element("summary", f"Numbers of head {n}"), table)
    return element("figure", caption, plot, numbers, class_="card")


def _table(drawn: Picture) -> Markup:
    sink = drawn.sink
    names = [*drawn.columns.names, *([] if sink is None else ["sink"])]
    head = element("tr", element("td"), [element("th", name, scope="col") for name in names])
    rows = []
    for i, name in enumerate(drawn.rows.names):
        texts = [
            "·" if hidden else f"{value:.3f}"
            for value, hidden in zip(drawn.values[i], drawn.hidden[i], strict=True)
        ]
        if sink is not None:
            texts.append(f"{sink[i]:.3f}")
        cells = [element("td", text) for text in texts]
        rows.append(element("tr", element("th", name, scope="row"), cells))
    return element("table", element("thead", head), element("tbody", rows), class_="numbers")


# Steps --------------------------------------------------------------------------------------------


def _all_steps(trace: Trace) -> list[Markup]:
    columns = ("Name", "Shape", "Formula", "What it is")
    head = element("tr", [element("th", text, scope="col") for text in columns])
    body = element("tbody", _rows(trace))
    table = element("table", element("thead", head), body, class_="steps")
    return [element("h2", "Every step"), element("div", table, class_="card")]


def _rows(trace: Trace) -> Iterator[Markup]:
    told: dict[str, str] = {}
    for step in trace:
        if step.head is not None and step.head > MOST_HEADS:
            continue
        about = "" if told.get(step.kind) == step.about else step.about
        told[step.kind] = step.about
        yield _row(step, about)


def _row(step: Step, about: str) -> Markup:
    return element(
        "tr",
        element("th", element("code", step.name), scope="row"),
        element("td", shape_text(step.shape)),
        element("td", element("code", step.formula) if step.formula else ""),
        element("td", about),
    )
