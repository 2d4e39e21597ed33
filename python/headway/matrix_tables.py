"""Matrices as tables of text: side by side, cut where they are large, dots where hidden."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from .arrays import Array
from .terminal import Terminal, columns_of

MOST_ROWS = 16  # rows of a table; of more, the first and the last ones are shown
FIRST_ROWS, LAST_ROWS = 8, 4
LABEL = 10  # most columns for a token at the left
APART = 2  # columns between tables


class Panel(NamedTuple):
    """A matrix to be shown: numbers, or bools as signs."""

    name: str
    values: Array  # (R, C)
    hidden: Array | None = None  # (R, C) bool: cells shown as a dot
    rows: Sequence[str] | None = None  # what the rows are called
    columns: Sequence[str] | None = None


class Cells(NamedTuple):
    """How the cells of a panel are written."""

    width: int
    text: Callable[[float], str]


def tables(panels: Sequence[Panel], terminal: Terminal) -> Iterator[str]:
    """The lines of the tables, as many side by side as there is room for and rows agree."""
    line: list[Panel] = []
    for panel in panels:
        if line and not _fits([*line, panel], terminal):
            yield from _side_by_side(line, terminal)
            yield ""
            line = []
        line.append(panel)
    if line:
        yield from _side_by_side(line, terminal)


def _fits(panels: Sequence[Panel], terminal: Terminal) -> bool:
    first = panels[0]
    if any(panel.rows != first.rows or len(panel.values) != len(first.values) for panel in panels):
        return False
    widths = [_width(panel, cells_of(panel), panel.values.shape[1]) for panel in panels]
    used = _label_width(first, terminal) + sum(widths) + APART * (len(panels) - 1)
    return used <= terminal.width


def _side_by_side(panels: Sequence[Panel], terminal: Terminal) -> Iterator[str]:
    """Names above, then names of columns, then rows, and a remark where something is left out."""
    rows = _picked(len(panels[0].values), MOST_ROWS, FIRST_ROWS, LAST_ROWS)
    label = _label_width(panels[0], terminal)
    room = terminal.width - label
    parts = [_lines(panel, rows, room if len(panels) == 1 else None, terminal) for panel in panels]
    names = panels[0].rows
    left = ["", ""]
    for row in rows:
        text = "" if names is None else terminal.gap if row is None else names[row]
        left.append(terminal.fit(text, label - APART) + " " * APART if label else "")
    for n, start in enumerate(left):
        line = (start or " " * label) + (" " * APART).join(part[n] for part in parts)
        if line.strip():
            yield line.rstrip()
    for panel in panels:
        yield from _remark(panel, rows, room if len(panels) == 1 else None, terminal)


def _label_width(panel: Panel, terminal: Terminal) -> int:
    if not panel.rows:
        return 0
    ends = [*panel.rows[:MOST_ROWS], *panel.rows[-LAST_ROWS:]]
    longest = max(columns_of(name) for name in ends)
    return min(max(longest, len(terminal.gap)), LABEL) + APART


def _lines(
    panel: Panel, rows: Sequence[int | None], room: int | None, terminal: Terminal
) -> list[str]:
    """Name, names of the columns, rows: each as wide as the panel."""
    cells = cells_of(panel)
    columns = _columns(panel, cells, room)
    width = _width(panel, cells, len(columns))
    rest = " " * (width - cells.width * len(columns))
    heading = ""
    if panel.columns is not None and cells.width > 2:
        shown = [terminal.gap if j is None else panel.columns[j] for j in columns]
        heading = "".join(_right(name, cells.width, terminal) for name in shown)
    return [
        f" {terminal.strong(panel.name)}" + " " * (width - 1 - len(panel.name)),
        terminal.faint(heading) + " " * (width - columns_of(heading)),
        *("".join(_cell(panel, i, j, cells, terminal) for j in columns) + rest for i in rows),
    ]


def _width(panel: Panel, cells: Cells, columns: int) -> int:
    """Columns of the terminal that a panel takes: its cells, or its name if that is longer."""
    return max(cells.width * columns, len(panel.name) + 1)


def _cell(panel: Panel, i: int | None, j: int | None, cells: Cells, terminal: Terminal) -> str:
    if i is None or j is None:
        return terminal.faint(terminal.gap.rjust(cells.width)[-cells.width :])
    if panel.hidden is not None and panel.hidden[i, j]:
        return terminal.faint(terminal.hidden.rjust(cells.width))
    if panel.values.dtype == np.bool_:
        return terminal.seen.rjust(cells.width)
    return cells.text(float(panel.values[i, j])).rjust(cells.width)


def _right(name: str, width: int, terminal: Terminal) -> str:
    """A name that ends at the right of its column, after a blank."""
    text = terminal.fit(name, width - 1).rstrip()
    return " " * (width - columns_of(text)) + text


def _picked(count: int, most: int, first: int, last: int) -> list[int | None]:
    """Numbers of rows or columns to show; None stands for those between."""
    if count <= most:
        return list(range(count))
    return [*range(first), None, *range(count - last, count)]


def _columns(panel: Panel, cells: Cells, room: int | None) -> list[int | None]:
    count = panel.values.shape[1]
    if room is None or cells.width * count <= room:
        return list(range(count))
    most = max(room // cells.width, 2)
    last = min(2, max(most - 2, 0))
    return _picked(count, most, most - last - 1, last)


def _remark(
    panel: Panel, rows: Sequence[int | None], room: int | None, terminal: Terminal
) -> list[str]:
    """What a table that is cut leaves out: how many numbers there are, and between which bounds."""
    shape = " x ".join(f"{size:,}" for size in panel.values.shape)
    if not panel.values.size:
        return terminal.wrap(f"{panel.name}: {shape} cells.")
    if None not in rows and None not in _columns(panel, cells_of(panel), room):
        return []
    if panel.values.dtype == np.bool_:
        return terminal.wrap(
            f"{panel.name}: {shape} cells, {panel.values.mean():.1%} of them seen."
        )
    shown = panel.values if panel.hidden is None else panel.values[~panel.hidden]
    shown = shown[np.isfinite(shown)]
    if not shown.size:
        return terminal.wrap(f"{panel.name}: {shape} cells without a finite number.")
    write = cells_of(panel).text
    with np.errstate(over="ignore"):  # of a sum of float64's largest numbers
        low, mean, high = (write(float(x)) for x in (shown.min(), shown.mean(), shown.max()))
    seen = "" if panel.hidden is None else " seen"
    return terminal.wrap(
        f"{panel.name}: {shape} cells; the{seen} numbers lie between {low} and {high}, "
        f"on average {mean}."
    )


def cells_of(panel: Panel) -> Cells:
    """Two digits after the point where the numbers allow it, else three significant ones."""
    values = panel.values
    if values.dtype == np.bool_:
        return Cells(2, str)
    with np.errstate(invalid="ignore"):
        finite = np.abs(values[np.isfinite(values)].astype(np.float64))
    largest = float(finite.max(initial=0.0))
    if largest >= 9999.5 or 0.0 < largest < 0.05:
        smallest = float(finite.min(where=finite > 0, initial=1.0))
        width = 11 if largest >= 1e99 or smallest < 1e-98 else 10  # an exponent of three digits
        return Cells(width, lambda value: f"{value:.2e}")
    width = 6 + (largest >= 9.995) + (largest >= 99.995) + (largest >= 999.995)
    return Cells(width, lambda value: f"{value:.2f}")
