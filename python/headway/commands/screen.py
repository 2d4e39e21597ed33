"""What is printed, and what becomes of it when nobody reads it."""

import os
import sys
from contextlib import suppress


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
