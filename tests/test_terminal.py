"""What a terminal can show: width, color, signs; words that fill their columns."""

from __future__ import annotations

import io
import sys

import pytest

from headway.terminal import NARROWEST, Terminal, columns_of, fit, this_terminal


class Stream(io.StringIO):
    """A standard output that says what it is."""

    def __init__(self, terminal: bool, encoding: str) -> None:
        super().__init__()
        self.terminal, self.named = terminal, encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.named

    def isatty(self) -> bool:
        return self.terminal


def pretend(patch: pytest.MonkeyPatch, stream: Stream | None = None) -> None:
    """Let standard output be this stream, by default a terminal; no variable says anything."""
    for name in ("NO_COLOR", "COLUMNS"):
        patch.delenv(name, raising=False)
    patch.setenv("TERM", "xterm")
    patch.setattr(sys, "stdout", stream or Stream(True, "utf-8"))


def test_color_is_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    assert this_terminal().color
    pretend(monkeypatch, Stream(False, "utf-8"))
    assert not this_terminal().color
    assert this_terminal(color=True).color
    monkeypatch.setattr(sys, "stdout", None)
    assert not this_terminal().color


@pytest.mark.parametrize(
    ("name", "value", "color"),
    [("NO_COLOR", "1", False), ("NO_COLOR", "", True), ("TERM", "dumb", False)],
)
def test_color_can_be_refused(
    name: str, value: str, color: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch)
    monkeypatch.setenv(name, value)
    assert this_terminal().color is color
    assert this_terminal(color=True).color


def test_signs_follow_the_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    assert not this_terminal().plain
    for encoding in ("ascii", "latin-1", "cp1252", "no-such-encoding"):
        pretend(monkeypatch, Stream(True, encoding))
        terminal = this_terminal()
        assert (terminal.plain, terminal.encoding) == (True, "ascii"), encoding
        assert this_terminal(ascii=False)[2:] == ("utf-8", False)
    pretend(monkeypatch)
    assert this_terminal(ascii=True)[2:] == ("ascii", True)


def test_width(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    monkeypatch.setenv("COLUMNS", "97")
    assert this_terminal().width == 97
    assert this_terminal(66).width == 66
    assert this_terminal(3).width == NARROWEST


def test_labels_fill_their_columns() -> None:
    for token, width, encoding, shown in (
        ("word", 6, "utf-8", "word  "),
        ("longer-than", 6, "utf-8", "longer"),
        ("wört", 6, "ascii", "w?rt  "),
        ("注意力", 5, "utf-8", "注意 "),
        ("注意力", 5, "ascii", "???  "),
        ("e\u0301a", 3, "utf-8", "ea "),
        ("a\x1b[1m\u200b", 7, "utf-8", "a?[1m? "),
    ):
        assert fit(token, width, encoding) == shown
        assert columns_of(shown) == width


def test_rules_and_emphasis() -> None:
    assert Terminal(12).rule("Head 1") == "-- Head 1 --"
    assert Terminal(12, plain=False).rule("Z") == "── Z ───────"
    assert Terminal(8).rule("a long title") == "-- a lon"
    assert Terminal(8).strong("x") == Terminal(8).faint("x") == "x"
    assert Terminal(8, color=True).strong("x") == "\x1b[1mx\x1b[0m"
