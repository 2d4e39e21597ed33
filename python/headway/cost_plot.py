"""A cost as a picture; what needs matplotlib is here, imported inside of functions."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .cost_record import Cost
from .cost_table import sizes

BARS = {"qkv": "Q, K, V", "scores": "scores", "context": "Z", "output": "output"}
LINES = {
    "num_parameters": ("weights", "#0072b2", "-", "o"),
    "multiply_adds": ("multiply-adds", "#d55e00", "-", "s"),
    "activation_bytes": ("activations", "#009e73", "--", "^"),
    "kv_cache_bytes": ("KV cache", "#cc79a7", ":", "v"),
    "score_bytes": ("scores, never stored", "#777777", "-.", "x"),
}
"""Figure: its name, colour, line and mark; all but the last are told apart without colour, too."""
GROWTH = {
    "num_tokens": ("tokens", "{0.num_tokens:,}"),
    "width": ("width: d_in and head_dim", "{0.d_in:,}"),
    "num_heads": ("heads of the same head_dim", "{0.num_heads:,}"),
}
FACTORS = (1, 2, 4, 8, 16)


def draw(cost: Cost) -> Any:
    """The figure of :meth:`Cost.plot`."""
    figure = _matplotlib("figure").Figure(figsize=(12, 7), layout="constrained")
    figure.suptitle(sizes(cost), fontsize=11)
    axes = figure.subplots(2, 2)
    _draw_parts(axes[0, 0], cost)
    for place, name in zip((axes[0, 1], axes[1, 0], axes[1, 1]), GROWTH, strict=True):
        _draw_growth(place, cost, name)
    axes[0, 1].legend(fontsize=9, frameon=False)
    return figure


def _matplotlib(module: str) -> Any:
    try:
        return import_module(f"matplotlib.{module}")
    except ImportError:
        raise ImportError(
            "plots need the package matplotlib: pip install 'headway[plot]'"
        ) from None


def _draw_parts(axes: Any, cost: Cost) -> None:
    """A bar for each product: what is counted, and masked products hatched beyond it."""
    parts = cost.parts
    names = [BARS[name] for name in parts]
    seen = [float(part.multiply_adds) for part in parts.values()]  # of any size: no 64-bit ints
    masked = [float(part.dense_multiply_adds - part.multiply_adds) for part in parts.values()]
    axes.barh(names, seen, color="#d55e00", label="unmasked")
    axes.barh(
        names, masked, left=seen, color="white", edgecolor="#d55e00", hatch="///", label="masked"
    )
    axes.invert_yaxis()
    axes.set_title("Multiply-adds of each product", fontsize=10)
    axes.xaxis.set_major_formatter(_matplotlib("ticker").EngFormatter())
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=9, frameon=False)


def _draw_growth(axes: Any, cost: Cost, name: str) -> None:
    """Times as much as now, over times as many tokens, wide or heads; both scales logarithmic."""
    title, tick = GROWTH[name]
    larger = [cost.scaled(**{name: factor}) for factor in FACTORS]
    for figure, (label, colour, line, mark) in LINES.items():
        times = [getattr(each, figure) / getattr(cost, figure) for each in larger]
        axes.plot(FACTORS, times, color=colour, linestyle=line, marker=mark, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_ylim(0.7, 400)
    axes.set_xticks(FACTORS, [tick.format(each) for each in larger])
    powers = [4**n for n in range(5)]
    axes.set_yticks(powers, [f"x {n}" for n in powers])
    axes.minorticks_off()
    axes.set_title(f"Growth with {title}", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
