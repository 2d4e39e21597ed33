"""The command line: ``headway`` and ``python -m headway``."""

import argparse
from collections.abc import Sequence

from ._version import __version__
from .commands import run_bench, run_check, run_cost, run_demo, run_info, run_plan, run_trace
from .commands.common import FAILED, INTERRUPTED, WRONG_USE, Complaint, Parser, add_command
from .commands.common import LOST_OUTPUT as LOST
from .commands.screen import OutputLost, complain, drop_output, flush, say

COMMANDS = (
    run_demo.COMMAND,
    run_info.COMMAND,
    run_trace.COMMAND,
    run_cost.COMMAND,
    run_plan.COMMAND,
    run_bench.COMMAND,
    run_check.COMMAND,
)
"""In the order of the help; each is a file of ``commands/``."""


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
            flush()
    except OutputLost as lost:
        drop_output()
        if isinstance(lost.__cause__, BrokenPipeError):
            return 0
        return complain(f"{LOST}: {lost.__cause__}", FAILED)
    except Complaint as complaint:
        return complain(str(complaint), WRONG_USE)
    except KeyboardInterrupt:
        return complain("interrupted", INTERRUPTED)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="headway",
        description="Causal multi-head attention on the CPU, for NumPy arrays.",
        epilog="headway COMMAND --help has examples and exit codes.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"headway {__version__}")
    parser.set_defaults(run=lambda _: say(parser.format_help().rstrip()))
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in COMMANDS:
        add_command(commands, command)
    return parser


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    try:
        return _parser().parse_args(argv)
    except OSError as error:  # argparse prints help and version by itself
        raise OutputLost from error


def _run(arguments: argparse.Namespace) -> int:
    code: int | None = arguments.run(arguments)
    return code or 0
