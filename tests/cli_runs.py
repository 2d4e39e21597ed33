"""The command line in a process of its own."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from helpers import clean_environment

needs_posix = pytest.mark.skipif(os.name != "posix", reason="this machine: not POSIX")


def start(*arguments: str, env: dict[str, str | None] | None = None, **options: Any) -> Any:
    return subprocess.Popen(
        [sys.executable, "-m", "headway", *arguments],
        env=clean_environment(env),
        stdout=options.pop("stdout", subprocess.PIPE),
        stderr=subprocess.PIPE,
        preexec_fn=_heed_ctrl_c if os.name == "posix" else None,
        **options,
    )


def _heed_ctrl_c() -> None:
    """A job in a shell's background ignores Ctrl-C, and so would what it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run(*arguments: str, env: dict[str, str | None] | None = None) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command in a process of its own."""
    with start(*arguments, env=env) as process:
        out, err = process.communicate(timeout=300)  # an end to waiting
        return process.returncode, out.decode(), err.decode()


def run_on_terminal(
    *arguments: str, env: dict[str, str | None] | None = None, columns: int = 100
) -> tuple[int, str]:
    """Exit code, and what a terminal of this width gets from stdout and stderr together."""
    import fcntl
    import pty
    import struct
    import termios

    mine, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    plain = {"TERM": "xterm-256color", "COLUMNS": None, "NO_COLOR": None, "FORCE_COLOR": None}
    command = [sys.executable, "-m", "headway", *arguments]
    environment = clean_environment({**plain, **(env or {})})
    with subprocess.Popen(command, env=environment, stdout=its, stderr=its) as process:
        os.close(its)
        seen = b""
        end = time.monotonic() + 300
        while time.monotonic() < end:
            if select.select([mine], [], [], 1)[0]:
                try:
                    piece = os.read(mine, 65536)
                except OSError:  # the other end is closed
                    piece = b""
                if not piece:
                    break
                seen += piece
        else:
            process.kill()
    os.close(mine)
    return process.returncode, seen.decode().replace("\r\n", "\n")


def without(package: str, folder: Path) -> dict[str, str | None]:
    """An environment in which this package cannot be imported."""
    (folder / f"{package}.py").write_text(f"raise ImportError('none', name={package!r})\n")
    return first_on_path(folder)


def first_on_path(folder: Path) -> dict[str, str | None]:
    """An environment in which modules of this folder are found first."""
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


def plain_text(text: str) -> str:
    """Without the terminal's commands."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
