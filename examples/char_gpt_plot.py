"""The picture of a run: the loss of each step, and that of the validation."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from char_gpt_layers import Array
from char_gpt_run import write_atomically


def averages(losses: Sequence[float], count: int) -> tuple[Array, Array]:
    """Steps, and the mean of the `count` losses (or fewer, at the start) up to each of them."""
    sums = np.concatenate([[0.0], np.cumsum(losses)])
    ends = np.arange(1, len(losses) + 1)
    starts = np.maximum(0, ends - count)
    return ends, (sums[ends] - sums[starts]) / (ends - starts)


def draw(path: Path, losses: Sequence[float], validation: Sequence[tuple[int, float]]) -> None:
    """Write a PNG, in one piece or not at all."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(xlabel="step", ylabel="loss in nats per byte")
    axes.plot(range(1, len(losses) + 1), losses, color="#b8cbe0", linewidth=0.6, label="each step")
    window = max(1, len(losses) // 50)
    label = f"mean of {window} steps"
    axes.plot(*averages(losses, window), color="#1f4e79", label=label)
    steps, values = zip(*validation, strict=True)
    label = f"validation, {values[-1]:.3f} at the end"
    axes.plot(steps, values, "o-", color="#c0392b", markersize=4, label=label)
    axes.set_xlim(0, max(1, len(losses)))
    axes.grid(alpha=0.3)
    axes.legend()
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=150)
    write_atomically(path, picture.getvalue())
