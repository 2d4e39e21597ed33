"""A table of text, as it is printed without a terminal library."""

from collections.abc import Sequence
from typing import NamedTuple


class TextTable(NamedTuple):
    """The first column stands to the left, all others to the right."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def lines(self) -> list[str]:
        """Header and rows, padded to columns two spaces apart."""
        cells = [self.header, *self.rows]
        widths = [max(len(row[n]) for row in cells) for n in range(len(self.header))]
        return [
            "  ".join(
                cell.rjust(width) if n else cell.ljust(width)
                for n, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in cells
        ]
