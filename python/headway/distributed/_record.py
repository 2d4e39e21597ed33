"""What a ring call did when, for pictures and measurements."""

from __future__ import annotations

import time
from typing import Any, NamedTuple


class RingStep(NamedTuple):
    """One step of one rank.

    Attributes
    ----------
    step : int
        0 for the rank's own block, t for the block of rank ``rank - t``.
    owner : int or None
        Whose block it worked on; None: it needed none in this step.
    started : float
        Seconds of ``time.monotonic()``, which processes of one machine share: the messages for the
        next step were handed over and the kernel began.
    computed : float
        The kernel was done and its result joined to the others.
    arrived : float
        The messages had arrived: ``arrived - computed`` is what the rank waited for.
    kernel_cpu : float
        Seconds of CPU time of the calling thread within the kernel: all of it where headway has one
        thread.
    join_cpu : float
        The same for joining the results.
    received : int
        Bytes of keys, values and gradients that came in during the step.
    """

    step: int
    owner: int | None
    started: float
    computed: float
    arrived: float
    kernel_cpu: float
    join_cpu: float
    received: int


class Clock:
    """Takes the times of the steps; without a record it does nothing."""

    def __init__(self, record: list[RingStep] | None) -> None:
        self._record = record
        self._kernel = self._join = self._started = self._computed = 0.0
        self._last = 0.0

    def start(self) -> None:
        self._kernel = self._join = 0.0
        self._started = time.monotonic()
        self._last = time.thread_time()

    def kernel(self) -> None:
        """What was done since the last mark was the kernel's."""
        now = time.thread_time()
        self._kernel += now - self._last
        self._last = now

    def join(self) -> None:
        """What was done since the last mark was the joining."""
        now = time.thread_time()
        self._join += now - self._last
        self._last = now

    def computed(self) -> None:
        self._computed = time.monotonic()

    def arrived(self, step: int, owner: int | None, received: int) -> None:
        if self._record is not None:
            times = self._started, self._computed, time.monotonic(), self._kernel, self._join
            self._record.append(RingStep(step, owner, *times, received))


def check_record(record: Any) -> None:
    """``record`` is a list, or None."""
    if record is not None and not isinstance(record, list):
        raise TypeError(
            f"record: expected a list or None, got {type(record).__name__}; pass record=[]"
        )
