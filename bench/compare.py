"""Read result files of grid.py: python bench/compare.py A.json [B.json].

The exit code is the verdict.

One file: a table. ``--ahead FACTOR`` fails (exit code 1) where headway is not that many times as
fast as every rival of a row, ``--ahead-of torch:1.4 numpy`` asks that of single rivals, and
``--claims`` asks for everything in claims.py (``--set NAME=VALUE`` changes one of its numbers).
Two files, old and new: fails where headway's share of the peak in the new one is less than the old
one's by more than ``--threshold``; of times, where no share is known. Times of two runs on a
shared machine say little; the shares were measured beside each run's own peak.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import claims
from figures import (
    Data,
    Record,
    columns,
    lead,
    milliseconds,
    per_cent,
    rivals_of,
    share,
    timed,
)
from rivals import CONTESTANTS
from store import load_or_exit


def only(data: Data, patterns: Sequence[str] | None) -> Data:
    """The same file with the rows that a pattern names; all where None."""
    if patterns is None:
        return data
    kept = {
        name: record
        for name, record in data["rows"].items()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    }
    if not kept:
        raise SystemExit(f"compare: --rows {' '.join(patterns)}: names no row of the file")
    return {**data, "rows": kept}


def table(data: Data, names: Collection[str] | None = None) -> str:
    """A line per row and contestant: times, rate, share of the peak, headway's lead."""
    lines = [("row", "who", "best ms", "median ms", "CPU ms", "calls", "GFLOP/s", "peak", "lead")]
    skipped = []
    for name, record in data["rows"].items():
        if names is not None and name not in names:
            continue
        for who, entry in record["entries"].items():
            if "skipped" in entry:
                skipped.append(f"{name}: {who}: {entry['skipped']}")
                continue
            own = "headway" in timed(record) and who != "headway"
            times = (entry[key] for key in ("wall_min", "wall_median", "cpu_median"))
            lines.append(
                (
                    name,
                    who,
                    *map(milliseconds, times),
                    str(entry["calls"]),
                    f"{entry['gflops']:.1f}",
                    per_cent(share(data, record, entry)),
                    f"{lead(record, who):.2f}x" if own else "",
                )
            )
    return "\n".join([columns(lines), *(["", "not timed:", *skipped] if skipped else [])])


def behind(name: str, record: Record, rivals: Sequence[str], factor: float, by: str) -> list[str]:
    """A line for each of these rivals that headway is not `factor` times as fast as."""
    lines = []
    for rival in rivals:
        found = lead(record, rival, statistic=by)
        if found < factor:
            lines.append(f"{name}: {found:.2f} times as fast as {rival}, wanted {factor:g}")
    return lines


def rivals_ahead(data: Data, rival: str | None, factor: float, by: str) -> list[str]:
    """The rows in which `rival`, or any, is too close; a line, too, where there is none at all."""
    lines, compared = [], 0
    for name, record in data["rows"].items():
        found = [who for who in rivals_of(record) if rival in (None, who)]
        if "headway" in timed(record) and found:
            compared += 1
            lines += behind(name, record, found, factor, by)
    return lines if compared else [f"{rival or 'rivals'}: nothing to compare with in this file"]


def slowdowns(old: Data, new: Data, threshold: float, by: str) -> tuple[str, list[str]]:
    """Table of headway in both files, and a line for each row that is slower than allowed."""
    table_lines: list[tuple[str, ...]] = [
        ("row", "who", "old ms", "new ms", "old peak", "new peak", "new/old", "by")
    ]
    lines = []
    for name, record in new["rows"].items():
        before = old["rows"].get(name)
        for who, entry in timed(record).items():
            if before is None or who not in timed(before) or CONTESTANTS[who].family != "headway":
                continue
            earlier = timed(before)[who]
            shares = share(old, before, earlier), share(new, record, entry)
            slower, judged = entry[by] / earlier[by], "time"
            if shares[0] is not None and shares[1] is not None:
                slower, judged = shares[0] / shares[1], "peak"
            times = (milliseconds(each[by]) for each in (earlier, entry))
            texts = (per_cent(each) for each in shares)
            table_lines.append((name, who, *times, *texts, f"{slower:.2f}", judged))
            if slower > threshold:
                lines.append(f"{name}, {who}: {slower:.2f} times slower ({judged})")
    if len(table_lines) == 1:
        lines.append("the two files have no row of headway in common")
    return columns(table_lines), lines


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path, metavar="A.json")
    parser.add_argument("new", type=Path, metavar="B.json", nargs="?")
    parser.add_argument("--ahead", type=float, nargs="?", const=1.0, metavar="FACTOR")
    parser.add_argument("--ahead-of", nargs="+", default=[], metavar="RIVAL[:FACTOR]")
    parser.add_argument("--claims", action="store_true", help="judge all claims")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", dest="settings")
    parser.add_argument("--threshold", type=float, default=1.1, help="allowed new/old, default 1.1")
    parser.add_argument("--median", action="store_true", help="judge by the median, not the best")
    parser.add_argument("--rows", nargs="+", metavar="GLOB", help="judge and show only these")
    return parser.parse_args(arguments)


def factor_of(text: str, option: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise SystemExit(f"compare: {option}: expected a number, got {text!r}") from None


def settings_of(texts: Sequence[str]) -> dict[str, float]:
    """The claims' numbers, with those changed that are given; SystemExit at a stranger."""
    values = dict(claims.DEFAULTS)
    for text in texts:
        name, _, value = text.partition("=")
        if name not in values:
            known = ", ".join(f"{key}={value:g}" for key, value in values.items())
            raise SystemExit(f"compare: --set {name}: unknown; known: {known}")
        values[name] = factor_of(value, f"--set {name}")
    return values


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse(arguments)
    by = "wall_median" if args.median else "wall_min"
    old = only(load_or_exit(args.old, "compare"), args.rows)
    newest = old
    failures: list[str] = []
    if args.new is not None:
        newest = only(load_or_exit(args.new, "compare"), args.rows)
        text, failures = slowdowns(old, newest, args.threshold, by)
        print(text)
    elif not args.claims:
        print(table(old))
    if args.ahead is not None:
        failures += rivals_ahead(newest, None, args.ahead, by)
    for wanted in args.ahead_of:
        rival, _, factor = wanted.partition(":")
        if rival not in CONTESTANTS:
            raise SystemExit(
                f"compare: --ahead-of {rival}: unknown; known: {', '.join(CONTESTANTS)}"
            )
        failures += rivals_ahead(newest, rival, factor_of(factor or "1", "--ahead-of"), by)
    if args.claims:
        verdicts = claims.judge(newest, settings_of(args.settings))
        print("\n".join(verdict.line for verdict in verdicts if verdict.found))
        print("not measured:", "; ".join(v.title for v in verdicts if not v.found) or "nothing")
        failures += [verdict.title for verdict in verdicts if verdict.failed]
        if not any(verdict.found for verdict in verdicts):
            failures.append("the file has no row that a claim is about")
    for line in failures:
        print(f"FAIL {line}")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
