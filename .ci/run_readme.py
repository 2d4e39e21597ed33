"""Run the Python blocks of a Markdown file and compare what they print with what the file says.

Blocks run in order in one namespace. A ``text`` block that is the next fenced block after a
``python`` block holds the latter's output; a block without one prints nothing.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import re
import sys
from pathlib import Path
from typing import Any

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def stripped(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def main(path: str) -> int:
    blocks = FENCE.findall(Path(path).read_text(encoding="utf-8"))
    namespace: dict[str, Any] = {"__name__": "readme"}
    faults = count = 0
    for n, (language, code) in enumerate(blocks):
        if language != "python":
            continue
        count += 1
        following = blocks[n + 1] if n + 1 < len(blocks) else ("", "")
        expected = following[1] if following[0] == "text" else ""
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, f"{path}, Python block {count}", "exec"), namespace)
        wanted, got = stripped(expected), stripped(printed.getvalue())
        if wanted != got:
            faults += 1
            print(
                *difflib.unified_diff(wanted, got, "in the file", "printed", lineterm=""), sep="\n"
            )
    print(f"{path}: {count} Python blocks, {faults} print something else than the file says")
    return 1 if faults or not count else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
