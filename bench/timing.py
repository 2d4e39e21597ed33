"""Interleaved timing: every contestant once a round, in turn, so that a slow minute hits all."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

PAUSE_SECONDS = 0.05
"""Rest before each turn: worker threads of the contestant before may still be spinning."""

TURN_SECONDS = 0.1
MAX_REPEATS = 50


@dataclass
class Samples:
    """Wall seconds of every timed call, and CPU seconds (all threads) per call of every turn."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, float | int]:
        """Best and median wall time, median CPU time, number of timed calls."""
        return {
            "wall_min": min(self.wall),
            "wall_median": statistics.median(self.wall),
            "cpu_median": statistics.median(self.cpu),
            "calls": len(self.wall),
        }


def take_turn(call: Callable[[], Any], samples: Samples) -> None:
    """One untimed call to wake the threads, then as many timed ones as fit into a short turn."""
    time.sleep(PAUSE_SECONDS)
    before = time.perf_counter()
    call()
    once = time.perf_counter() - before
    repeats = max(1, min(MAX_REPEATS, int(TURN_SECONDS / max(once, 1e-9))))
    cpu = time.process_time()
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        samples.wall.append(time.perf_counter() - start)
    samples.cpu.append((time.process_time() - cpu) / repeats)


def interleave(
    calls: Mapping[str, Callable[[], Any]], rounds: int, progress: Callable[[str], Any]
) -> dict[str, Samples]:
    """Time all calls in `rounds` rounds A B C A B C ...; `progress` hears of every turn's end."""
    samples = {name: Samples() for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            take_turn(call, samples[name])
            progress(name)
    return samples
