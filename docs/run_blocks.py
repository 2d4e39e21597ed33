"""Run the code blocks of Markdown files and compare what they print with what the files say.

    python docs/run_blocks.py PAGE...
    python docs/run_blocks.py --write PAGE...      # put what is printed into the pages

The blocks of a page run in order, in a folder of their own: ``python`` blocks in one namespace,
``sh`` blocks whose commands are all ``headway ...`` in a shell. A ``text`` block that is the next
fenced block holds the output; ``...`` in it stands for any text. A block without one prints
nothing. Other ``sh`` blocks install something: they are not run, and the extras they name must
exist.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import doctest
import io
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import warnings
from pathlib import Path
from typing import Any, NamedTuple

FENCE = re.compile(r"^([ ]*)```(\w*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
INSTALL = re.compile(r"(?:\S*python3? -m venv|\S*pip install|cd|bash|mpiexec -n \d+) \S")
EXTRAS = re.compile(r"'(?:headway|\.)\[([a-z0-9,]+)\]'")
PROJECT = Path(__file__).parent.parent / "pyproject.toml"


class Block(NamedTuple):
    """A fenced block: its language, its dedented text, its indentation, its place in the page."""

    language: str
    code: str
    indent: str
    start: int
    end: int


def blocks_of(page: str) -> list[Block]:
    found = []
    for match in FENCE.finditer(page):
        code = "".join(
            line.removeprefix(match[1]) if line.strip() else "\n"
            for line in match[3].splitlines(keepends=True)
        )
        found.append(Block(match[2], code, match[1], match.start(3), match.end(3)))
    return found


def run_python(code: str, name: str, namespace: dict[str, Any]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, name, "exec"), namespace)
    return printed.getvalue()


def run_shell(code: str, name: str) -> str:
    """What the commands print; ``headway`` is the package of this interpreter."""
    function = f'headway() {{ "{sys.executable}" -m headway "$@"; }}\n'
    environment = os.environ | {"COLUMNS": "72", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        ["bash", "-eu", "-c", function + code], capture_output=True, text=True, env=environment
    )
    if done.returncode:
        raise SystemExit(f"{name}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def commands(code: str) -> list[str]:
    joined = code.replace("\\\n", " ")
    return [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]


def check_install(code: str, name: str) -> None:
    """Commands that are not run: of a known kind, with extras that the project has."""
    for command in commands(code):
        if not INSTALL.match(command):
            raise SystemExit(f"{name}: expected headway or a command that installs, got {command}")
    if PROJECT.exists():
        known = re.findall(r"^(\w+) = \[\"", PROJECT.read_text(encoding="utf-8"), re.MULTILINE)
        for extra in ",".join(EXTRAS.findall(code)).split(","):
            if extra and extra not in known:
                raise SystemExit(f"{name}: the project has no extra {extra}")


def stripped(text: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in text.rstrip().splitlines())


def same(wanted: str, got: str) -> bool:
    return doctest.OutputChecker().check_output(wanted, got, doctest.ELLIPSIS)


def run_page(path: Path, write: bool) -> int:
    """The number of blocks whose output is another one than the page says."""
    page = path.read_text(encoding="utf-8")
    blocks = blocks_of(page)
    namespace: dict[str, Any] = {"__name__": "page"}
    faults = count = 0
    edits: list[tuple[Block, str]] = []
    for n, block in enumerate(blocks):
        name = f"{path.name}, line {page.count(chr(10), 0, block.start)}"
        if block.language == "python":
            got = run_python(block.code, name, namespace)
        elif block.language == "sh" and all(c.startswith("headway") for c in commands(block.code)):
            got = run_shell(block.code, name)
        else:
            if block.language == "sh":
                check_install(block.code, name)
            elif block.language not in ("text", ""):
                raise SystemExit(f"{name}: nothing runs blocks of {block.language}")
            continue
        count += 1
        after = blocks[n + 1] if n + 1 < len(blocks) else None
        expected = after if after is not None and after.language == "text" else None
        wanted, got = stripped(expected.code if expected else ""), stripped(got)
        if same(wanted, got):
            continue
        if write and expected is not None and "..." not in wanted:
            edits.append((expected, got))
            continue
        faults += 1
        lines = (wanted.splitlines(), got.splitlines(), f"{name}: in the file", "printed")
        print(*difflib.unified_diff(*lines, lineterm=""), sep="\n")
    for block, got in reversed(edits):
        page = page[: block.start] + textwrap.indent(got, block.indent) + page[block.end :]
    if edits:
        path.write_text(page, encoding="utf-8")
    print(f"{path.name}: {count} blocks ran, {len(edits)} written, {faults} differ")
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pages", nargs="+", type=Path, metavar="PAGE")
    parser.add_argument("--write", action="store_true", help="put what is printed into the pages")
    args = parser.parse_args()
    warnings.simplefilter("error")
    pages = [page.resolve() for page in args.pages]
    faults = 0
    for page in pages:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            faults += run_page(page, args.write)
            os.chdir(page.parent)
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
