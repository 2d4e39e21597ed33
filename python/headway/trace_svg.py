"""Pictures of matrices as inline SVG: cells whose opacity is their value, hatching where hidden."""

from collections.abc import Iterator

import numpy as np

from .arrays import Array
from .markup import Child, Markup, element
from .terminal import columns_of
from .trace_pictures import Picture

CELL = 22  # units of a cell; a unit is a pixel where there is room
NUMBER_CELL = 34  # of a cell with its number in it
MOST_NUMBERS = 10  # columns up to which the numbers of weights are written into the cells
LETTER = 6.6  # units of one letter of a label; a wide one, as in Chinese, takes two
LONGEST = 12  # letters of a label
LEAST = 0.75  # to what part of its size a picture shrinks; then it is scrolled


def hatching(name: str) -> Markup:
    """The pattern of hidden cells, to be put into the page once."""
    line = element("path", d="M0 6L6 0", class_="line")
    pattern = element("pattern", line, id=name, width=6, height=6, patternUnits="userSpaceOnUse")
    return element(
        "svg", element("defs", pattern), width=0, height=0, aria_hidden="true", class_="none"
    )


def thumbnail(picture: Picture, hatch: str) -> Markup:
    """A small picture without labels; values where the pointer rests."""
    rows, columns = picture.values.shape
    size = max(3.0, min(12.0, 96 / max(rows, columns, 1)))
    body = cells(picture, hatch, size, 0.0, 0.0)
    return _svg(body, columns * size, rows * size, summary(picture), "small")


def heat_map(picture: Picture, hatch: str) -> Markup:
    """A picture of weights with the names of queries and keys, and the sink at the right."""
    rows, columns = picture.values.shape
    numbers = columns + (picture.sink is not None) <= MOST_NUMBERS
    size = NUMBER_CELL if numbers else CELL
    left = 8 + LETTER * max((columns_of(_cut(name)) for name in picture.rows.names), default=0)
    every = [*picture.columns.names, *([] if picture.sink is None else ["sink"])]
    longest = max((columns_of(_cut(name)) for name in every), default=0)
    top = 12 + LETTER * longest * 0.87
    body = [
        *_row_names(picture, left, top, size),
        *_column_names(every, picture, left, top, size),
        *cells(picture, hatch, size, left, top, numbers),
        *_sink_cells(picture, size, left, top, numbers),
    ]
    gap = 0 if picture.sink is None else size * 1.5
    width = left + columns * size + gap + LETTER * longest * 0.5
    return _svg(body, width, top + rows * size + 2, summary(picture), "large")


def scale_bar() -> Markup:
    """The scale of all pictures of weights, from 0 to 1, and what hatching means."""
    steps = [
        element("rect", x=n * 12, y=0, width=12, height=12, class_="p", fill_opacity=n / 10)
        for n in range(11)
    ]
    return _svg(steps, 132, 12, "Scale: from no color for 0 to full color for 1", "scale")


def swatch(hatch: str) -> Markup:
    """A hatched square, for the legend."""
    box = element(
        "rect", class_="frame hatch", x=0.5, y=0.5, width=17, height=11, fill=f"url(#{hatch})"
    )
    return _svg(box, 18, 12, "Hatching", "scale")


def summary(picture: Picture) -> str:
    """The picture in words, for those who do not see it."""
    step = picture.step
    rows, columns = picture.values.shape
    words = f"{step.name}: {rows} by {columns} cells"
    if step.kind == "weights" and rows and columns:
        parts = []
        for n in range(min(rows, LONGEST)):
            best = int(np.argmax(np.where(picture.hidden[n], -1.0, picture.values[n])))
            if not picture.hidden[n, best]:
                value = f"{picture.values[n, best]:.2f}"
                parts.append(
                    f"{picture.rows.told(n)} most to {picture.columns.told(best)}, {value}"
                )
        words += ". " + "; ".join(parts)
        if rows > LONGEST:
            words += f"; and {rows - LONGEST} more"
    elif picture.values.size and step.kind != "mask":
        numbers = picture.values[~np.isnan(picture.values)]
        if numbers.size:
            words += f", from {numbers.min():.2f} to {numbers.max():.2f}"
        else:
            words += " without a number"
    return words


# Parts --------------------------------------------------------------------------------------------


def cells(
    picture: Picture, hatch: str, size: float, left: float, top: float, numbers: bool = False
) -> Iterator[Markup]:
    """A hatched ground, plain paper under what is seen, and a rectangle for each cell."""
    rows, columns = picture.values.shape
    if not picture.values.size:
        return
    box = {"x": left, "y": top, "width": columns * size, "height": rows * size}
    if picture.hidden.any():
        yield element(
            "rect", element("title", "hidden"), class_="hatch", fill=f"url(#{hatch})", **box
        )
    yield element("path", class_="paper", d="".join(_runs(~picture.hidden, size, left, top)))
    largest = 1.0 if picture.step.kind in ("weights", "mask") else picture.largest or 1.0
    for i, j in np.argwhere(~picture.hidden).tolist():
        value = float(picture.values[i, j])
        tip = f"{picture.rows.told(i)}, {picture.columns.told(j)}: {_written(picture, value)}"
        yield _cell(value, largest, tip, left + j * size, top + i * size, size)
        if numbers:
            yield _number(value, left + j * size, top + i * size, size)
    yield element("rect", class_="frame", **box)


def _cell(value: float, largest: float, tip: str, x: float, y: float, size: float) -> Markup:
    strength = 1.0 if not np.isfinite(value) else min(abs(value) / largest, 1.0)
    kind = "nan" if np.isnan(value) else "m" if value < 0 else "p"
    return element(
        "rect",
        element("title", tip),
        class_=kind,
        x=round(x, 2),
        y=round(y, 2),
        width=round(size, 2),
        height=round(size, 2),
        fill_opacity=round(strength, 2),
    )


def _number(value: float, x: float, y: float, size: float) -> Markup:
    strong = "on" if value > 0.55 else None
    return element("text", f"{value:.2f}", x=x + size / 2, y=y + size / 2 + 4, class_=strong)


def _sink_cells(
    picture: Picture, size: float, left: float, top: float, numbers: bool
) -> Iterator[Markup]:
    if picture.sink is None or not picture.sink.size:
        return
    x = left + (picture.values.shape[1] + 0.5) * size
    for i, value in enumerate(picture.sink.tolist()):
        tip = f"{picture.rows.told(i)}, the sink: {value:.3f}"
        yield _cell(value, 1.0, tip, x, top + i * size, size)
        if numbers:
            yield _number(value, x, top + i * size, size)
    height = len(picture.sink) * size
    yield element("rect", class_="frame", x=x, y=top, width=size, height=height)


def _row_names(picture: Picture, left: float, top: float, size: float) -> Iterator[Markup]:
    for n, name in enumerate(picture.rows.names):
        y = top + (n + 0.5) * size + 4
        yield element("text", _cut(name), x=left - 6, y=round(y, 2), class_="row")


def _column_names(
    names: list[str], picture: Picture, left: float, top: float, size: float
) -> Iterator[Markup]:
    for n, name in enumerate(names):
        x = left + (n + 0.5) * size + (size / 2 if n == picture.values.shape[1] else 0) + 3
        turn = f"translate({x:.1f} {top - 6:.1f}) rotate(-60)"
        yield element("text", _cut(name), transform=turn, class_="column")


def _runs(seen: Array, size: float, left: float, top: float) -> Iterator[str]:
    """A path around the runs of seen cells of each row."""
    for i, row in enumerate(seen):
        edges = np.flatnonzero(np.diff(np.concatenate(([False], row, [False])).astype(np.int8)))
        for start, end in edges.reshape(-1, 2).tolist():
            x, y, width = left + start * size, top + i * size, (end - start) * size
            yield f"M{x:.6g} {y:.6g}h{width:.6g}v{size:.6g}h{-width:.6g}z"


def _written(picture: Picture, value: float) -> str:
    if picture.step.kind != "mask":
        return f"{value:.3g}" if picture.step.kind != "weights" else f"{value:.3f}"
    return "seen" if value == 1.0 else f"{value:.0%} seen"


def _cut(name: str) -> str:
    if columns_of(name) <= LONGEST:
        return name
    cut = name[: LONGEST - 1]
    while columns_of(cut) >= LONGEST:
        cut = cut[:-1]
    return cut + "…"


def _svg(body: Child, width: float, height: float, words: str, class_: str) -> Markup:
    width, height = max(round(width, 1), 1.0), max(round(height, 1), 1.0)
    return element(
        "svg",
        body,
        viewBox=f"0 0 {width:g} {height:g}",
        width=width,
        height=height,
        role="img",
        aria_label=words,
        class_=class_,
        style=f"min-width: {width * LEAST:.0f}px" if class_ == "large" else None,
    )
