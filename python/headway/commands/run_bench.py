"""``headway bench``: headway and what else is installed, timed in turns."""

import argparse
import json
from typing import Any

from ..benchmark.peers import PEERS
from ..benchmark.rows import DTYPES, ROWS, numpy_dtype
from ..text_table import TextTable
from ..timing.machine import usable_cpus
from .common import FAILED, Command, Complaint, at_least, load_generators, settings
from .screen import progress, say, show


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rows",
        nargs="+",
        choices=tuple(ROWS),
        metavar="ROW",
        default=list(ROWS),
        help=f"only these of {', '.join(ROWS)}",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=tuple(PEERS),
        metavar="WHO",
        default=list(PEERS),
        help=f"only these of {', '.join(PEERS)}; headway always",
    )
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="default: float32")
    parser.add_argument(
        "--threads",
        type=at_least(1, usable_cpus()),
        metavar="N",
        help="of everyone, at most the usable CPUs (default: as headway uses)",
    )
    parser.add_argument(
        "--rounds", type=at_least(1, 1000), default=3, metavar="N", help="turns (default: 3)"
    )
    parser.add_argument("--json", action="store_true", help="as one JSON object, in seconds")


def _run(arguments: argparse.Namespace) -> int:
    from ..benchmark.measuring import measure, steps_of_row  # starts slower than any other command

    about = settings()
    load_generators()
    try:
        numpy_dtype(arguments.dtype)
    except ImportError as error:
        raise Complaint(f"--dtype {arguments.dtype}: {error}") from None
    rows = [
        row._replace(dtype=arguments.dtype) for row in ROWS.values() if row.name in arguments.rows
    ]
    peers = [name for name in PEERS if name in arguments.only or name == "headway"]
    threads = arguments.threads or min(about["num_threads"], usable_cpus())
    each = steps_of_row(peers, arguments.rounds)
    with progress(each * len(rows)) as bar:
        taken = 0

        def step(row: int, what: str) -> None:
            nonlocal taken
            taken = max(taken, each * row)
            bar.reach(taken)
            bar.begin(what)
            taken += 1

        record = measure(rows, peers, threads, arguments.rounds, step)
    if arguments.json:
        say(json.dumps(record, indent=2))
    else:
        _tell(record, peers)
    own = [found["entries"]["headway"] for found in record["rows"].values()]
    return FAILED if any("skipped" in entry for entry in own) else 0


def _tell(record: dict[str, Any], peers: list[str]) -> None:
    head, records = record["head"], record["rows"].values()
    versions = ", ".join(f"{name} {version}" for name, version in head["versions"].items())
    threads = f"{head['threads']} thread{'s' * (head['threads'] > 1)}"
    say(f"{head['machine']['cpu']}, {head['isa']}, {threads} each")
    say(f"{versions}\n")
    say("Milliseconds of a call, best (median) of turns; everyone's result was checked first.\n")
    header = ["row", *(PEERS[name].title for name in peers), "ahead"]
    show(TextTable(header, [_cells(found, peers) for found in records]))
    say("")
    for found in records:
        say(f"{found['row']['name']:<13}{found['row']['title']}, {found['row']['dtype']}")
    for line in _reasons(record, peers):
        say(line)
    say("ahead: the best of the others over headway. Thorough: bench/ of the sources.")


def _cells(found: dict[str, Any], peers: list[str]) -> list[str]:
    """Name, times, and the best rival's time over headway's."""
    best = {name: found["entries"][name].get("wall_min") for name in peers}
    cells = [found["row"]["name"]]
    for name in peers:
        entry = found["entries"][name]
        timed = "wall_min" in entry
        cells.append(f"{_ms(entry['wall_min'])} ({_ms(entry['wall_median'])})" if timed else "-")
    own = best.pop("headway")
    rivals = [seconds for seconds in best.values() if seconds]
    return [*cells, f"{min(rivals) / own:.2f}" if own and rivals else "-"]


def _ms(seconds: float) -> str:
    ms = seconds * 1e3
    return f"{ms:.3g}" if ms < 100 else f"{ms:,.0f}"


def _reasons(record: dict[str, Any], peers: list[str]) -> list[str]:
    """Who was not timed, why and where; one line a reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for row, each in record["rows"].items():
        for name in peers:
            reason = each["entries"][name].get("skipped")
            if reason is not None:
                found.setdefault((name, reason), []).append(row)
    every = len(record["rows"])
    return [
        f"{PEERS[name].title}: {reason}" + (f" ({', '.join(rows)})" if len(rows) < every else "")
        for (name, reason), rows in found.items()
    ]


COMMAND = Command(
    name="bench",
    summary="time headway beside NumPy, PyTorch and ONNX Runtime, as far as they are installed",
    description="Time a few problems with headway, NumPy, PyTorch and ONNX Runtime, as far as they "
    "are installed: each in a process of its own, checked first, then in turns. It takes about a "
    "minute; other work on the machine spoils the figures.",
    examples=(
        "headway bench",
        "headway bench --rows prefill-1024 layer --only numpy --threads 1",
        "headway bench --dtype bfloat16 --json",
    ),
    failure="a result of headway is wrong or missing",
    arguments=_arguments,
    run=_run,
)
