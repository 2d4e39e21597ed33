"""Measures one row: everyone is checked, then timed in turns, the peaks before and after."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradient_reference
import numpy as np
from inputs import TOLERANCES, expected, make_inputs
from processes import Processes
from rivals import Contestant
from row import GRADIENT_KINDS, Row

from headway.timing.turns import Ask, Timed, estimated, summary, take_turns

ROUNDS, LONG_ROUNDS = 5, 3
SETUP_LIMIT = 120.0
PEAK_SECONDS = 0.1


class Measurer:
    """Measures rows with the workers of `processes`; scratch files go to `folder`."""

    def __init__(self, processes: Processes, folder: Path, rounds: int | None = None) -> None:
        self.processes, self.folder, self.rounds = processes, folder, rounds

    def ask(self, contestant: Contestant, do: str, seconds: float, **more: Any) -> dict[str, Any]:
        """What the contestant's worker says; why not, as "skipped", where it says nothing good."""
        return self.processes.ask(
            contestant.process,
            contestant.family,
            contestant.threads,
            do,
            seconds,
            contestant=contestant.name,
            **more,
        )

    def row(self, row: Row, contestants: Sequence[Contestant]) -> dict[str, Any]:
        """The record of the row: an entry for everyone, and the peaks measured beside them."""
        start = time.monotonic()
        peaks = self.peaks(row, contestants)
        known = {contestant.name: contestant for contestant in contestants}

        def ask(timed: Timed, seconds: float, /, **burst: Any) -> dict[str, Any]:
            return self.ask(known[timed.name], "burst", seconds, **burst)

        entries, ready = self.prepared(row, contestants, ask)
        take_turns(ready, self.rounds or (LONG_ROUNDS if row.long else ROUNDS), ask)
        for each in ready:
            contestant = known[each.name]
            work, threads = self.work(row, contestant), self.threads(contestant)
            entries[each.name] = summary(each, work, threads)
        for name, value in self.peaks(row, contestants).items():
            peaks[name] = max(peaks.get(name, 0.0), value)
        self.processes.drop_all()
        return {
            "row": row.to_json(),
            "flops": row.flops,
            "peaks": peaks,
            "load": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
            "seconds": round(time.monotonic() - start, 1),
            "entries": {c.name: entries[c.name] for c in contestants},
        }

    def work(self, row: Row, contestant: Contestant) -> int:
        """The row's work, or that of the part of it that the contestant does."""
        if contestant.name == "headway-plain":
            return row.plain_flops
        if contestant.name == "headway-attention":
            return row.attention_flops
        return row.flops - (row.attention_flops if contestant.name == "headway-products" else 0)

    def threads(self, contestant: Contestant) -> int:
        return int(self.processes.hellos[contestant.process]["threads"])

    def peaks(self, row: Row, contestants: Sequence[Contestant]) -> dict[str, float]:
        """ "isa/threads/kind" -> GFLOP/s, for every headway that takes part."""
        found: dict[str, float] = {}
        kinds = ("float64",) if row.dtype == "float64" else ("float32", "bfloat16")
        for contestant in contestants:
            if contestant.family != "headway":
                continue
            process = self.processes.get(contestant.process, contestant.family, contestant.threads)
            hello = self.processes.hellos[contestant.process]
            for kind in kinds if process else ():
                name = f"{row.isa or hello['isa']}/{hello['threads']}/{kind}"
                if name in found:
                    continue
                more = {"kind": kind, "isa": row.isa, "length": PEAK_SECONDS}
                value = self.ask(contestant, "peak", 30, **more).get("gflops")
                if value is not None:
                    found[name] = value
        return found

    def prepared(
        self, row: Row, contestants: Sequence[Contestant], ask: Ask
    ) -> tuple[dict[str, Any], list[Timed]]:
        """Why some cannot take part; and who can, checked, with an estimate of a call's time."""
        reference = self.folder / "reference.npz"
        known = gradient_reference.expected if row.kind in GRADIENT_KINDS else expected
        rows, wanted = known(row, make_inputs(row))
        np.savez(reference, rows=rows, wanted=wanted)
        entries: dict[str, Any] = {}
        ready: list[Timed] = []
        for contestant in contestants:
            if row.dtype not in contestant.dtypes:
                entries[contestant.name] = {"skipped": f"no {row.dtype}"}
                continue
            more = {"row": row.to_json(), "reference": str(reference)}
            said = self.ask(contestant, "prepare", SETUP_LIMIT, **more)
            reason = said.get("skipped") or refusal(row, said)
            if reason:
                entries[contestant.name] = {"skipped": reason}
                continue
            facts = {"error": said["error"], "note": said["note"], **said["facts"]}
            found = Timed(contestant.name, 0.0, facts, contestant.rest, contestant.rival)
            found.estimate, reason = estimated(
                found, float(said["first"]), ask, compiles=contestant.compiles
            )
            if reason:
                entries[contestant.name] = {"skipped": reason}
                continue
            ready.append(found)
        reference.unlink()
        return entries, ready


def refusal(row: Row, said: dict[str, Any]) -> str | None:
    """Why a checked contestant is not timed: a wrong result; None where it is right."""
    error = said["error"]
    if error is not None and not error <= TOLERANCES[row.dtype]:
        return f"wrong: differs by {error:.1e}, allowed is {TOLERANCES[row.dtype]:.0e}"
    return None
