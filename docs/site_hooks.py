"""What the pages take from bench/RESULTS.md when they are built: tables and pictures.

In a page, ``<!-- results: WHAT -->`` stands for a part of that file:

    machine             what the figures ran on
    run SECTION         the same of a section that was measured in a run of its own
    table SECTION       the table of the section with this title, columns as they are
    rates SECTION       shape, time, rate and the best rival of a section with rivals
    picture SECTION     rates of headway and of the best rival, drawn
    kept SECTION        a code block of the section as it stands
    accuracy DTYPE      the table of this dtype in bench/ACCURACY.md
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent.parent / "bench" / "RESULTS.md"
ACCURACY = RESULTS.with_name("ACCURACY.md")
MARK = re.compile(r"<!-- results: (\w+) ?(.*?) -->")

Row = dict[str, str]


def section(title: str, file: Path | None = None) -> list[str]:
    """The lines below a heading, up to the next one; of RESULTS.md where no file is named."""
    file = file or RESULTS
    lines = file.read_text(encoding="utf-8").splitlines()
    starts = [n for n, line in enumerate(lines) if line.lstrip("#").strip() == title]
    if len(starts) != 1 or not lines[starts[0]].startswith("##"):
        raise ValueError(f"{file.name}: expected one section {title!r}, found {len(starts)}")
    body = lines[starts[0] + 1 :]
    ends = [n for n, line in enumerate(body) if re.match(r"#+ ", line)]
    return body[: ends[0]] if ends else body


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def lines_of_table(title: str, file: Path | None = None) -> tuple[list[str], list[list[str]]]:
    """(names of the columns, rows) of the first table of a section."""
    lines = [line for line in section(title, file) if line.startswith("|")]
    if len(lines) < 3:
        raise ValueError(f"{RESULTS.name}: expected a table in section {title!r}")
    return cells(lines[0]), [cells(line) for line in lines[2:]]


def rows(title: str) -> list[Row]:
    """The same, a row by the names of its columns, which are to differ."""
    head, body = lines_of_table(title)
    if len(set(head)) < len(head):
        raise ValueError(f"{RESULTS.name}: two columns of one name in section {title!r}")
    return [dict(zip(head, line, strict=True)) for line in body]


def markdown(head: list[str], body: list[list[str]]) -> str:
    rule = ["---", *["--:"] * (len(head) - 1)]
    lines = [f"| {' | '.join(line)} |" for line in (head, rule, *body)]
    return "\n".join(['<div class="results" markdown="1">', "", *lines, "", "</div>"])


def table(title: str) -> str:
    return markdown(*lines_of_table(title))


def accuracy(dtype: str) -> str:
    return markdown(*lines_of_table(dtype, ACCURACY))


def best_rival(row: Row) -> tuple[str, str]:
    """(name, milliseconds) of the best rival, which stands in *slanted* letters."""
    for name, text in row.items():
        if re.fullmatch(r"\*[\d.]+\*", text):
            return name, text.strip("*")
    raise ValueError(f"{RESULTS.name}: no best rival in the row {row}")


def lead(row: Row) -> str:
    """How many times as fast as the best rival."""
    return row["ahead"].strip("*").partition(":")[0]


def rates(title: str) -> str:
    body = []
    for row in rows(title):
        rival = "{} {}".format(*best_rival(row))
        ahead = lead(row) if float(lead(row)) >= 1 else f"**{lead(row)}**"
        own = [row[name] for name in ("shape", "headway ms (median)", "GFLOP/s", "of peak")]
        body.append([*own, rival, ahead])
    head = ["shape", "ms (median)", "GFLOP/s", "of peak", "best rival, ms", "ahead"]
    return markdown(head, body)


def picture(title: str) -> str:
    """Rates as bars, one pair for each shape: headway, and the best rival of the row."""
    found = [row for row in rows(title) if int(row["GFLOP/s"]) > 10]
    own = [float(row["GFLOP/s"]) for row in found]
    rival = [rate / float(lead(row)) for rate, row in zip(own, found, strict=True)]
    unit = 290 / max(own + rival)
    parts = []
    for n, row in enumerate(found):
        y = 34 * n
        name = best_rival(row)[0]
        parts += [
            f'<text x="0" y="{y + 10}" class="small">{html.escape(row["shape"])}</text>',
            f'<rect x="0" y="{y + 14}" width="{own[n] * unit:.1f}" height="7" class="one"/>',
            f'<rect x="0" y="{y + 22}" width="{rival[n] * unit:.1f}" height="5" class="two"/>',
            f'<text x="{own[n] * unit + 4:.1f}" y="{y + 21}" class="small">{own[n]:.0f}</text>',
            f'<text x="360" y="{y + 10}" text-anchor="end" class="small">{html.escape(name)} '
            f"{rival[n]:.0f}</text>",
        ]
    label = f"{title}: GFLOP/s of headway and of the best rival for {len(found)} shapes"
    caption = (
        f"{title}: GFLOP/s. Upper bar and number: headway; lower bar, and the number on the right: "
        "the best rival of the row."
    )
    return "\n".join(
        [
            '<figure class="drawing">',
            f'<svg viewBox="0 0 364 {34 * len(found)}" role="img" aria-label="{label}">',
            *parts,
            "</svg>",
            f"<figcaption>{caption}</figcaption>",
            "</figure>",
        ]
    )


def machine(_: str) -> str:
    wanted = ("Intel", "AMD", "Arm", "Versions", "Commit", "Load")
    lines = [line for line in section("What it ran on") if line.startswith("*")]
    chosen = [line for line in lines if line[2:].startswith(wanted)]
    return shortened("\n".join(chosen or lines))


def run(title: str) -> str:
    for line in section(title):
        if "commit" in line and "build" in line:
            return shortened(line)
    raise ValueError(f"{RESULTS.name}: expected commit and build in section {title!r}")


def shortened(text: str) -> str:
    """Commits by their first ten digits."""
    return re.sub(r"\b([0-9a-f]{10})[0-9a-f]{30}\b", r"\1", text)


def kept(title: str) -> str:
    text = "\n".join(section(title))
    block = re.search(r"^```text\n.*?^```$", text, re.MULTILINE | re.DOTALL)
    if block is None:
        raise ValueError(f"{RESULTS.name}: expected a code block in section {title!r}")
    return block[0]


PARTS = {
    "machine": machine,
    "run": run,
    "table": table,
    "rates": rates,
    "picture": picture,
    "kept": kept,
    "accuracy": accuracy,
}


def fill(page: str) -> str:
    """The page with every mark replaced."""
    return MARK.sub(lambda mark: PARTS[mark[1]](mark[2]), page)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for every page."""
    return fill(markdown)
