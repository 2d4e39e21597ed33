"""Draw a result file of grid.py: python bench/plot.py A.json A.png (needs matplotlib)."""

from __future__ import annotations

import argparse
import importlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from figures import Data, peak_of, rivals_of, row_of, timed
from rivals import CONTESTANTS
from rows import DTYPES
from store import load_or_exit

COLOURS = {
    "vllm": "tab:red",
    "zentorch": "tab:orange",
    "torch": "tab:green",
    "torch-flex": "tab:olive",
    "ort-mha": "tab:purple",
    "ort-gqa": "tab:pink",
    "ort-attention": "tab:brown",
    "openvino": "tab:cyan",
    "jax": "black",
    "numpy": "tab:gray",
}


def rates(data: Data, dtype: str) -> tuple[list[str], dict[str, list[float]], list[float]]:
    """Of the (B, H, T, D) rows: names, GFLOP/s per contestant (NaN where none), and the peaks."""
    records = [
        record
        for record in data["rows"].values()
        if record["row"]["kind"] == "attention"
        and "headway" in timed(record)
        and record["row"]["dtype"] == dtype
        and record["row"]["layout"] == "BHTD"
        and record["row"]["name"] != "tiny"
    ]
    names = [row_of(record).name for record in records]
    who = [c for c in CONTESTANTS if any(c == "headway" or c in rivals_of(r) for r in records)]
    found = {
        name: [float(timed(r).get(name, {"gflops": math.nan})["gflops"]) for r in records]
        for name in who
    }
    peaks = [peak_of(data, row_of(r), timed(r)["headway"]["threads"]) or math.nan for r in records]
    return names, found, peaks


def panel(axes: Any, data: Data, dtype: str) -> bool:
    """A group of dots per row: headway's large, the rivals' small; False where there is none."""
    names, found, peaks = rates(data, dtype)
    if not names:
        return False
    places = range(len(names))
    axes.plot(places, peaks, color="black", linestyle="--", linewidth=1, label="multiply-add peak")
    for who, values in found.items():
        own = {"marker": "o", "markersize": 8, "zorder": 3, "color": "tab:blue"}
        style = own if who == "headway" else {"marker": "x", "markersize": 6, "color": COLOURS[who]}
        axes.plot(places, values, linestyle="", label=CONTESTANTS[who].title, **style)
    axes.set_xticks(places, names, rotation=40, ha="right")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("GFLOP/s, best call")
    axes.set_title(dtype)
    axes.grid(axis="y", alpha=0.3)
    return True


def draw(data: Data, target: Path) -> None:
    """Write a panel per dtype to `target`."""
    try:
        matplotlib: Any = importlib.import_module("matplotlib")
    except ImportError:
        raise SystemExit("plot: matplotlib is missing; pip install 'headway[plot]'") from None
    matplotlib.use("Agg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    present = [dtype for dtype in DTYPES if rates(data, dtype)[0]]
    if not present:
        raise SystemExit("plot: the file holds no attention rows of headway in (B, H, T, D)")
    size = (10, 1 + 3.6 * len(present))
    figure, axes = pyplot.subplots(len(present), figsize=size, layout="constrained", squeeze=False)
    for each, dtype in zip(axes[:, 0], present, strict=True):
        panel(each, data, dtype)
    labels: dict[str, Any] = {}
    for each in axes[:, 0]:
        handles, texts = each.get_legend_handles_labels()
        labels |= dict(zip(texts, handles, strict=True))
    figure.legend(list(labels.values()), list(labels), loc="outside right upper")
    try:
        figure.savefig(target, format="png", dpi=110)
    except OSError as error:
        raise SystemExit(f"plot: {target}: {error.strerror}") from None
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, metavar="A.json")
    parser.add_argument("picture", type=Path, metavar="A.png")
    args = parser.parse_args(arguments)
    draw(load_or_exit(args.results, "plot"), args.picture)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
