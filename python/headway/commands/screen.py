"""What is printed, and what becomes of it when nobody reads it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

from ..text_table import TextTable

STYLES = {"ok": "green", "FAILED": "bold red"}
"""Cells that have a colour of their own."""


class OutputLost(Exception):
    """What is printed cannot be written, and nobody is left to read it or the disk is full."""


def encoding() -> str:
    """That of stdout."""
    return getattr(sys.stdout, "encoding", None) or "ascii"


def say(text: str) -> None:
    """Print to stdout; a character that its encoding does not have becomes "?"."""
    coding = encoding()
    try:
        print(text.encode(coding, "replace").decode(coding), flush=True)
    except OSError as error:
        raise OutputLost from error


def flush() -> None:
    """Write what is left in the buffers of stdout."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        raise OutputLost from error


def drop_output() -> None:
    """Let the interpreter write what is left in its buffers to nowhere when it ends."""
    with suppress(OSError, ValueError):  # a stdout that is no file has nothing to drop
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def complain(text: str, code: int) -> int:
    """One line on stderr, if there is anyone to read it; returns the exit code."""
    with suppress(OSError):
        print(f"headway: {' '.join(text.split())}", file=sys.stderr, flush=True)
    return code


# On a terminal, with the extra "cli" -------------------------------------------------------------


def rich(module: str) -> Any | None:
    """A module of the package rich; None where it is not installed."""
    try:
        return import_module(f"rich.{module}")
    except ImportError:
        return None


def is_terminal(stream: Any) -> bool:
    """Whether a person reads what is written there; no stream at all is none."""
    return stream is not None and stream.isatty()


def show(table: TextTable) -> None:
    """Print a table: with rules and colour on a terminal that has rich, else as plain text."""
    console = rich("console") if is_terminal(sys.stdout) else None
    if console is None:
        say("\n".join(table.lines()))
        return
    text, tables, boxes = (import_module(f"rich.{name}") for name in ("text", "table", "box"))
    grid = tables.Table(header_style="bold", box=boxes.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for n, name in enumerate(table.header):
        grid.add_column(text.Text(name), justify="right" if n else "left")
    for row in table.rows:
        grid.add_row(*(text.Text(cell, style=STYLES.get(cell, "")) for cell in row))
    screen = console.Console(highlight=False)
    needed = screen.measure(grid, options=screen.options.update(width=1000)).maximum
    if needed > screen.width:
        say("\n".join(table.lines()))
        return
    try:
        screen.print(grid)
    except OSError as error:
        raise OutputLost from error


class Progress:
    """Steps that are shown on stderr while it is a terminal: a bar with rich, else one line."""

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0

    def begin(self, what: str) -> None:
        """The next step begins."""

    def reach(self, done: int) -> None:
        """So many steps are done."""
        self.done = done

    def step(self) -> None:
        """One more step is done."""
        self.reach(self.done + 1)


class _Line(Progress):
    def begin(self, what: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        self._write(f"\r{f'{self.done + 1}/{self.total} {what}'[:width]:<{width}}\r")

    def close(self) -> None:
        self._write("\r" + " " * (shutil.get_terminal_size().columns - 1) + "\r")

    def _write(self, text: str) -> None:
        with suppress(OSError):
            print(text, end="", file=sys.stderr, flush=True)


class _Bar(Progress):
    def __init__(self, total: int, bar: Any) -> None:
        super().__init__(total)
        self._bar = bar
        self._task = bar.add_task("", total=total)

    def begin(self, what: str) -> None:
        self._bar.update(self._task, description=what.replace("[", r"\["))

    def reach(self, done: int) -> None:
        super().reach(done)
        self._bar.update(self._task, completed=done)


@contextmanager
def progress(total: int) -> Iterator[Progress]:
    """Show how many of ``total`` steps are done, until they are; then take it away."""
    if not is_terminal(sys.stderr):
        yield Progress(total)
        return
    bars, console = rich("progress"), rich("console")
    if bars is None or console is None:
        line = _Line(total)
        try:
            yield line
        finally:
            line.close()
        return
    with bars.Progress(console=console.Console(stderr=True), transient=True) as bar:
        yield _Bar(total, bar)
