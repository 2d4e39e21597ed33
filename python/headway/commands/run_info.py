"""``headway info``: version, instruction sets, threads and build."""

import argparse
import json

from .common import Command, settings
from .screen import say


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as one JSON object")


def _run(arguments: argparse.Namespace) -> None:
    about = settings()
    if arguments.json:
        say(json.dumps(about, indent=2))
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
    say("\n".join(f"{name:<{width}}{value}" for name, value in rows.items()))


COMMAND = Command(
    name="info",
    summary="tell version, instruction sets, threads and build",
    description="Tell version, instruction sets, threads and build.",
    examples=("headway info", "HEADWAY_ISA=avx2 headway info --json"),
    failure="",
    arguments=_arguments,
    run=_run,
)
