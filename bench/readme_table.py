"""Write the speed table of README.md from a result file: python bench/readme_table.py A.json."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from figures import (
    Data,
    Record,
    best_rival,
    lead,
    markdown,
    milliseconds,
    per_cent,
    row_of,
    shape_text,
    share,
    timed,
)
from rivals import CONTESTANTS
from store import load_or_exit

README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- speed:begin -->", "<!-- speed:end -->"
SHOWN = (
    "prefill-128",
    "prefill-1024",
    "prefill-1024-d128",
    "prefill-4096",
    "chunk-16",
)
"""Rows of the table, in each dtype; those in (B, H, T, D) memory."""


def cells(data: Data, record: Record) -> list[str]:
    row, own = row_of(record), timed(record)["headway"]
    best = best_rival(record)
    line = [shape_text(row), row.dtype, milliseconds(own["wall_min"])]
    line += [f"{own['gflops']:.0f}", per_cent(share(data, record, own))]
    if best is None:
        return [*line, "-", "-"]
    rival = record["entries"][best]
    return [
        *line,
        f"{CONTESTANTS[best].title} {milliseconds(rival['wall_min'])}",
        f"{lead(record, best):.2f}",
    ]


def speed_table(data: Data) -> str:
    """Markdown: machine and versions in two lines, then the rows."""
    head = data["head"]
    where = head["machine"]
    names = [
        f"{name}/{dtype}/BHTD" for dtype in ("float32", "bfloat16", "float16") for name in SHOWN
    ]
    records = [data["rows"][name] for name in names if name in data["rows"]]
    records = [record for record in records if "headway" in timed(record)]
    if not records:
        raise SystemExit("readme_table: the file holds none of the table's rows of headway")
    commits = sorted({(record["commit"] or "?")[:7] for record in records})
    lines = [
        f"{where['cpu']}, {where['usable_cpus']} CPUs, ISA {head['isa']}, "
        f"{head['threads']['run']} threads each; headway {head['versions']['headway']}, commit "
        f"{', '.join(commits)}.",
        "Milliseconds are the best of interleaved calls; all rows, rivals and versions stand in",
        "[bench/RESULTS.md](bench/RESULTS.md).",
        "",
    ]
    titles = (
        "shape (B, H, Hkv, T, D)",
        "dtype",
        "ms",
        "GFLOP/s",
        "of peak",
        "best rival, ms",
        "ahead",
    )
    return "\n".join([*lines, *markdown(titles, [cells(data, r) for r in records], 2)])


def rewrite(text: str, table: str) -> str:
    """`text` with everything between the two comments replaced by `table`."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"readme_table: expected {BEGIN} and {END} in this order")
    return f"{before}{begin}\n{table}\n{end}{after}"


def write(data: Data, readme: Path) -> None:
    text = readme.read_text(encoding="utf-8")
    readme.write_text(rewrite(text, speed_table(data)), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, metavar="A.json")
    parser.add_argument("--readme", type=Path, default=README)
    args = parser.parse_args(arguments)
    write(load_or_exit(args.results, "readme_table"), args.readme)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
