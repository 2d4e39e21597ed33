"""Check what is tracked: python .ci/hygiene.py CHECKOUT. Prints one line per fault."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

MAX_BYTES = 400_000
MAX_README = 150
MAX_LINES = 300
SLACK = 20
"""A file may pass MAX_LINES by this much before it fails; tests and benchmarks are only named."""

SOURCES = (".py", ".pyi", ".cpp", ".hpp", ".cmake", ".sh")
FOREIGN_PATH = re.compile(r"(?<![\w.$}/-])/(?:home|root|Users|work|tmp)/\w")
UNFINISHED = re.compile(r"\b(?:TO[D]O|FIX[M]E|X[X]X|HA[C]K)\b")
SPEED = re.compile(r"<!-- speed:begin -->\s*(?!<!--)\S[\s\S]*<!-- speed:end -->")


def tracked(root: Path) -> list[str]:
    command = ["git", "-C", str(root), "ls-files", "-z"]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [name for name in listing.split("\0") if name]


def faults_of(name: str, content: bytes) -> tuple[list[str], list[str]]:
    """(faults, remarks) of one tracked file."""
    faults: list[str] = []
    remarks: list[str] = []
    if len(content) > MAX_BYTES:
        faults.append(f"{name}: {len(content)} bytes, wanted at most {MAX_BYTES}")
    if b"\0" in content:
        return faults, remarks
    lines = content.decode("utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        if FOREIGN_PATH.search(line):
            faults.append(f"{name}:{number}: absolute path: {line.strip()}")
        if name.endswith(SOURCES) and UNFINISHED.search(line):
            faults.append(f"{name}:{number}: unfinished: {line.strip()}")
    if name == "README.md":
        if len(lines) > MAX_README:
            faults.append(f"{name}: {len(lines)} lines, wanted at most {MAX_README}")
        if not SPEED.search("\n".join(lines)):
            faults.append(f"{name}: nothing stands between the speed comments; see bench/README.md")
    if name.endswith(SOURCES) and len(lines) > MAX_LINES:
        strict = name.startswith(("python/", "cpp/")) and len(lines) > MAX_LINES + SLACK
        (faults if strict else remarks).append(f"{name}: {len(lines)} lines, wanted {MAX_LINES}")
    return faults, remarks


def main(root: str) -> int:
    faults: list[str] = []
    names = tracked(Path(root))
    for name in names:
        found, remarks = faults_of(name, (Path(root) / name).read_bytes())
        faults += found
        for remark in remarks:
            print(f"remark: {remark}")
    print("\n".join(faults) or f"{len(names)} tracked files are in order")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
