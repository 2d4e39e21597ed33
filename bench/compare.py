"""Read result files: python bench/compare.py A.json [B.json]; the exit code is the verdict.

One file: headway beside its rivals; ``--ahead-of torch`` or ``--ahead-of numpy:8`` fails (exit
code 1) where headway is not that many times faster (1 unless told). Two files, old and new: fails
where headway's time in the new one is more than ``--threshold`` times the old one's. Times of two
runs on a shared machine say little, so where both files know a share of the peak, which each
measured beside its own times, the shares are compared.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Key = tuple[str, int]
Data = dict[str, Any]


def load(path: Path) -> Data:
    """A result file; SystemExit with one clear line where it is none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SystemExit(f"compare: {path}: {error}") from None
    if not isinstance(data, dict) or data.get("schema") != 1:
        raise SystemExit(f"compare: {path}: not a result file of bench.py, schema 1")
    return data


def only(data: Data, cases: Sequence[str] | None) -> Data:
    """The same file with the results of these cases alone; all where None."""
    kept = [entry for entry in data["results"] if cases is None or entry["case"] in cases]
    return {**data, "results": kept}


def by_case(data: Data) -> dict[Key, dict[str, Data]]:
    """(case, threads) -> contestant -> entry."""
    found: dict[Key, dict[str, Data]] = {}
    for entry in data["results"]:
        found.setdefault((entry["case"], entry["threads"]), {})[entry["contestant"]] = entry
    return found


def layout(rows: Sequence[Sequence[str]]) -> str:
    """Columns side by side: the first one flush left, the others flush right."""
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    lines = []
    for row in rows:
        first, *rest = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join([first.strip().ljust(widths[0]), *rest]))
    return "\n".join(lines)


def table(data: Data) -> str:
    """A row per case and contestant: wall and CPU time, rate, share of the peak, headway's lead."""
    rows = [("case", "threads", "who", "best ms", "median ms", "CPU ms", "GFLOP/s", "peak", "lead")]
    for (case, threads), entries in by_case(data).items():
        own = entries.get("headway")
        for who, entry in entries.items():
            share = entry["fraction_of_peak"]
            lead = "" if own is None or who == "headway" else ratio(own, entry, "wall_min")
            rows.append(
                (
                    case,
                    str(threads),
                    who,
                    f"{entry['wall_min'] * 1e3:.3f}",
                    f"{entry['wall_median'] * 1e3:.3f}",
                    f"{entry['cpu_median'] * 1e3:.3f}",
                    f"{entry['gflops_best']:.1f}",
                    "" if share is None else f"{share:.0%}",
                    lead,
                )
            )
    return layout(rows)


def ratio(own: Data, other: Data, statistic: str) -> str:
    return f"{other[statistic] / own[statistic]:.2f}x"


def rivals_ahead(data: Data, rival: str, factor: float, statistic: str) -> list[str]:
    """A line for each case in which headway is not `factor` times as fast as `rival`."""
    lines, compared = [], 0
    for (case, threads), entries in by_case(data).items():
        if rival in entries and "headway" in entries:
            compared += 1
            lead = entries[rival][statistic] / entries["headway"][statistic]
            if lead < factor:
                found = f"{lead:.2f} times as fast as {rival}, wanted {factor:g}"
                lines.append(f"{case}, {threads} threads: {found}")
    return lines if compared else [f"{rival}: nothing to compare with in this file"]


def slowdowns(old: Data, new: Data, threshold: float, statistic: str) -> tuple[str, list[str]]:
    """Table of headway in both files, and a line for each case that is slower than allowed."""
    rows: list[tuple[str, ...]] = [
        ("case", "threads", "old ms", "new ms", "old peak", "new peak", "new/old", "by")
    ]
    lines = []
    cases_old, cases_new = by_case(old), by_case(new)
    for key, entries in cases_new.items():
        a, b = cases_old.get(key, {}).get("headway"), entries.get("headway")
        if a is None or b is None:
            continue
        shares = (a["fraction_of_peak"], b["fraction_of_peak"])
        known = None not in shares
        slower = shares[0] / shares[1] if known else b[statistic] / a[statistic]
        times = [f"{entry[statistic] * 1e3:.3f}" for entry in (a, b)]
        texts = [f"{share:.0%}" for share in shares] if known else ["", ""]
        judged = "peak" if known else "time"
        rows.append((key[0], str(key[1]), *times, *texts, f"{slower:.2f}", judged))
        if slower > threshold:
            lines.append(f"{key[0]}, {key[1]} threads: {slower:.2f} times slower ({judged})")
    if len(rows) == 1:
        lines.append("the two files have no case of headway in common")
    return layout(rows), lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path, metavar="A.json")
    parser.add_argument("new", type=Path, metavar="B.json", nargs="?")
    parser.add_argument("--ahead-of", nargs="+", default=[], metavar="RIVAL[:FACTOR]")
    parser.add_argument("--threshold", type=float, default=1.1, help="allowed new/old, default 1.1")
    parser.add_argument("--median", action="store_true", help="judge by the median, not the best")
    parser.add_argument("--cases", nargs="+", metavar="NAME", help="judge and show only these")
    args = parser.parse_args(arguments)
    statistic = "wall_median" if args.median else "wall_min"
    old = only(load(args.old), args.cases)
    newest = old
    failures: list[str] = []
    if args.new is not None:
        newest = only(load(args.new), args.cases)
        text, failures = slowdowns(old, newest, args.threshold, statistic)
        print(text)
    else:
        print(table(old))
    for wanted in args.ahead_of:
        rival, _, factor = wanted.partition(":")
        failures += rivals_ahead(newest, rival, float(factor or 1), statistic)
    for line in failures:
        print(f"FAIL {line}")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
