"""The measuring process's side of the workers: start, ask with a time limit, stop."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .machine import OVERRIDES

START_SECONDS = 120.0
THREAD_SETTINGS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "HEADWAY_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


class WorkerGone(Exception):
    """The process ended, or did not answer in time and was ended; the text says which."""


def environment(threads: int, extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of a worker: its threads, and no setting that slows down a BLAS."""
    env = {name: value for name, value in os.environ.items() if name not in OVERRIDES}
    env |= dict.fromkeys(THREAD_SETTINGS, str(threads))
    env |= {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3", "TQDM_DISABLE": "1"}
    return env | dict(extra)


class WorkerProcess:
    """A worker; its first answer, to nothing, is what it is."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=env,
                start_new_session=True,
            )
        self._pending = b""
        try:
            self.hello = self._read(START_SECONDS)
        except BaseException:
            self.close()
            raise

    def ask(self, do: str, seconds: float, **more: Any) -> dict[str, Any]:
        """The answer; WorkerGone where there is none within so many seconds."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **more}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise WorkerGone(self._last_words()) from None
        return self._read(seconds)

    def _read(self, seconds: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        end = time.monotonic() + seconds
        while b"\n" not in self._pending:
            if not select.select([pipe], [], [], max(end - time.monotonic(), 0))[0]:
                self.close()
                raise WorkerGone(f"no answer within {seconds:.0f} s")
            data = os.read(pipe, 65536)
            if not data:
                raise WorkerGone(self._last_words())
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        code = self._process.wait()
        lines = self._log.read_text(encoding="utf-8", errors="replace").split("\n")
        said = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"its process ended with code {code}: {said[:120]}"

    def close(self) -> None:
        """End the process: it has nothing to save."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class Workers(ABC):
    """One worker per name, started when it is first asked for."""

    def __init__(self, threads: int, folder: Path) -> None:
        self.threads, self.folder = threads, folder
        self._running: dict[str, WorkerProcess] = {}
        self.hellos: dict[str, dict[str, Any]] = {}

    @abstractmethod
    def start(self, family: str, threads: int, log: Path) -> WorkerProcess:
        """A worker of this family."""

    def get(self, name: str, family: str, threads: int | None = None) -> WorkerProcess | None:
        """The worker of this name; None where it cannot run here (see ``hellos``)."""
        known = self.hellos.get(name, {})
        if "unsupported" in known or "failed" in known:
            return None
        if name not in self._running:
            try:
                process = self.start(family, threads or self.threads, self.folder / f"{name}.log")
            except WorkerGone as gone:
                self.hellos[name] = {"failed": str(gone)}
                return None
            self.hellos[name] = process.hello
            if "unsupported" in process.hello or "failed" in process.hello:
                process.close()
                return None
            self._running[name] = process
        return self._running[name]

    def ask(
        self, name: str, family: str, threads: int | None, do: str, seconds: float, **more: Any
    ) -> dict[str, Any]:
        """What the worker says; why not, as "skipped", where it says nothing good."""
        process = self.get(name, family, threads)
        if process is None:
            hello = self.hellos[name]
            return {"skipped": hello.get("unsupported") or hello["failed"]}
        try:
            said = process.ask(do, seconds, **more)
        except WorkerGone as gone:
            self.forget(name)
            return {"skipped": str(gone)}
        reason = said.get("unsupported") or said.get("failed")
        return {"skipped": reason} if reason else said

    def forget(self, name: str) -> None:
        """The worker is gone; the next `get` starts another."""
        process = self._running.pop(name, None)
        if process is not None:
            process.close()

    def drop_all(self) -> None:
        """Let every worker forget its calls."""
        for name, process in list(self._running.items()):
            try:
                process.ask("drop", 60)
            except WorkerGone:
                self.forget(name)

    def close(self) -> None:
        """End all of them."""
        for process in self._running.values():
            process.close()
        self._running.clear()
