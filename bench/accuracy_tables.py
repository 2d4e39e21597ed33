"""What the accuracy figures say: tables, and the claims that do not hold."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

Record = dict[str, Any]
MEAN_FACTOR, MAX_FACTOR = 1.1, 1.5
"""headway's mean and largest error are at most this many times those of the best rival."""

OWN = "headway "
RIVALS = ("PyTorch", "ORT MHA", "ORT GQA", "ORT Attention")
TITLES = {"ordinary": "ordinary", "1e4": "±1e4", "1e30": "±1e30", "equal keys": "equal keys"}


def best_rival(row: Record, measure: str) -> float | None:
    """The least error of a rival in this measure; None where none computes the row."""
    found = [e[measure] for who, e in row["errors"].items() if not who.startswith(OWN)]
    return min(found, default=None)


def failures(rows: list[Record]) -> list[str]:
    """One line for each row and ISA whose error is beyond the claimed factor of the best rival's.

    Where no rival computes a row with finite numbers, headway's have to be finite.
    """
    lines = []
    for row in rows:
        for who, errors in row["errors"].items():
            if not who.startswith(OWN):
                continue
            name = f"{row['dtype']}, {row['tokens']} keys, {TITLES[row['logits']]}: {who}"
            for kind, factor in (("mean", MEAN_FACTOR), ("max", MAX_FACTOR)):
                own, best = errors[f"{kind}_scale"], best_rival(row, f"{kind}_scale")
                bound = math.inf if best is None or not math.isfinite(best) else factor * best
                if not math.isfinite(own) or own > bound:
                    against = f", best rival {best:.2e}, factor {factor}" if best else ""
                    lines.append(f"{name}: {kind} error {own:.2e} of the scale{against}")
        lines += [
            f"{row['dtype']}, {row['tokens']} keys, {TITLES[row['logits']]}: {who}: {reason}"
            for who, reason in row["skipped"].items()
            if who.startswith(OWN)
        ]
    return lines


def merged(row: Record) -> dict[str, Record]:
    """The row's errors, headway's ISAs of the same figures under one name."""
    groups: dict[tuple[float, ...], list[str]] = {}
    for who, errors in row["errors"].items():
        if who.startswith(OWN):
            key = tuple(float(f"{value:.2g}") for value in errors.values())
            groups.setdefault(key, []).append(who)
    found = {}
    for names in groups.values():
        short = ", ".join(name.removeprefix(OWN) for name in names)
        found[f"{OWN}{short}"] = row["errors"][names[0]]
    return found | {who: row["errors"][who] for who in RIVALS if who in row["errors"]}


def lines_of(row: Record) -> Iterator[list[str]]:
    """Cells of the row's lines: logits, keys, who; mean and max by the scale, then in ulp."""
    for who, errors in merged(row).items():
        numbers = [f"{errors[f'{kind}_scale']:.1e}" for kind in ("mean", "max")]
        numbers += [f"{errors[f'{kind}_ulp']:.3g}" for kind in ("mean", "max")]
        yield [TITLES[row["logits"]], f"{row['tokens']:,}", who, *numbers]


def tables(rows: list[Record], *, markdown: bool = False) -> str:
    """A table for each dtype."""
    head = ["logits", "keys", "who", "mean", "max", "mean, ulp", "max, ulp"]
    parts = []
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        body = [line for row in rows if row["dtype"] == dtype for line in lines_of(row)]
        widths = [max(len(line[n]) for line in [head, *body]) for n in range(len(head))]
        if markdown:
            rule = ["---", "--:", "---", *["--:"] * 4]
            found = [
                f"## {dtype}",
                "",
                *(f"| {' | '.join(line)} |" for line in (head, rule, *body)),
            ]
        else:
            found = [dtype]
            for line in (head, *body):
                found.append(
                    "  ".join(cell.ljust(widths[n]) for n, cell in enumerate(line)).rstrip()
                )
        parts.append("\n".join(found))
    return "\n\n".join(parts)
