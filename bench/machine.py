"""What a figure was measured on: machine, versions, BLAS kernel, commit."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

OVERRIDES = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
"""Settings that make a current OpenBLAS slower than it is by itself; the two belong together."""


def without_blas_overrides() -> None:
    """Start this very command anew without `OVERRIDES`; to be called before NumPy is imported."""
    if any(name in os.environ for name in OVERRIDES):
        env = {name: value for name, value in os.environ.items() if name not in OVERRIDES}
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], env)


def cpu_name() -> str:
    """The processor's name for itself."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def usable_cpus() -> int:
    """CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
        from threadpoolctl import threadpool_info  # type: ignore[import-untyped]
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
        "when": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": git("rev-parse", "HEAD"),
        "modified": bool(git("status", "--porcelain", "--untracked-files=no")),
    }


def describe(versions: dict[str, str]) -> dict[str, Any]:
    """The head of a result file."""
    return {
        **moment(),
        "machine": {
            "cpu": cpu_name(),
            "architecture": platform.machine(),
            "usable_cpus": usable_cpus(),
            "system": f"{platform.system()} {platform.release()}",
        },
        "versions": {"python": platform.python_version(), **versions},
    }
