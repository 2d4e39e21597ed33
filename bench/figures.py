"""What a result file says: peaks, shares of them, and how far headway is ahead of whom."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from rivals import CONTESTANTS
from row import MODULE_KINDS, Row

Data = dict[str, Any]
Record = dict[str, Any]


def row_of(record: Record) -> Row:
    return Row.from_json(record["row"])


def timed(record: Record) -> dict[str, Data]:
    """Contestant -> entry, of those that were timed."""
    return {who: entry for who, entry in record["entries"].items() if "wall_min" in entry}


def rivals_of(record: Record) -> dict[str, Data]:
    return {who: e for who, e in timed(record).items() if CONTESTANTS[who].rival}


def best_rival(record: Record, statistic: str = "wall_min") -> str | None:
    """The quickest rival of a row; None where there was none."""
    found = rivals_of(record)
    return min(found, key=lambda who: float(found[who][statistic])) if found else None


def lead(record: Record, rival: str, own: str = "headway", statistic: str = "wall_min") -> float:
    """How many times as fast as the rival headway is."""
    entries = record["entries"]
    return float(entries[rival][statistic] / entries[own][statistic])


def option_cost(record: Record) -> float:
    """Time per allowed pair, relative to the plain call that was timed beside it."""
    entries = record["entries"]
    return float(entries["headway-plain"]["gflops"] / entries["headway"]["gflops"])


def run_peaks(data: Data) -> dict[str, float]:
    """ "isa/threads/kind" -> the best GFLOP/s measured beside any row."""
    found: dict[str, float] = {}
    for record in data["rows"].values():
        for name, value in record["peaks"].items():
            found[name] = max(found.get(name, 0.0), value)
    return found


def peak_of(data: Data, row: Row, threads: int) -> float | None:
    """The peak that a row's rate is a share of; bfloat16 has its own where the ISA has one."""
    peaks = run_peaks(data)
    prefix = f"{row.isa or data['head']['isa']}/{threads}"
    kinds = {"float64": ["float64"], "bfloat16": ["bfloat16", "float32"]}
    for kind in kinds.get(row.dtype, ["float32"]):
        if f"{prefix}/{kind}" in peaks:
            return peaks[f"{prefix}/{kind}"]
    return None


OF_PEAK = 0.7
"""The share of the peak that the bound of a decode row takes for granted."""


def bounds_of(data: Data, record: Record) -> dict[str, float]:
    """ "memory", "FLOPs" -> seconds that a decode row takes at least: its bytes at the rate of the
    plain read beside it, its work at `OF_PEAK` of the peak; empty without a plain read."""
    read, peak = timed(record).get("read"), None
    if read is not None:
        peak = peak_of(data, row_of(record), read["threads"])
    if read is None or peak is None:
        return {}
    return {
        "memory": float(read["wall_min"]),
        "FLOPs": float(record["flops"] / (OF_PEAK * peak * 1e9)),
    }


def bound_share(
    data: Data, record: Record, entry: Data, statistic: str = "wall_min"
) -> float | None:
    """The larger bound of a decode row over a contestant's time."""
    bounds = bounds_of(data, record)
    return max(bounds.values()) / float(entry[statistic]) if bounds else None


def share(data: Data, record: Record, entry: Data) -> float | None:
    """Share of the peak, by the best wall time; of its bound in a decode row."""
    if row_of(record).kind == "decode":
        return bound_share(data, record, entry)
    peak = peak_of(data, row_of(record), entry["threads"])
    return None if peak is None else float(entry["gflops"] / peak)


def cpu_share(data: Data, record: Record, entry: Data) -> float | None:
    """The same by the CPU time of the best burst, where there is one thread."""
    peak = peak_of(data, row_of(record), 1)
    if peak is None or entry["threads"] != 1 or not entry["cpu_min"]:
        return None
    return float(record["flops"] / entry["cpu_min"] / 1e9 / peak)


def best_share(data: Data, record: Record, entry: Data) -> float | None:
    """The larger of both: a share that another process spoilt is no share."""
    both = (share(data, record, entry), cpu_share(data, record, entry))
    return max((each for each in both if each is not None), default=None)


def geometric_mean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    value = seconds * 1e3
    digits = next((d for limit, d in ((100, 0), (10, 1), (1, 2), (0.1, 3)) if value >= limit), 4)
    return f"{value:.{digits}f}"


def per_cent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def shape_text(row: Row) -> str:
    """The sizes of a row as the tables show them."""
    if row.kind == "projection":
        return f"({row.num_queries}, {row.d_in}, {row.d_out}), {'cold' if row.cold else 'warm'}"
    if row.kind in MODULE_KINDS:
        return f"B {row.batch}, T {row.num_keys}, {row.num_heads} heads of {row.head_dim}"
    if row.kind == "packed":
        return f"({sum(row.lengths)}, {row.num_heads}, {row.head_dim})"
    heads = f"{row.batch}, {row.num_heads}, {row.num_kv_heads}"
    tokens = str(row.num_keys)
    if row.num_queries != row.num_keys:
        tokens = f"{row.num_queries} over {tokens}"
    return f"({heads}, {tokens}, {row.head_dim})"


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Side by side: the first one flush left, the others flush right."""
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    lines = []
    for row in rows:
        first, *rest = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join([first.strip().ljust(widths[0]), *rest]).rstrip())
    return "\n".join(lines)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> list[str]:
    """The lines of a table whose first `left` columns are flush left."""
    lines = [head, ["---"] * left + ["--:"] * (len(head) - left), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]
