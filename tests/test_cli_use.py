"""How the command line is used: help, version, examples, and wrong use told in one line."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
from cli_runs import run

import headway
from headway import cli


@pytest.fixture(autouse=True)
def terminal_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """argparse wraps its help to it."""
    monkeypatch.setenv("COLUMNS", "80")


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: headway ")
    assert "demo" in out
    assert "info" in out
    for arguments, text in ((["--version"], f"headway {headway.__version__}\n"), (["-h"], out)):
        with pytest.raises(SystemExit) as ended:
            cli.main(arguments)
        assert ended.value.code == 0
        assert capsys.readouterr().out == text


@pytest.mark.parametrize("command", cli.COMMANDS, ids=lambda command: command.name)
def test_every_command_has_examples_and_tells_its_exit_codes(
    command: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([command.name, "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert f"\nexamples:\n  {command.examples[0]}\n" in out
    for code, text in ((0, "done"), (1, "cannot be written"), (2, "wrong use"), (130, "Ctrl-C")):
        assert re.search(rf"^  {code} +.*{text}", out, re.MULTILINE)
    assert max(map(len, out.splitlines())) <= 80
    for example in command.examples:  # each is read as it stands
        words = shlex.split(example)
        assert cli._parse(words[words.index("headway") + 1 :]).run is command.run


@pytest.mark.parametrize("arguments", [["nope"], ["info", "x\ny"], ["demo", "a", "b"], ["--nope"]])
def test_wrong_use(arguments: list[str]) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert re.fullmatch(r"headway: .+; see headway( [a-z]+)? --help\n", err)
