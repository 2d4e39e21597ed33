"""Write RESULTS.md, its picture and README's table: python bench/results.py A.json [--readme].

Everything in RESULTS.md comes from the result file but what stands between two comments, which is
written by hand and kept; so are the notes below the sections about decoding and the backward pass.
The sections about options, decoding and the backward pass are kept, too,
where the file has no such row; ``--options``, ``--decode`` and ``--backward`` write that section
alone. The section about ranks is kept: ``ring.py --results`` writes it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import backward_tables
import claims
import decode_tables
import option_tables
import plot
import readme_table
import sections
from figures import (
    Data,
    Record,
    best_rival,
    best_share,
    lead,
    markdown,
    milliseconds,
    per_cent,
    row_of,
    run_peaks,
    shape_text,
    share,
    timed,
)
from rivals import CONTESTANTS
from store import load_or_exit

FOLDER = Path(__file__).parent
BEGIN, END = "<!-- by hand: begin -->", "<!-- by hand: end -->"
NOTHING = "Nothing is written here yet."
OUT, PICTURE = FOLDER / "RESULTS.md", FOLDER / "results.png"

Section = tuple[str, list[str]]


def title_of(who: str) -> str:
    return CONTESTANTS[who].title


def kept(path: Path) -> str:
    """What somebody wrote between the comments of an earlier file."""
    if not path.exists():
        return NOTHING
    text = path.read_text(encoding="utf-8")
    _, begin, rest = text.partition(BEGIN)
    inner, end, _ = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"results: {path}: expected {BEGIN} and {END} in this order")
    return inner.strip() or NOTHING


def what_it_ran_on(data: Data) -> list[str]:
    head, rows = data["head"], data["rows"].values()
    where = head["machine"]
    loads = [record["load"][0] for record in rows if record["load"]]
    commits = sorted(
        {f"{r['commit'] or '?'}{' (modified)' if r['modified'] else ''}" for r in rows}
    )
    blas = [f"{b['internal_api']} {b['version']} ({b['architecture']})" for b in head["blas"]]
    threads = ", ".join(f"{who} {count}" for who, count in head["threads"].items() if who != "run")
    versions = ", ".join(f"{name} {text}" for name, text in sorted(head["versions"].items()))
    minutes = sum(record["seconds"] for record in rows) / 60
    lines = [
        f"* {where['cpu']}, {where['usable_cpus']} usable CPUs, {where['architecture']}, "
        f"{where['system']}; headway's instruction set: {head['isa']}",
        f"* Versions: {versions}",
        f"* Threads of each process: {threads}",
        f"* BLAS of NumPy: {', '.join(blas) or 'not known'}",
        f"* Commit: {', '.join(commits)}; build {head['build']}; {len(rows)} rows in "
        f"{minutes:.0f} minutes, from {min(r['when'] for r in rows)}",
    ]
    if loads:
        lines.append(f"* Load average over the rows: {min(loads):.1f} to {max(loads):.1f}")
    return lines


def peak_lines(data: Data) -> list[str]:
    """Multiply-add peaks as measured beside the rows, and the rate of reading memory."""
    found = [(*name.split("/"), f"{value:.1f}") for name, value in run_peaks(data).items()]
    lines = markdown(("ISA", "threads", "kind", "GFLOP/s"), sorted(found), 3)
    if data.get("bandwidth"):
        lines += ["", f"Reading an array of 1 GiB: {data['bandwidth']:.1f} GB/s."]
    return lines


def claim_lines(data: Data) -> list[str]:
    return ["```text", *(verdict.line for verdict in claims.judge(data)), "```"]


def rows_of(data: Data, kind: str, alone: bool = False) -> Iterator[tuple[str, Record]]:
    for name, record in data["rows"].items():
        row = row_of(record)
        if row.kind == kind and bool(row.contestants) == alone:
            yield name, record


def grid_line(data: Data, record: Record, rivals: Sequence[str]) -> list[str]:
    """Shape, headway's time and share, its lead over the best rival, and every rival's time."""
    row, entries = row_of(record), timed(record)
    own, best = entries.get("headway"), best_rival(record)
    cells = [shape_text(row), "-", "-", "-", "-"]
    if own:
        cells[1] = f"{milliseconds(own['wall_min'])} ({milliseconds(own['wall_median'])})"
        cells[2] = f"{own['gflops']:.0f}"
        cells[3] = per_cent(share(data, record, own))
    if own and best:
        ahead = lead(record, best)
        cells[4] = f"{ahead:.2f}" if ahead >= 1 else f"**{ahead:.2f}: {title_of(best)} is ahead**"
    for who in rivals:
        text = milliseconds(entries[who]["wall_min"]) if who in entries else "-"
        cells.append(f"*{text}*" if who == best else text)
    return cells


def against_rivals(data: Data, kind: str) -> list[str]:
    """A table per dtype and layout: all rows, whoever won."""
    groups: dict[str, list[Record]] = {}
    for _, record in rows_of(data, kind):
        row = row_of(record)
        name = row.dtype + (f", {row.layout}" if kind == "attention" else "")
        groups.setdefault(name, []).append(record)
    lines = []
    for name, records in groups.items():
        rivals = [w for w in CONTESTANTS if any(w in timed(r) for r in records)]
        rivals = [who for who in rivals if who != "headway"]
        head = ["shape", "headway ms (median)", "GFLOP/s", "of peak", "ahead"]
        lines += [f"### {name}", ""]
        body = [grid_line(data, record, rivals) for record in records]
        lines += [*markdown([*head, *map(title_of, rivals)], body), ""]
    return lines[:-1]


def shares(data: Data) -> list[str]:
    """One thread alone, and two against it; beside the study where that took part."""
    body = []
    for _, record in rows_of(data, "attention", alone=True):
        row, entries = row_of(record), timed(record)
        if "headway@1" not in entries:
            continue
        one, two, study = (entries.get(who) for who in ("headway@1", "headway@2", "study"))
        body.append(
            [
                shape_text(row),
                row.dtype,
                row.isa or data["head"]["isa"],
                milliseconds(one["wall_min"]) if one else "-",
                per_cent(share(data, record, one)) if one else "-",
                per_cent(best_share(data, record, one)) if one else "-",
                f"{one['wall_min'] / two['wall_min']:.2f}" if one and two else "-",
                f"{study['wall_min'] / one['wall_min']:.2f}" if one and study else "-",
            ]
        )
    head = [
        "shape",
        "dtype",
        "ISA",
        "ms",
        "of peak",
        "or by CPU time",
        "2 threads",
        "study/headway",
    ]
    return markdown(head, body, 3)


def stages(data: Data) -> list[str]:
    body = []
    for _, record in rows_of(data, "stages"):
        entries = timed(record)
        if {"stage-1", "stage-2"} <= set(entries):
            times = [entries[who]["wall_min"] for who in ("stage-1", "stage-2")]
            body.append(
                [
                    shape_text(row_of(record)),
                    *map(milliseconds, times),
                    f"{times[0] / times[1]:.2f}",
                ]
            )
    return markdown(("module", "stage 1 ms", "stage 2 ms", "stage 1 / stage 2"), body)


def memory(data: Data) -> list[str]:
    body = [
        [
            f"{record['tokens']:,}",
            record["dtype"] + (", five options" if record.get("options") else ""),
            f"{record['mib']:.1f}",
        ]
        for record in data["memory"].values()
    ]
    return markdown(("tokens", "dtype", "MiB beyond inputs and output"), body, 2)


def grouped(data: Data, key: str) -> list[str]:
    """A line per contestant and text under this key of its entries, with the rows that have it."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, record in data["rows"].items():
        for who, entry in record["entries"].items():
            if entry.get(key):
                found.setdefault((who, entry[key]), []).append(name)
    lines = []
    for (who, text), names in found.items():
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        lines.append(f"* {title_of(who)}: {text} ({shown})")
    return lines or ["Nothing."]


def parts(data: Data, path: Path) -> dict[str, list[str]]:
    """Sections that a file may lack, by name: of this file, or as they stand in the page."""
    found = {name: sections.kept(path, name) for name in ("options", "decode", "backward", "ring")}
    if option_tables.measured(data):
        found["options"] = option_tables.option_lines(data)
    if decode_tables.measured(data):
        found["decode"] = decode_tables.decode_lines(data)
    if backward_tables.measured(data):
        found["backward"] = backward_tables.backward_lines(data)
    for name in ("decode", "backward"):
        found[name] = [*found[name], "", *sections.kept(path, f"{name}-notes", "No notes.")]
    return found


def document(data: Data, by_hand: str, picture: str, found: dict[str, list[str]]) -> str:
    chapters: list[Section] = [
        ("What it ran on", what_it_ran_on(data)),
        ("Peaks of the machine", peak_lines(data)),
        ("Claims", claim_lines(data)),
        ("What fell short, and what was tried", [BEGIN, by_hand, END]),
        (
            "Attention",
            [f"![rates of all contestants]({picture})", "", *against_rivals(data, "attention")],
        ),
        ("Options", found["options"]),
        ("Decoding", found["decode"]),
        ("The backward pass and training", found["backward"]),
        ("Attention over ranks", found["ring"]),
        ("One thread, and two", shares(data)),
        ("Modules", against_rivals(data, "module")),
        ("Projection", against_rivals(data, "projection")),
        ("Stage 1 against stage 2", stages(data)),
        ("Extra memory of a call, 8 heads, D = 64", memory(data)),
        ("Not timed, and why", grouped(data, "skipped")),
        ("Which of several ways was quickest", grouped(data, "note")),
    ]
    lines = [
        "# Results",
        "",
        "Written by `bench/results.py` from a result file of `bench/grid.py`; how everything was",
        "measured stands in [README.md](README.md). Milliseconds are the best of all calls; shapes",
        "are (B, H, Hkv, T, D). *Slanted*: the best rival of the row. **Bold**: a row that was",
        "lost.",
    ]
    for title, body in chapters:
        lines += ["", f"## {title}", "", *body]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, metavar="A.json")
    parser.add_argument("--out", type=Path, default=OUT, help="default: bench/RESULTS.md")
    parser.add_argument("--picture", type=Path, help="default: results.png beside it")
    parser.add_argument("--no-picture", action="store_true", help="leave the picture as it is")
    parser.add_argument(
        "--options", action="store_true", help="rewrite the section about options alone"
    )
    parser.add_argument(
        "--decode", action="store_true", help="rewrite the section about decoding alone"
    )
    parser.add_argument(
        "--backward", action="store_true", help="rewrite the section about the backward pass alone"
    )
    parser.add_argument("--readme", action="store_true", help="rewrite README.md's table, too")
    args = parser.parse_args(arguments)
    data = load_or_exit(args.results, "results")
    if not data["rows"]:
        raise SystemExit(f"results: {args.results}: holds no rows")
    if args.options or args.decode or args.backward:
        if args.options:
            option_tables.rewrite(args.out, data)
        if args.decode:
            decode_tables.rewrite(args.out, data)
        if args.backward:
            backward_tables.rewrite(args.out, data)
        return 0
    picture = args.picture or args.out.with_name(PICTURE.name)
    text = document(data, kept(args.out), picture.name, parts(data, args.out))
    try:
        args.out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SystemExit(f"results: {args.out}: {error.strerror}") from None
    if not args.no_picture:
        plot.draw(data, picture)
    if args.readme:
        readme_table.write(data, readme_table.README)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
