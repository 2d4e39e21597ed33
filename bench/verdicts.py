"""One claim and how it fared; the rows that a claim is about."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from figures import Data, Record, row_of, timed


@dataclass
class Verdict:
    """One claim: what was wanted of how many cases, the weakest of them, and those that fail."""

    title: str
    wanted: float
    found: list[tuple[float, str]] = field(default_factory=list)
    at_most: bool = False

    def add(self, value: float | None, where: str) -> None:
        if value is not None:
            self.found.append((value, where))

    def short(self) -> list[tuple[float, str]]:
        """Cases that fall short, the worst first."""
        if self.at_most:
            return sorted((v for v in self.found if v[0] > self.wanted), reverse=True)
        return sorted(v for v in self.found if v[0] < self.wanted)

    @property
    def failed(self) -> bool:
        return bool(self.short())

    @property
    def weakest(self) -> tuple[float, str]:
        return max(self.found) if self.at_most else min(self.found)

    @property
    def line(self) -> str:
        """One line of a report; a claim without a case says so."""
        sign = "at most" if self.at_most else "at least"
        if not self.found:
            return f"-    {self.title}: not measured"
        value, where = self.weakest
        verdict = "FAIL" if self.failed else "ok  "
        missed = f"; {len(self.short())} of {len(self.found)} short" if self.failed else ""
        return (
            f"{verdict} {self.title}: {sign} {self.wanted:g}, found {value:.3g} ({where}){missed}"
        )


def records(data: Data, kind: str, **fields: Any) -> Iterator[tuple[str, Record]]:
    """The rows of a kind with these fields in which somebody was timed."""
    for name, record in data["rows"].items():
        row = row_of(record)
        fits = all(getattr(row, key) == value for key, value in fields.items())
        if row.kind == kind and fits and timed(record):
            yield name, record
