"""A run of the program that makes mixed calls from several threads; see ``long_run.py``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from helpers import clean_environment

HERE = Path(__file__).parent


@pytest.mark.skipif(sys.platform != "linux", reason="this machine: has no /proc/self/statm")
def test_mixed_calls_from_four_threads() -> None:
    """Every result has the bits of the same call made alone, and memory does not grow."""
    done = subprocess.run(
        [sys.executable, HERE / "long_run.py", "--calls", "10000", "--threads", "4"],
        env=clean_environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert ": 0 differ; " in done.stdout
