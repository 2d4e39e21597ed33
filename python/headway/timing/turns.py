"""Calls are timed in turns: how long a turn is, who gets one, and what comes out of them."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

BURST_SECONDS = 0.12
"""A turn, where calls are short."""
LONGEST_BURST = 0.6
"""A turn grows up to this for the sake of `CALLS` calls in all."""
CALLS = 30
SAMPLE_SECONDS = 20e-6
"""Shorter calls are timed several at a time."""
TOO_SLOW = 3.0
"""Who takes so many times the best's time in its first turns gets no more of them."""
CALL_LIMIT = 60.0
"""Who takes longer for one call does not take part."""
REST = 0.05
"""Seconds until the threads of a call have come to rest after it."""


@dataclass
class Timed:
    """A contestant, and what its turns brought."""

    name: str
    estimate: float
    """Seconds of a call, as far as they are known."""
    entry: dict[str, Any]
    """What is known about it; "skipped" tells why it gets no turn."""
    rest: float = REST
    rival: bool = True
    """Whether it may be too slow to go on."""
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    calls: int = 0
    bursts: int = 0

    @property
    def best(self) -> float:
        """Seconds of its quickest call."""
        return min(self.wall, default=self.estimate)


class Ask(Protocol):
    """Asks a contestant for a burst with these arguments, and waits for so many seconds."""

    def __call__(self, timed: Timed, seconds: float, /, **burst: Any) -> dict[str, Any]: ...


def turn(estimate: float, rounds: int) -> tuple[int, int, int]:
    """(samples, calls in a sample, untimed calls before) of one burst."""
    inner = max(1, math.ceil(SAMPLE_SECONDS / estimate))
    wanted = BURST_SECONDS / (estimate * inner)
    enough = min(CALLS / rounds, LONGEST_BURST / (estimate * inner))
    count = max(1, min(400, int(max(wanted, math.ceil(enough)))))
    return count, inner, int(estimate < 0.4)


def estimated(
    timed: Timed, first: float, ask: Ask, *, compiles: bool = False
) -> tuple[float, str | None]:
    """Seconds of a call, best of a few after the first; and why it is not timed, if it is not.

    The first may have had to warm up; where it was long, it has to do, unless it had to compile.
    """
    found = first
    if found < 2 or compiles:
        more = {"count": 2 if found < 0.2 else 1, "inner": 1, "wake": 0, "length": 0.05}
        again = ask(timed, CALL_LIMIT + 10, **more)
        if "skipped" in again:
            return found, str(again["skipped"])
        found = min(again["wall"])
    slow = f"{found:.0f} s a call, over {CALL_LIMIT:.0f} s" if found > CALL_LIMIT else None
    return max(found, 1e-7), slow


def take_turns(ready: Sequence[Timed], rounds: int, ask: Ask) -> None:
    """Bursts in turn, round after round; far slower ones leave after their first turns."""
    time.sleep(max((each.rest for each in ready), default=0.0))
    for number in range(rounds):
        best = min((each.best for each in ready if each.wall), default=0.0)
        for each in ready:
            enough = 2 if each.estimate < 0.2 else 1
            slow = each.rival and each.best > TOO_SLOW * best > 0
            if "skipped" in each.entry or (slow and number >= enough):
                continue
            count, inner, wake = turn(each.estimate, rounds)
            more = {"count": count, "inner": inner, "wake": wake, "length": BURST_SECONDS}
            said = ask(each, (count * inner + wake) * each.estimate * 10 + CALL_LIMIT, **more)
            time.sleep(each.rest)
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


def summary(timed: Timed, flops: int, threads: int) -> dict[str, Any]:
    """Best and median wall time, CPU time (all threads) per call of the best and median burst.

    Only why it was skipped, where it was.
    """
    if not timed.wall:
        return {"skipped": timed.entry["skipped"]}
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
