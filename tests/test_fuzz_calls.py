"""A short run of the program that calls everything at random; see ``fuzz_calls.py``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import clean_environment

HERE = Path(__file__).parent


@pytest.mark.skipif(sys.platform != "linux", reason="this machine: has no /proc/self/statm")
@pytest.mark.parametrize("seed", [0, 1])
def test_random_calls(seed: int) -> None:
    """Every call is refused as it may be, or gives what it must; nothing else happens."""
    calls = ["--calls", os.environ.get("HEADWAY_FUZZ_CALLS", "12000"), "--seed", str(seed)]
    done = subprocess.run(
        [sys.executable, HERE / "fuzz_calls.py", *calls],
        env=clean_environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "calls, " in done.stdout
