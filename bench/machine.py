"""What a figure was measured on: machine, versions, BLAS kernel, commit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from headway.timing import machine
from headway.timing.machine import OVERRIDES, usable_cpus

__all__ = [
    "OVERRIDES",
    "blas_kernels",
    "describe",
    "moment",
    "usable_cpus",
    "without_blas_overrides",
]


def without_blas_overrides() -> None:
    """Start this very command anew without `OVERRIDES`, which a BLAS reads when it is loaded."""
    if any(name in os.environ for name in OVERRIDES):
        env = {name: value for name, value in os.environ.items() if name not in OVERRIDES}
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], env)


def git(*arguments: str) -> str | None:
    """What git says about the folder of this file; None where there is no git or no repository."""
    command = ["git", "-C", str(Path(__file__).resolve().parent), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def blas_kernels() -> list[dict[str, Any]]:
    """Library, version and kernel of every BLAS in this process; none without threadpoolctl."""
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        return []
    wanted = ("internal_api", "version", "architecture", "threading_layer")
    return [
        {key: entry.get(key) for key in wanted}
        for entry in threadpool_info()
        if entry["user_api"] == "blas"
    ]


def moment() -> dict[str, Any]:
    """When, and at which commit."""
    return {
        "when": machine.now(),
        "commit": git("rev-parse", "HEAD"),
        "modified": bool(git("status", "--porcelain", "--untracked-files=no")),
    }


def describe(versions: dict[str, str]) -> dict[str, Any]:
    """The head of a result file."""
    return {**moment(), **machine.describe(versions)}
