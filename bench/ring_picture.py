"""The picture of the documentation: kernel and messages of two ranks (needs matplotlib)."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

KERNEL, MESSAGE, LETTERS = "#4c8bc9", "#d98a2b", "#7f7f7f"


def draw(trace: dict[str, Any], path: Path) -> None:
    """Write the SVG: the best round of the forward pass, and of the backward pass."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "ring"})
    figure = Figure(figsize=(7.0, 3.6), layout="constrained")
    for axes, which in zip(figure.subplots(2, 1), ("forward", "backward"), strict=True):
        ranks = min(trace[which], key=_length)
        _lanes(axes, ranks)
        axes.set_title(f"{which} pass", fontsize=9, loc="left", color=LETTERS)
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    path.write_text(_for_a_page(text.getvalue()), encoding="utf-8")


def _length(ranks: list[dict[str, Any]]) -> float:
    began, ended = zip(*(rank["wall"] for rank in ranks), strict=True)
    return float(max(ended) - min(began))


def _lanes(axes: Any, ranks: list[dict[str, Any]]) -> None:
    zero = min(rank["steps"][0][0] for rank in ranks)
    names = []
    for n, rank in enumerate(ranks):
        for step, (started, computed, _) in enumerate(rank["steps"]):
            if computed - started < 1e-4:  # a step without a block
                continue
            left, width = (started - zero) * 1e3, (computed - started) * 1e3
            axes.barh(2 * n, width, left=left, height=0.7, color=KERNEL, alpha=0.6)
            middle = left + width / 2
            axes.text(
                middle, 2 * n, f"step {step}", fontsize=8, ha="center", va="center", color=LETTERS
            )
        for kind, began, ended, _ in rank["messages"]:
            left, width = (began - zero) * 1e3, (ended - began) * 1e3
            place = 2 * n + (0.82 if kind == "sent" else 1.18)
            axes.barh(place, width, left=left, height=0.32, color=MESSAGE, alpha=0.7)
        names += [f"rank {n}: kernel", "sent, received"]
    axes.set_yticks(range(len(names)), names, fontsize=8, color=LETTERS)
    axes.invert_yaxis()
    axes.set_xlabel("ms", fontsize=8, color=LETTERS)
    axes.tick_params(colors=LETTERS, labelsize=8)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(LETTERS)


def _for_a_page(svg: str) -> str:
    """The drawing as it can stand in a page: without declarations and without fixed sizes."""
    svg = svg[svg.index("<svg") :]
    for inner in ("metadata", "style"):  # a style would hold for the whole page
        svg = re.sub(rf"<{inner}\b.*?</{inner}>\s*", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    lines = [line.rstrip() for line in svg.splitlines() if line.strip()]
    return "\n".join(lines) + "\n"
