"""Parts of RESULTS.md that are kept where a result file has nothing on them, between comments."""

from __future__ import annotations

from pathlib import Path

NOTHING = "Not measured yet."


def comments(name: str) -> tuple[str, str]:
    """What stands before and after the part of this name."""
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def kept(path: Path, name: str, nothing: str = NOTHING) -> list[str]:
    """The part as it stands in an earlier file, with its comments."""
    begin, end = comments(name)
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if begin not in text or end not in text:
        return [begin, nothing, end]
    return [begin, *text.partition(begin)[2].partition(end)[0].strip().split("\n"), end]


def rewrite(path: Path, name: str, lines: list[str]) -> None:
    """Put these lines, comments and all, in the place of the part; leave the rest as it is."""
    begin, end = comments(name)
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"results: {path}: expected {begin} and {end} in this order")
    path.write_text(before + "\n".join(lines) + after, encoding="utf-8")
