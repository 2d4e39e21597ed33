"""Let the compiler read every file of a build, and make nothing: python read_sources.py COMMANDS.

COMMANDS is the build's compile_commands.json. Templates are instantiated, so that every warning of
the front end is given; fails where one of the commands does.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def read(entry: dict[str, str]) -> bool:
    command = [*shlex.split(entry["command"]), "-fsyntax-only"]
    result = subprocess.run(command, cwd=entry["directory"], stderr=subprocess.PIPE, text=True)
    if result.returncode != 0:
        print(f"{entry['file']}:\n{result.stderr}", file=sys.stderr)
    return result.returncode == 0


def main(commands: str) -> int:
    entries = json.loads(Path(commands).read_text(encoding="utf-8"))
    with ThreadPoolExecutor(2) as pool:
        good = list(pool.map(read, entries))
    print(f"{sum(good)} of {len(good)} files read without a warning")
    return 0 if good and all(good) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
