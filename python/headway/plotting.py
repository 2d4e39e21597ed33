"""Traces in other packages' forms: figures of matplotlib, arguments of bertviz.

What needs another package is here, and imports it inside of functions.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .trace_pictures import Axis, Picture, picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

    from .trace_record import Trace

MOST_HEADS = 16  # heads with a picture of their weights
STRIP_HEADS = 4  # heads whose way is drawn
MOST_CELLS = 512  # cells along a side; more rows and columns are averaged
MOST_LABELS = 24  # labels along a side
LONGEST = 12  # letters of a label
ACROSS = 3  # pictures of weights side by side

STRIP = ("x", "Q", "K", "V", "scores", "mask", "weights", "Z")
"""What the way of one head leads through, from left to right."""


def plot_trace(trace: Trace, batch: int) -> Figure:
    """The figure of :meth:`headway.Trace.plot`, made by ``matplotlib.pyplot``."""
    pyplot = _matplotlib("pyplot")
    figure: Figure = pyplot.figure(figsize=figure_size(trace), layout="constrained")
    draw(trace, batch, figure)
    return figure


def save_picture(trace: Trace, batch: int, path: str) -> None:
    """Write the figure to a file, without ``pyplot`` and without a screen."""
    figure = _matplotlib("figure").Figure(figsize=figure_size(trace), layout="constrained")
    draw(trace, batch, figure)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # shown as a box
        figure.savefig(path, dpi=150, format="png")


def figure_size(trace: Trace) -> tuple[float, float]:
    """Inches."""
    strip = min(trace.num_heads, STRIP_HEADS) + 1
    rows = -(-_panels(trace) // ACROSS)
    return 12.0, 1.0 + 1.5 * strip + 4.0 * rows


def draw(trace: Trace, batch: int, figure: Figure) -> None:
    """The way of each head above, the weights of the heads and the mask below."""
    ways = min(trace.num_heads, STRIP_HEADS) + 1
    rows = -(-_panels(trace) // ACROSS)
    heights = [1.5 * ways, max(4.0 * rows, 0.1)]
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=heights).ravel()
    figure.suptitle(
        f"{trace.subject}\nlargest difference from the fused kernel: {trace.difference:.1e}",
        fontsize="medium",
        wrap=True,
    )
    _draw_ways(trace, batch, above, ways)
    if trace.num_heads:
        _draw_weights(trace, batch, below, rows)


def _panels(trace: Trace) -> int:
    """Pictures of weights, and one of the mask."""
    return min(trace.num_heads, MOST_HEADS) + 1 if trace.num_heads else 0


# The way ------------------------------------------------------------------------------------------


def _draw_ways(trace: Trace, batch: int, figure: SubFigure, ways: int) -> None:
    kinds = [kind for kind in STRIP if kind != "x" or "x" in trace]
    grid = figure.subplots(ways, len(kinds), squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for row, n in enumerate(range(1, ways)):
        names = ["x" if kind == "x" else f"{kind}_{n}" for kind in kinds]
        _draw_row(trace, batch, names, grid[row])
    contexts = [f"Z_{n}" for n in range(1, ways)]
    merged = [name for name in ("Z", "output") if name in trace]
    _draw_row(trace, batch, [*contexts, *merged], grid[-1], arrows_from=len(contexts) - 1)


def _draw_row(
    trace: Trace, batch: int, names: Sequence[str], row: Sequence[Axes], arrows_from: int = 0
) -> None:
    for place, (name, axes) in enumerate(zip(names, row, strict=False)):
        drawn = picture(trace, name, batch, 64)
        _show(axes, drawn)
        axes.set_title(f"{name}\n{drawn.step.shape}", fontsize="x-small")
        beside = name.startswith(("K_", "V_")) or (place <= arrows_from and arrows_from)
        if place and not beside:
            axes.annotate(
                "→", (-0.12, 0.5), xycoords="axes fraction", ha="right", va="center", fontsize=12
            )


# Weights ------------------------------------------------------------------------------------------


def _draw_weights(trace: Trace, batch: int, figure: SubFigure, rows: int) -> None:
    grid = figure.subplots(rows, ACROSS, squeeze=False)
    panels = grid.ravel().tolist()
    shown = min(trace.num_heads, MOST_HEADS)
    image: Any = None
    for n, axes in enumerate(panels[:shown], start=1):
        drawn = picture(trace, f"weights_{n}", batch, MOST_CELLS)
        image = _show(axes, drawn)
        _name_axes(axes, drawn)
        axes.set_title(f"weights of head {n}", fontsize="small")
    mask = picture(trace, "mask_1", batch, MOST_CELLS)
    _show(panels[shown], mask)
    _name_axes(panels[shown], mask)
    panels[shown].set_title("mask of head 1; hidden cells are hatched", fontsize="small")
    for axes in panels[shown + 1 :]:
        axes.set_axis_off()
    bar = figure.colorbar(image, ax=panels, shrink=0.6, pad=0.01)
    bar.set_label("weight", fontsize="small")


def _show(axes: Axes, drawn: Picture) -> Any:
    """The cells of a picture; hatching shows through where they are hidden."""
    from matplotlib.patches import Rectangle

    axes.set_axis_on()
    axes.set_xticks([])
    axes.set_yticks([])
    values = np.where(drawn.hidden, np.nan, drawn.values)
    rows, columns = values.shape
    if not values.size:
        axes.set_axis_off()
        return None
    weights = drawn.step.kind in ("weights", "mask")
    colors, top = ("Blues", 1.0) if weights else ("RdBu", drawn.largest or 1.0)
    if drawn.sink is not None:
        values = np.column_stack([values, np.full(rows, np.nan), drawn.sink])
    image = axes.imshow(
        values,
        cmap=colors,
        vmin=0.0 if weights else -top,
        vmax=top,
        interpolation="nearest",
        aspect="equal" if drawn.step.column_axis == "keys" else "auto",
    )
    if drawn.hidden.any():
        ground = Rectangle(
            (-0.5, -0.5), columns, rows, hatch="////", facecolor="none", edgecolor="0.7", lw=0
        )
        ground.set_zorder(-1)
        axes.add_patch(ground)
    return image


def _name_axes(axes: Axes, drawn: Picture) -> None:
    columns = _ticks(drawn.columns)
    places, names = [place for place, _ in columns], [name for _, name in columns]
    if drawn.sink is not None:
        places, names = [*places, len(drawn.columns.names) + 1], [*names, "sink"]
    axes.set_xticks(places, names, rotation=60, ha="right", fontsize="x-small")
    rows = _ticks(drawn.rows)
    axes.set_yticks([place for place, _ in rows], [name for _, name in rows], fontsize="x-small")
    axes.set_xlabel("keys", fontsize="small")
    axes.set_ylabel("queries", fontsize="small")


def _ticks(axis: Axis) -> list[tuple[int, str]]:
    """Places and names: all of them, or evenly chosen ones."""
    step = -(-len(axis.names) // MOST_LABELS)
    names = enumerate(axis.names)
    return [(n, _plain(name)) for n, name in names if n % max(step, 1) == 0]


def _plain(name: str) -> str:
    """A label that matplotlib takes for text, not for a formula."""
    short = name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"
    return short.replace("$", r"\$")


def _matplotlib(module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(f"matplotlib.{module}")
    except ImportError as error:
        raise ImportError(
            "plot: expected the package matplotlib, which is not installed; "
            "install it with pip install 'headway[plot]'"
        ) from error


# bertviz ------------------------------------------------------------------------------------------


def bertviz_arguments(trace: Trace, batch: int) -> tuple[tuple[Any, ...], list[str]]:
    """The result of :meth:`headway.Trace.to_bertviz`."""
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            "to_bertviz: expected the package torch, which is not installed; "
            "install it with pip install torch"
        ) from error
    queries, keys = trace.labels.queries[batch], trace.labels.keys[batch]
    if len(queries) != len(keys):
        raise ValueError(
            f"to_bertviz: expected as many queries as keys, got {len(queries)} and {len(keys)}; "
            "trace a call in which every token is a query"
        )
    heads = range(1, trace.num_heads + 1)
    weights = [trace[f"weights_{n}"].matrix(batch).astype(np.float32) for n in heads]
    stacked = np.stack(weights) if weights else np.empty((0, len(keys), len(keys)), np.float32)
    return (torch.from_numpy(stacked[None]),), keys
