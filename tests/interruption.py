"""A call that Ctrl-C has to end: in a process of its own, since the signal goes to a process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping

from helpers import clean_environment

MOST_SECONDS = 2.0


def assert_interruptible(
    source: str, *arguments: str, env: Mapping[str, str | None] | None = None
) -> None:
    """Fail unless SIGINT ends the program's long call soon, and the call after it works.

    The program prints "ready" before the long call; then "interrupted", or "finished"; then, as
    JSON, whether the call after it gave the right result.
    """
    program = subprocess.Popen(
        [sys.executable, "-c", source, *arguments],
        env=clean_environment(env),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    try:
        assert program.stdout.readline().strip() == "ready"
        time.sleep(0.5)
        program.send_signal(signal.SIGINT)
        sent = time.perf_counter()
        assert program.stdout.readline().strip() == "interrupted"
        waited = time.perf_counter() - sent
        same = json.loads(program.stdout.readline())
        assert program.wait(30) == 0
    finally:
        program.kill()
        program.stdout.close()
    assert same
    assert waited < MOST_SECONDS, f"{waited:.2f} s"
