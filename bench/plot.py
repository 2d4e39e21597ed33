"""Draw a result file of bench.py: python bench/plot.py A.json A.png (needs matplotlib)."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compare import by_case, load

COLOURS = {"headway": "tab:blue", "torch": "tab:orange", "numpy": "tab:gray"}


def on(threads: int) -> str:
    return f"{threads} thread{'s' * (threads != 1)}"


def rates(data: dict[str, Any]) -> tuple[list[str], dict[str, list[float]]]:
    """Labels of the cases, and per contestant its best GFLOP/s in each; NaN where it has none."""
    cases = by_case(data)
    counts = {threads for _, threads in cases}
    labels = [case if len(counts) == 1 else f"{case}, {on(threads)}" for case, threads in cases]
    present = {name for entries in cases.values() for name in entries}
    who = [name for name in COLOURS if name in present] + sorted(present - COLOURS.keys())
    missing = {"gflops_best": float("nan")}
    found = {
        name: [float(entries.get(name, missing)["gflops_best"]) for entries in cases.values()]
        for name in who
    }
    return labels, found


def draw(data: dict[str, Any], target: Path) -> None:
    """Write a bar per case and contestant, and a line per peak, to `target`."""
    try:
        matplotlib: Any = importlib.import_module("matplotlib")
    except ImportError:
        raise SystemExit("plot: matplotlib is missing; pip install 'headway[plot]'") from None
    matplotlib.use("Agg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")

    labels, found = rates(data)
    if not labels:
        raise SystemExit("plot: the file holds no results; run bench.py with some cases")
    figure, axes = pyplot.subplots(figsize=(8, 1.5 + 0.5 * len(labels)), layout="constrained")
    height = 0.8 / len(found)
    for n, (name, values) in enumerate(found.items()):
        places = [row - 0.4 + (n + 0.5) * height for row in range(len(labels))]
        axes.barh(places, values, height, label=name, color=COLOURS.get(name))
    for count, peak in data["peak_gflops"].items():
        axes.axvline(peak, color="black", linestyle="--", linewidth=1)
        text = f"peak, {on(int(count))}"
        axes.text(peak, 1, text, transform=axes.get_xaxis_transform(), va="bottom", ha="right")
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlabel("GFLOP/s, best of the rounds; the peak is that of float32")
    figure.legend(loc="outside right upper")
    try:
        figure.savefig(target, format="png", dpi=150)
    except OSError as error:
        raise SystemExit(f"plot: {target}: {error.strerror}") from None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, metavar="A.json")
    parser.add_argument("picture", type=Path, metavar="A.png")
    args = parser.parse_args(arguments)
    draw(load(args.results), args.picture)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
