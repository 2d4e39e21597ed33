"""The command line: ``headway`` and ``python -m headway``."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from . import runtime
from ._version import __version__

FAILED, WRONG_USE, INTERRUPTED = 1, 2, 130


class Complaint(Exception):
    """What the user has to put right, in one line."""


class OutputLost(Exception):
    """What is printed cannot be written, and nobody is left to read it or the disk is full."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments; default those of the process.

    Returns
    -------
    int
        Exit code: 0, also if the reader of the output has gone away; 1 if a result is wrong or the
        output cannot be written; 2 for wrong use; 130 after Ctrl-C.
    """
    try:
        try:
            return _run(_parse(argv))
        finally:
            _flush()
    except OutputLost as lost:
        _drop_output()
        if isinstance(lost.__cause__, BrokenPipeError):
            return 0
        return _complain(f"the output cannot be written: {lost.__cause__}", FAILED)
    except Complaint as complaint:
        return _complain(str(complaint), WRONG_USE)
    except KeyboardInterrupt:
        return _complain("interrupted", INTERRUPTED)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headway",
        description="Causal multi-head attention on the CPU, for NumPy arrays.",
    )
    parser.add_argument("--version", action="version", version=f"headway {__version__}")
    parser.set_defaults(run=lambda _: _say(parser.format_help().rstrip()))
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    demo = commands.add_parser(
        "demo",
        help="walk a text through a two-head module, then time a layer of real size",
        description="Walk a text through a two-head attention module and print every object on "
        "the way; compare both stages with plain NumPy; then time a layer of real size.",
    )
    demo.add_argument(
        "text",
        metavar="TEXT_FILE",
        nargs="?",
        help="a text file in UTF-8 (default: a text about attention that comes with headway)",
    )
    demo.set_defaults(run=_demo)

    info = commands.add_parser(
        "info",
        help="tell version, instruction sets, threads and build",
        description="Tell version, instruction sets, threads and build.",
    )
    info.add_argument("--json", action="store_true", help="as one JSON object")
    info.set_defaults(run=_info)
    return parser


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    try:
        return _parser().parse_args(argv)
    except OSError as error:  # argparse prints help and usage by itself
        raise OutputLost from error


def _run(arguments: argparse.Namespace) -> int:
    code: int | None = arguments.run(arguments)
    return code or 0


# Commands -----------------------------------------------------------------------------------------


def _info(arguments: argparse.Namespace) -> None:
    about = _settings()
    if arguments.json:
        _say(json.dumps(about, indent=2))
        return
    available = ", ".join(about["available_isas"])
    rows = {
        "headway": about["version"],
        "instruction set": f"{about['isa']} (available: {available})",
        "threads": f"{about['num_threads']} ({about['threads_source']})",
        **about["build"],
        "NumPy": about["numpy"],
        "Python": f"{about['python']} on {about['machine']}",
    }
    width = max(map(len, rows)) + 2
    _say("\n".join(f"{name:<{width}}{value}" for name, value in rows.items()))


def _demo(arguments: argparse.Namespace) -> int:
    from . import demo_layer, demo_text, demo_walk

    try:
        text = demo_text.read_text(arguments.text)
    except demo_text.TextError as error:
        raise Complaint(str(error)) from None
    _settings()
    passed = True
    for step in demo_walk.walk(text, _encoding()):
        passed = passed and step.passed
        _say("\n".join([*step.lines, ""]))
    step = demo_layer.real_size()
    _say("\n".join(step.lines))
    return 0 if passed and step.passed else FAILED


def _settings() -> dict[str, Any]:
    """What ``info`` tells; a wrong setting in the environment is the user's to put right."""
    try:
        return runtime.info()
    except ValueError as error:
        raise Complaint(str(error)) from None


# Output -------------------------------------------------------------------------------------------


def _encoding() -> str:
    return getattr(sys.stdout, "encoding", None) or "ascii"


def _say(text: str) -> None:
    """Print to stdout; a character that its encoding does not have becomes "?"."""
    encoding = _encoding()
    try:
        print(text.encode(encoding, "replace").decode(encoding), flush=True)
    except OSError as error:
        raise OutputLost from error


def _flush() -> None:
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        raise OutputLost from error


def _drop_output() -> None:
    """Let the interpreter write what is left in its buffers to nowhere when it ends."""
    with suppress(OSError, ValueError):  # a stdout that is no file has nothing to drop
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _complain(text: str, code: int) -> int:
    """One line on stderr, if there is anyone to read it."""
    with suppress(OSError):
        print(f"headway: {text}", file=sys.stderr, flush=True)
    return code
