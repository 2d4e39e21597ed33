"""The rows, one after another: every peer is checked, then all are timed in turns."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..timing import machine
from ..timing.processes import WorkerProcess, Workers, environment
from ..timing.turns import Timed, estimated, summary, take_turns
from .peers import PEERS
from .rows import TOLERANCES, Row, expected

SETUP_LIMIT = 120.0
PACKAGE = Path(__file__).parents[1]

START = """
import importlib, json, sys, types
path, package, peer = json.loads(sys.argv[1])
sys.path[:] = path
if package:
    sys.modules["headway"] = types.ModuleType("headway")
    sys.modules["headway"].__path__ = [package]
importlib.import_module("headway.benchmark.peers").main(peer)
"""
"""The program of a peer's process: it finds what this process finds, headway itself where asked."""

Step = Callable[[int, str], None]


class Processes(Workers):
    """A process for each peer."""

    def start(self, family: str, threads: int, log: Path) -> WorkerProcess:
        """The process of this peer."""
        package = str(PACKAGE) if PEERS[family].bare else None
        command = [sys.executable, "-c", START, json.dumps([sys.path, package, family])]
        return WorkerProcess(command, environment(threads, {}), log)


def measure(
    rows: Sequence[Row], peers: Sequence[str], threads: int, rounds: int, step: Step
) -> dict[str, Any]:
    """Time these peers on these rows.

    Parameters
    ----------
    rows : sequence of Row
        The problems.
    peers : sequence of str
        Names of ``PEERS``.
    threads : int
        Of every peer.
    rounds : int
        Turns of every peer on every row.
    step : callable
        Called before each step with the number of the row and a few words, at most
        :func:`steps_of_row` times a row.

    Returns
    -------
    dict
        "head": the machine, versions, threads and instruction set; "rows": by name, what was
        computed, its floating point operations, and for each peer seconds or why there are none.
    """
    with tempfile.TemporaryDirectory(prefix="headway-bench-") as folder:
        processes = Processes(threads, Path(folder))
        try:
            records = {
                row.name: _row(row, peers, processes, rounds, partial(step, number))
                for number, row in enumerate(rows)
            }
            versions: dict[str, str] = {}
            for hello in processes.hellos.values():
                versions |= hello.get("versions", {})
            head = {
                "when": machine.now(),
                **machine.describe(versions),
                "threads": threads,
                "isa": processes.hellos.get("headway", {}).get("isa"),
                "rounds": rounds,
            }
            return {"schema": 1, "head": head, "rows": records}
        finally:
            processes.close()


def steps_of_row(peers: Sequence[str], rounds: int) -> int:
    """Everyone is checked, estimated and takes its turns."""
    return (2 + rounds) * len(peers)


def _row(
    row: Row,
    peers: Sequence[str],
    processes: Processes,
    rounds: int,
    step: Callable[[str], None],
) -> dict[str, Any]:
    reference = processes.folder / "reference.npz"
    np.savez(reference, wanted=expected(row))
    entries: dict[str, dict[str, Any]] = {}
    ready: list[Timed] = []

    def ask(timed: Timed, seconds: float, /, **burst: Any) -> dict[str, Any]:
        step(f"{row.name}, {PEERS[timed.name].title}")
        given = {"contestant": timed.name, **burst}
        return processes.ask(timed.name, timed.name, None, "burst", seconds, **given)

    for name in peers:
        step(f"{row.name}, {PEERS[name].title}")
        found = Timed(name, 0.0, {}, PEERS[name].rest, rival=name != "headway")
        given = {"contestant": name, "row": list(row), "reference": str(reference)}
        said = processes.ask(name, name, None, "prepare", SETUP_LIMIT, **given)
        reason = said.get("skipped") or _refusal(row, said["error"])
        if reason is None:
            found.entry["error"] = said["error"]
            found.estimate, reason = estimated(found, float(said["first"]), ask)
        if reason is None:
            ready.append(found)
        else:
            entries[name] = {"skipped": reason}
    take_turns(ready, rounds, ask)
    for each in ready:
        entries[each.name] = summary(each, row.flops, int(processes.hellos[each.name]["threads"]))
    processes.drop_all()
    return {
        "row": row._asdict(),
        "flops": row.flops,
        "entries": {name: entries[name] for name in peers},
    }


def _refusal(row: Row, error: float) -> str | None:
    """Why a wrong result is not timed; None where it is right."""
    if error <= TOLERANCES[row.dtype]:
        return None
    return f"wrong: differs by {error:.1e}, allowed is {TOLERANCES[row.dtype]:.0e}"
