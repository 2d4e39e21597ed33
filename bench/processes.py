"""The workers of the grid: a family of contestants each, on the program ``worker.py``."""

from __future__ import annotations

import sys
from pathlib import Path

from headway.timing.processes import WorkerProcess, Workers, environment

WORKER = Path(__file__).with_name("worker.py")


class Processes(Workers):
    """One worker per family and number of threads, started when it is first asked for."""

    def __init__(self, threads: int, folder: Path, extra: dict[str, str]) -> None:
        super().__init__(threads, folder)
        self._extra = extra

    def start(self, family: str, threads: int, log: Path) -> WorkerProcess:
        """A worker of this family."""
        command = [sys.executable, str(WORKER), family]
        return WorkerProcess(command, environment(threads, self._extra), log)
