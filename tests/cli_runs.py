"""The command line in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
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
        **options,
    )


def run(*arguments: str, env: dict[str, str | None] | None = None) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command in a process of its own."""
    with start(*arguments, env=env) as process:
        out, err = process.communicate(timeout=60)
        return process.returncode, out.decode(), err.decode()
