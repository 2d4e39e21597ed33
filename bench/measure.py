"""Measures one row: everyone is checked, then timed in turns, the peaks before and after."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from inputs import TOLERANCES, expected, make_inputs
from processes import Processes, WorkerGone
from rivals import Contestant
from rows import Row

ROUNDS, LONG_ROUNDS = 5, 3
BURST_SECONDS = 0.12
"""A contestant's turn, where calls are short."""
LONGEST_BURST = 0.6
"""A turn grows up to this for the sake of `CALLS` calls in all."""
CALLS = 30
SAMPLE_SECONDS = 20e-6
"""Shorter calls are timed several at a time."""
TOO_SLOW = 3.0
"""Who takes so many times the best's time in its first turns gets no more of them."""
CALL_LIMIT = 60.0
"""Who takes longer for one call does not take part."""
SETUP_LIMIT = 120.0
PEAK_SECONDS = 0.1


@dataclass
class Timed:
    """What a contestant's bursts brought."""

    contestant: Contestant
    estimate: float
    entry: dict[str, Any]
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    calls: int = 0
    bursts: int = 0

    @property
    def best(self) -> float:
        return min(self.wall, default=self.estimate)


def turn(estimate: float, rounds: int) -> tuple[int, int, int]:
    """(samples, calls in a sample, untimed calls before) of one burst."""
    inner = max(1, math.ceil(SAMPLE_SECONDS / estimate))
    wanted = BURST_SECONDS / (estimate * inner)
    enough = min(CALLS / rounds, LONGEST_BURST / (estimate * inner))
    count = max(1, min(400, int(max(wanted, math.ceil(enough)))))
    return count, inner, int(estimate < 0.4)


def summary(timed: Timed, flops: int, threads: int) -> dict[str, Any]:
    """Best and median wall time, CPU time (all threads) per call of the best and median burst."""
    best = min(timed.wall)
    return {
        **timed.entry,
        "wall_min": best,
        "wall_median": statistics.median(timed.wall),
        "cpu_min": min(timed.cpu, default=None),
        "cpu_median": statistics.median(timed.cpu) if timed.cpu else None,
        "calls": timed.calls,
        "bursts": timed.bursts,
        "threads": threads,
        "gflops": flops / best / 1e9,
    }


class Measurer:
    """Measures rows with the workers of `processes`; scratch files go to `folder`."""

    def __init__(self, processes: Processes, folder: Path, rounds: int | None = None) -> None:
        self.processes, self.folder, self.rounds = processes, folder, rounds

    def ask(self, contestant: Contestant, do: str, seconds: float, **more: Any) -> dict[str, Any]:
        """What the contestant's worker says; why not, as "skipped", where it says nothing good."""
        name = contestant.process
        process = self.processes.get(name, contestant.family, contestant.threads)
        if process is None:
            hello = self.processes.hellos[name]
            return {"skipped": hello.get("unsupported") or hello["failed"]}
        try:
            said = process.ask(do, seconds, contestant=contestant.name, **more)
        except WorkerGone as gone:
            self.processes.forget(name)
            return {"skipped": str(gone)}
        reason = said.get("unsupported") or said.get("failed")
        return {"skipped": reason} if reason else said

    def row(self, row: Row, contestants: Sequence[Contestant]) -> dict[str, Any]:
        """The record of the row: an entry for everyone, and the peaks measured beside them."""
        start = time.monotonic()
        peaks = self.peaks(row, contestants)
        entries, ready = self.prepared(row, contestants)
        self.timed(row, ready)
        for each in ready:
            if each.wall:
                entries[each.contestant.name] = summary(
                    each, self.work(row, each.contestant), self.threads(each.contestant)
                )
            else:
                entries[each.contestant.name] = {"skipped": each.entry["skipped"]}
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
        self, row: Row, contestants: Sequence[Contestant]
    ) -> tuple[dict[str, Any], list[Timed]]:
        """Why some cannot take part; and who can, checked, with an estimate of a call's time."""
        reference = self.folder / "reference.npz"
        rows, wanted = expected(row, make_inputs(row))
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
            estimate, reason = self.estimate(contestant, said)
            if reason:
                entries[contestant.name] = {"skipped": reason}
                continue
            known = {"error": said["error"], "note": said["note"], **said["facts"]}
            ready.append(Timed(contestant, estimate, known))
        reference.unlink()
        return entries, ready

    def estimate(self, contestant: Contestant, said: dict[str, Any]) -> tuple[float, str | None]:
        """Seconds of a call, best of a few after the first; and why it is not timed, if it is not.

        The first may have had to warm up; where it was long, it has to do.
        """
        found = float(said["first"])
        if found < 2 or contestant.compiles:
            more = {"count": 2 if found < 0.2 else 1, "inner": 1, "wake": 0, "length": 0.05}
            again = self.ask(contestant, "burst", CALL_LIMIT + 10, **more)
            if "skipped" in again:
                return found, str(again["skipped"])
            found = min(again["wall"])
        slow = f"{found:.0f} s a call, over {CALL_LIMIT:.0f} s" if found > CALL_LIMIT else None
        return max(found, 1e-7), slow

    def timed(self, row: Row, ready: Sequence[Timed]) -> None:
        """Bursts in turn, round after round; far slower ones leave after their first turns."""
        rounds = self.rounds or (LONG_ROUNDS if row.long else ROUNDS)
        time.sleep(max((each.contestant.rest for each in ready), default=0.0))
        for number in range(rounds):
            best = min((each.best for each in ready if each.wall), default=0.0)
            for each in ready:
                enough = 2 if each.estimate < 0.2 else 1
                slow = each.contestant.rival and each.best > TOO_SLOW * best > 0
                if "skipped" in each.entry or (slow and number >= enough):
                    continue
                count, inner, wake = turn(each.estimate, rounds)
                more = {"count": count, "inner": inner, "wake": wake, "length": BURST_SECONDS}
                limit = (count * inner + wake) * each.estimate * 10 + CALL_LIMIT
                said = self.ask(each.contestant, "burst", limit, **more)
                time.sleep(each.contestant.rest)
                if "skipped" in said:
                    each.entry |= said
                    continue
                each.wall += said["wall"]
                each.cpu += [said["cpu"]] if said["cpu"] is not None else []
                each.calls += said["calls"]
                each.bursts += 1
                each.estimate = min(each.estimate, min(said["wall"]))
        for each in ready:
            if "skipped" in each.entry:
                each.wall.clear()


def refusal(row: Row, said: dict[str, Any]) -> str | None:
    """Why a checked contestant is not timed: a wrong result; None where it is right."""
    error = said["error"]
    if error is not None and not error <= TOLERANCES[row.dtype]:
        return f"wrong: differs by {error:.1e}, allowed is {TOLERANCES[row.dtype]:.0e}"
    return None
