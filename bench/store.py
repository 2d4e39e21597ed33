"""Result files: written anew after every row, in one step, so that a run can be taken up again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

SCHEMA = 2
Data = dict[str, Any]


class BadFile(Exception):
    """The file cannot be read, or holds something else; the text is the whole complaint."""


def load(path: Path) -> Data:
    """A result file; BadFile with one clear line where it is none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadFile(f"{path}: {error}") from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise BadFile(f"{path}: not a result file of grid.py, schema {SCHEMA}")
    return data


def load_or_exit(path: Path, program: str) -> Data:
    try:
        return load(path)
    except BadFile as bad:
        raise SystemExit(f"{program}: {bad}") from None


def save(path: Path, data: Data) -> None:
    """Write all or nothing: a run that is stopped while it writes leaves the file as it was."""
    beside = path.with_name(path.name + ".part")
    try:
        beside.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        os.replace(beside, path)
    except OSError as error:
        raise SystemExit(f"grid: {path}: {error.strerror}") from None


class Store:
    """The rows measured so far, of one build on one machine with one number of threads."""

    def __init__(self, path: Path, head: Data, fresh: bool) -> None:
        self.path = path
        self.data: Data = {"schema": SCHEMA, "head": head, "rows": {}, "memory": {}}
        self.left_over = 0
        if fresh or not path.exists():
            return
        old = load(path)
        for section in ("rows", "memory"):
            for name, record in old[section].items():
                if record["stamp"] == self.stamp:
                    self.data[section][name] = record
                else:
                    self.left_over += 1
        if self.data["rows"]:
            self._take_over(old)

    def _take_over(self, old: Data) -> None:
        """What the earlier part of the run knew beyond this one: other contestants, the memory."""
        head, before = self.data["head"], old["head"]
        for section in ("versions", "threads"):
            head[section] = before[section] | head[section]
        head["blas"] = before["blas"]
        if old.get("bandwidth"):
            self.data["bandwidth"] = old["bandwidth"]

    @property
    def stamp(self) -> str:
        """What has to agree for a row to count as done: machine, build, threads."""
        head = self.data["head"]
        machine = head["machine"]
        parts = (machine["cpu"], machine["usable_cpus"], head["build"], head["threads"]["run"])
        return " | ".join(map(str, parts))

    def done(self, name: str, contestants: list[str]) -> bool:
        """Whether the row is there, with everyone who is wanted now."""
        record = self.data["rows"].get(name)
        return record is not None and set(contestants) <= set(record["entries"])

    def add(self, section: str, name: str, record: Data) -> None:
        self.data[section][name] = {**record, "stamp": self.stamp}
        save(self.path, self.data)
