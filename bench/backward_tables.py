"""The part of RESULTS.md about the backward pass and training."""

from __future__ import annotations

from pathlib import Path

import backward_claims
import sections
from backward_claims import MODULE_RIVAL, RIVAL, cpu_share
from claims import DEFAULTS
from figures import (
    Data,
    Record,
    lead,
    markdown,
    milliseconds,
    option_cost,
    per_cent,
    row_of,
    shape_text,
    share,
    timed,
)
from option_tables import ran_on
from options import TITLES
from rivals import CONTESTANTS
from row import GRADIENT_KINDS

BEGIN, END = sections.comments("backward")
EXPLAINED = (
    "Causal; shapes are (B, H, Hkv, T, D). *Work*: 3.5 times that of the forward pass over the",
    "unmasked pairs for forward and backward, 2.5 times for the backward pass alone. *Of peak*:",
    "of the multiply-add peak of as many threads measured beside the rows, by the best call; *by",
    "CPU*: by the CPU time of the best turn. *Ahead*: how many times as fast as PyTorch headway",
    "is, by the best calls (by the medians). PyTorch: `scaled_dot_product_attention` and",
    "`autograd.grad`.",
)
Pair = tuple[Record, str, str]
"""A row, a contestant of headway's and PyTorch's with as many threads."""


def measured(data: Data) -> bool:
    """Does the file hold any row with gradients?"""
    return bool(found_rows(data))


def found_rows(data: Data) -> list[Record]:
    return [r for r in data["rows"].values() if row_of(r).kind in GRADIENT_KINDS]


def pairs_of(data: Data, part: str) -> list[Pair]:
    """Causal rows of a part, without options, once for every number of threads."""
    found: list[Pair] = []
    for record in found_rows(data):
        row = row_of(record)
        if row.kind == "backward" and row.part == part and row.option == "plain":
            for who in ("headway", "headway@1"):
                if who in timed(record):
                    found.append((record, who, RIVAL + who.removeprefix("headway")))
    return found


def time_text(entry: Data) -> str:
    """Milliseconds of the best call (of the median)."""
    return f"{milliseconds(entry['wall_min'])} ({milliseconds(entry['wall_median'])})"


def ahead_text(record: Record, rival: str, own: str) -> str:
    """How many times as fast as the rival headway is; bold where it is behind."""
    best, usual = (lead(record, rival, own, by) for by in ("wall_min", "wall_median"))
    text = f"{best:.2f} ({usual:.2f})"
    return text if best >= 1 else f"**{text}**"


def beside(record: Record, rival: str, own: str) -> list[str]:
    """The rival's time and rate, and headway's lead over it."""
    if rival not in timed(record):
        return ["-", "-", "-"]
    entry = timed(record)[rival]
    return [time_text(entry), f"{entry['gflops']:.0f}", ahead_text(record, rival, own)]


BESIDE = ["PyTorch ms (median)", "GFLOP/s", "ahead (median)"]
OWN = ["headway ms (median)", "GFLOP/s", "of peak", "by CPU"]


def own_cells(data: Data, record: Record, own: str) -> list[str]:
    """headway's time, its rate, and its share of the peak by both clocks."""
    entry = timed(record)[own]
    cells = [time_text(entry), f"{entry['gflops']:.0f}", per_cent(share(data, record, entry))]
    return [*cells, per_cent(cpu_share(data, record, entry))]


def passes(data: Data, part: str) -> list[str]:
    """A line for each shape, dtype and number of threads."""
    body = []
    for record, own, rival in pairs_of(data, part):
        row = row_of(record)
        cells = [shape_text(row), row.dtype, str(timed(record)[own]["threads"])]
        body.append([*cells, *own_cells(data, record, own), *beside(record, rival, own)])
    return markdown(["shape", "dtype", "threads", *OWN, *BESIDE], body, 3)


def options(data: Data) -> list[str]:
    """Each option beside the plain call that took its turns with it."""
    body = []
    for record in found_rows(data):
        row, entries = row_of(record), timed(record)
        if row.option == "plain" or not {"headway", "headway-plain"} <= set(entries):
            continue
        own, plain = entries["headway"], entries["headway-plain"]
        cells = [TITLES[row.option], f"{record['flops'] / row.plain_flops:.3f}", time_text(own)]
        cells += [milliseconds(plain["wall_min"]), f"{own['wall_min'] / plain['wall_min']:.3f}"]
        cells += [f"{option_cost(record):.2f}"]
        body.append([*cells, *beside(record, RIVAL, "headway")])
    head = ["option", "pairs", "headway ms (median)", "plain ms", "time / plain", "per pair"]
    return markdown([*head, *BESIDE], body, 1) if body else []


def memory(data: Data) -> list[str]:
    """Of the long rows: with their tokens, and with a quarter of them."""
    body = []
    for record in found_rows(data):
        row, entry = row_of(record), timed(record).get("headway", {})
        if "extra" in entry:
            both = [f"{entry[name] / 2**20:.2f}" for name in ("extra-quarter", "extra")]
            body.append([shape_text(row), row.dtype, *both, f"{row.score_bytes / 2**20:.0f}"])
    head = ["shape", "dtype", "MiB at T / 4", "MiB at T", "one stored array of scores, MiB"]
    return markdown(head, body, 2) if body else []


def training(data: Data) -> list[str]:
    """A step of the module, and one that assigns its weights first."""
    body = []
    for record in found_rows(data):
        row, entries = row_of(record), timed(record)
        if row.kind != "train" or "headway" not in entries:
            continue
        assign = entries.get("headway-assign")
        cells = [shape_text(row), row.dtype, *own_cells(data, record, "headway")]
        cells += [time_text(assign) if assign else "-"]
        body.append([*cells, *beside(record, MODULE_RIVAL, "headway")])
    head = ["module", "dtype", *OWN, "weights assigned, too, ms (median)", *BESIDE]
    return markdown(head, body, 2) if body else []


def reasons(data: Data) -> list[str]:
    """Who was not timed, why, and where."""
    return [
        f"* {CONTESTANTS[who].title}: {entry['skipped']} ({row_of(record).id})"
        for record in found_rows(data)
        for who, entry in record["entries"].items()
        if "skipped" in entry
    ]


def backward_lines(data: Data) -> list[str]:
    """The section's text, between its two comments."""
    lines = [BEGIN, ran_on(data, found_rows(data), ("headway", "torch")), "", *EXPLAINED, ""]
    parts = (
        ("Forward and backward", passes(data, "both") if pairs_of(data, "both") else []),
        ("Backward alone", passes(data, "backward") if pairs_of(data, "backward") else []),
        ("Options, forward and backward, float32", options(data)),
        ("Memory of a backward pass beyond inputs and gradients", memory(data)),
        ("A training step of MultiHeadAttention", training(data)),
    )
    for title, body in parts:
        lines += [f"### {title}", "", *body, ""] if body else []
    why = reasons(data)
    lines += [*why, ""] if why else []
    verdicts = backward_claims.judge(data, DEFAULTS)
    return [*lines, "```text", *(verdict.line for verdict in verdicts), "```", END]


def rewrite(path: Path, data: Data) -> None:
    """Put this file's section into the page, and leave the rest of it as it is."""
    if not measured(data):
        raise SystemExit("results: --backward: the file holds no row of the backward pass")
    sections.rewrite(path, "backward", backward_lines(data))
