"""A terminal: how wide it is, what it can show, and words that fill their columns."""

import os
import shutil
import sys
import textwrap
import unicodedata
from typing import NamedTuple

NARROWEST = 40  # columns; lines for a narrower terminal have this length, and it breaks them

_BEYOND_ASCII = "·■…─"


class Terminal(NamedTuple):
    """What a text is laid out for."""

    width: int = 80  # columns
    color: bool = False
    encoding: str = "ascii"  # characters that it does not have are not used
    plain: bool = True  # "." "#" "..." "-" instead of the signs in _BEYOND_ASCII

    @property
    def hidden(self) -> str:
        """A cell that does not exist for its query."""
        return "." if self.plain else "·"

    @property
    def seen(self) -> str:
        """A cell of a mask that its query may look at."""
        return "#" if self.plain else "■"

    @property
    def gap(self) -> str:
        """Rows, columns or words that are left out."""
        return "..." if self.plain else "…"

    def rule(self, title: str) -> str:
        """A line from side to side with a title in it."""
        line = "-" if self.plain else "─"
        return self.strong(f"{line * 2} {title} ".ljust(self.width, line)[: self.width])

    def strong(self, text: str) -> str:
        """Text that stands out where there is color."""
        return f"\x1b[1m{text}\x1b[0m" if self.color and text else text

    def faint(self, text: str) -> str:
        """Text that steps back where there is color."""
        return f"\x1b[2m{text}\x1b[0m" if self.color and text else text

    def fit(self, text: str, width: int) -> str:
        """``text`` in exactly ``width`` columns."""
        return fit(text, width, self.encoding)

    def wrap(self, text: str, indent: str = "") -> list[str]:
        """``text`` as lines that fit the terminal."""
        return textwrap.wrap(text, self.width, initial_indent=indent, subsequent_indent=indent)


def this_terminal(
    width: int | None = None, color: bool | None = None, ascii: bool | None = None
) -> Terminal:
    """The terminal behind standard output, but for what is given.

    Color is for terminals, and not where ``NO_COLOR`` is set (https://no-color.org) or ``TERM`` is
    "dumb"; signs beyond ASCII are used where the encoding of standard output has them.
    """
    if width is None:
        width = shutil.get_terminal_size().columns
    if color is None:
        there = sys.stdout is not None and sys.stdout.isatty()
        color = there and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    if ascii is None:
        ascii = not _can_show(encoding)
    elif not ascii and not _can_show(encoding):
        encoding = "utf-8"
    return Terminal(max(width, NARROWEST), color, "ascii" if ascii else encoding, ascii)


def _can_show(encoding: str) -> bool:
    try:
        _BEYOND_ASCII.encode(encoding)
    except (LookupError, UnicodeEncodeError):
        return False
    return True


def fit(token: str, width: int, encoding: str) -> str:
    """``token`` in exactly ``width`` columns: cut or padded, what cannot be shown as "?"."""
    shown, used = "", 0
    for character in token:
        if unicodedata.combining(character):
            continue
        if not character.isprintable() or not character.encode(encoding, "ignore"):
            character = "?"
        columns = columns_of(character)
        if used + columns > width:
            break
        shown, used = shown + character, used + columns
    return shown + " " * (width - used)


def columns_of(text: str) -> int:
    """How many columns a text takes."""
    return sum(
        0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1
        for each in text
    )
