"""What the commands share: what a command is, its exit codes, and how arguments are read."""

import argparse
import signal
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

from .. import runtime

FAILED, WRONG_USE, INTERRUPTED = 1, 2, 130

LOST_OUTPUT = "the output cannot be written"


class Complaint(Exception):
    """What the user has to put right, in one line."""


class Command(NamedTuple):
    """A command: its texts, its arguments, and what it does."""

    name: str
    summary: str
    """Its line in ``headway --help``."""
    description: str
    examples: tuple[str, ...]
    failure: str
    """What exit code 1 means beside a lost output."""
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int | None]
    """Returns the exit code; None is 0."""


class Parser(argparse.ArgumentParser):
    """A parser that complains in one line."""

    def error(self, message: str) -> NoReturn:
        raise Complaint(f"{message}; see {self.prog} --help")


def add_command(commands: Any, command: Command) -> None:
    """Add the command's parser to those of the others."""
    parser = commands.add_parser(
        command.name,
        help=command.summary,
        description=textwrap.fill(command.description, 79),
        epilog=_epilog(command),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.arguments(parser)
    parser.set_defaults(run=command.run)


def _epilog(command: Command) -> str:
    failure = f"{command.failure}, or {LOST_OUTPUT}" if command.failure else LOST_OUTPUT
    codes = {0: "done", FAILED: failure, WRONG_USE: "wrong use", INTERRUPTED: "Ctrl-C"}
    lines = ["examples:", *(f"  {example}" for example in command.examples), "", "exit codes:"]
    return "\n".join([*lines, *(f"  {code:<5}{meaning}" for code, meaning in codes.items())])


def at_least(lowest: int, most: int | None = None) -> Callable[[str], int]:
    """Reads a whole number of at least ``lowest``, and at most ``most`` where there is one."""
    wanted = f"at least {lowest}" if most is None else f"{lowest} to {most:,}"

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = lowest - 1
        if number < lowest or (most is not None and number > most):
            raise argparse.ArgumentTypeError(f"expected a whole number, {wanted}, got {text!r}")
        return number

    return read


def settings() -> dict[str, Any]:
    """What ``info`` tells; a wrong setting in the environment is the user's to put right."""
    try:
        return runtime.info()
    except ValueError as error:
        raise Complaint(str(error)) from None


@contextmanager
def ctrl_c_held() -> Iterator[None]:
    """Let Ctrl-C wait for the end of the block: for code of others that would lose it."""
    if threading.current_thread() is not threading.main_thread():  # it gets no signals
        yield
        return
    came = []
    before = signal.signal(signal.SIGINT, lambda *_: came.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


def load_generators() -> None:
    """Import NumPy's generators, before anything is printed.

    NumPy imports them at their first use, and an interruption in the midst of that import is lost:
    the command would go on.
    """
    with ctrl_c_held():
        import_module("numpy.random")
