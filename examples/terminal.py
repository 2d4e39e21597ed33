"""What the programs of this folder have in common: complaints in one line, exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress

WRONG_USE, INTERRUPTED = 2, 130


class Complaint(Exception):
    """What the user has to put right, in one line."""


def run(program: str, work: Callable[[], int]) -> int:
    """Do the work; the exit code: the work's own, 2 for wrong use, 130 after Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        return work()
    except Complaint as complaint:
        print(f"{program}: {complaint}", file=sys.stderr)
        return WRONG_USE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
