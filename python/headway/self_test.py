"""The self-test of an installation: every instruction set and dtype against the reference."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from . import runtime
from .comparison import relative_error
from .self_test_inputs import Problem, Results


class Check(NamedTuple):
    """One problem on one instruction set with so many threads."""

    isa: str
    dtype: str
    threads: int
    name: str
    share: float
    """The error over the error allowed."""
    trouble: str | None
    """What is wrong; None where all is right."""

    @property
    def line(self) -> str:
        """One line about it."""
        threads = f"{self.threads} thread{'s' * (self.threads > 1)}"
        return f"{self.isa} {self.dtype}, {threads}, {self.name}: {self.trouble or 'ok'}"


def check(
    isa: str, dtype: str, cases: Sequence[Problem], thread_counts: Sequence[int]
) -> list[Check]:
    """The problems of one dtype on one instruction set, with each number of threads.

    Results have the same bits with any number of threads. Instruction set and number of threads are
    those from before afterwards.
    """
    before = runtime.isa(), runtime.get_num_threads()
    runtime.set_isa(isa)
    try:
        return [found for case in cases for found in _with_threads(isa, dtype, case, thread_counts)]
    finally:
        runtime.set_isa(before[0])
        runtime.set_num_threads(before[1])


def _with_threads(
    isa: str, dtype: str, case: Problem, thread_counts: Sequence[int]
) -> Iterator[Check]:
    first: Results | None = None
    for threads in thread_counts:
        runtime.set_num_threads(threads)
        try:
            results = case.call()
        except Exception as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            yield Check(isa, dtype, threads, case.name, math.inf, text)
            continue
        share, trouble = _judged(case, results)
        if first is None:
            first = results
        elif trouble is None and not _same_bits(results, first):
            trouble = f"other bits than with {thread_counts[0]} thread"
        yield Check(isa, dtype, threads, case.name, share, trouble)


def _judged(case: Problem, results: Results) -> tuple[float, str | None]:
    worst = 0.0
    for got, wanted, allowed in zip(results, case.wanted, case.allowed, strict=True):
        error = relative_error(got, wanted)
        if not error <= allowed:
            return math.inf, f"differs by {error:.1e} of the largest number, allowed {allowed:.1e}"
        worst = max(worst, error / allowed if allowed else 0.0)
    return worst, None


def _same_bits(one: Results, other: Results) -> bool:
    return all(a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True))
