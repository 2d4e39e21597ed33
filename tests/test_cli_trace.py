"""``headway trace``: the walk through a text, the page and the picture, what it refuses."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from cli_runs import needs_posix, run, start

import headway
from headway import cli, demo_text


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


def module_of(width: int, heads: int) -> headway.MultiHeadAttention:
    return headway.MultiHeadAttention.init(6, width, num_heads=heads)


def test_the_demo_text_step_by_step(capsys: pytest.CaptureFixture[str]) -> None:
    """Every step with its shape, and Z as the kernel has it, within the difference it tells."""
    assert cli.main(["trace"]) == 0
    out = capsys.readouterr().out
    text = demo_text.read_text(None)
    x = demo_text.embed(text.tokens[:8], sorted(set(text.tokens)))
    shapes = {"w_query": (6, 3), "w_key": (6, 3), "w_value": (6, 3), "mask": (8, 8), "Z": (8, 3)}
    shapes |= {"Q": (8, 3), "K": (8, 3), "V": (8, 3)}
    shapes |= {"scores": (8, 8), "scaled": (8, 8), "weights": (8, 8)}
    for n in (1, 2):
        for kind, shape in shapes.items():
            assert re.search(rf"^{kind}_{n} {re.escape(str(shape))}", out, re.MULTILINE), kind
    assert re.search(r"^x \(8, 6\)$", out, re.MULTILINE)
    assert re.search(r"^Z \(8, 6\) = \[Z_1 \| Z_2\]$", out, re.MULTILINE)
    module = module_of(6, 2)
    trace = module.trace(x)
    for row in trace["Z"].array:
        assert "".join(f"{value:6.2f}" for value in row) in out
    assert np.abs(module(x) - trace["Z"].array).max() == trace.difference
    told = re.search(r"difference\s+is\s+(\S+), the\s+largest", out)
    assert told
    assert float(told[1]) == pytest.approx(trace.difference, rel=0.05)
    assert "They agree" in out


def test_a_text_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    words = "The cat saw the other cat; it left."
    assert cli.main(["trace", words, "--heads", "3", "--head-dim", "2"]) == 0
    out = capsys.readouterr().out
    assert "Trace of MultiHeadAttention(d_in=6, d_out=6, num_heads=3, " in out
    assert "3 heads, 10 tokens, float32." in out
    rows = re.findall(r"^(\S+) +-?\d\.", out.split("Input")[1].split("Head 1")[0], re.MULTILINE)
    assert rows == ["the", "cat", "saw", "the", "other", "cat", ";", "it", "left", "."]
    assert "Q_3 (10, 2) = x @ w_query_3" in out


def test_tokens_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own.txt"
    path.write_text("one two " * 700, encoding="utf-8")
    for arguments, count in (([], 8), (["--tokens", "5"], 5), (["--tokens", "1024"], 1024)):
        assert cli.main(["trace", "--file", str(path), *arguments]) == 0
        assert f"2 heads, {count:,} tokens," in capsys.readouterr().out
    assert cli.main(["trace", "a b c d", "--tokens", "3"]) == 0
    assert "2 heads, 3 tokens," in capsys.readouterr().out
    assert cli.main(["trace", "one two " * 700]) == 0
    assert "2 heads, 1,024 tokens," in capsys.readouterr().out


def test_page_and_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    page, picture = tmp_path / "page.html", tmp_path / "picture.png"
    assert cli.main(["trace", "a <b> c", "--html", str(page), "--png", str(picture)]) == 0
    out = capsys.readouterr().out
    assert out.endswith(f"Page: {page}\nPicture: {picture}\n")
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>")
    assert "weights_2" in text
    assert picture.read_bytes().startswith(b"\x89PNG")


@needs_posix
def test_files_are_written_before_a_reader_goes_away(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    read, write = os.pipe()
    os.close(read)
    with start("trace", "a b c", "--html", str(page), stdout=write) as process:
        os.close(write)
        assert process.stderr.read() == b""
    assert process.returncode == 0
    assert page.read_text(encoding="utf-8").endswith("</html>\n")


def refused(arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr."""
    assert cli.main(["trace", *arguments]) == code
    err = capsys.readouterr().err
    assert re.fullmatch(r"headway: .*\n", err), err
    return err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([" \n"], "TEXT: holds nothing but blanks"),
        ([""], "TEXT: holds nothing but blanks"),
        (["--file", "no-such-file.txt"], "no-such-file.txt: no such file"),
        (["a", "--file", "b"], "not allowed with"),
        (["a", "b"], "unrecognized arguments: b"),
        (["a", "--heads", "0"], "--heads: expected a whole number, 1 to 1,024, got '0'"),
        (["a", "--tokens", "1025"], "--tokens: expected a whole number, 1 to 1,024"),
        (["a", "--head-dim", "x"], "--head-dim: expected a whole number, 1 to 1,024, got 'x'"),
    ],
)
def test_wrong_use(arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert why in refused(arguments, 2, capsys)


def test_files_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "none" / "page.html")
    why = f"{path}: cannot be written (No such file or directory)"
    assert why in refused(["a", "--html", path], 1, capsys)
    pytest.importorskip("matplotlib")
    assert why in refused(["a", "--png", path], 1, capsys)


def test_an_absent_package_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    err = refused(["a", "--png", os.devnull], 2, capsys)
    assert "pip install 'headway[plot]'" in err


def test_a_wrong_result_is_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    true = headway.MultiHeadAttention.__call__
    monkeypatch.setattr(headway.MultiHeadAttention, "__call__", lambda *a: true(*a) + 1)
    assert cli.main(["trace", "a b"]) == 1
    assert "THEY DO NOT AGREE" in capsys.readouterr().out


def test_a_process_of_its_own() -> None:
    """No color where nobody sees it, ASCII where there is nothing else, an error in one line."""
    env: dict[str, str | None] = {"COLUMNS": "60", "PYTHONIOENCODING": "ascii"}
    code, out, err = run("trace", "wörter 注意", env=env)
    assert (code, err) == (0, "")
    assert out.isascii()
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 60
    assert re.search(r"^w\?rter +-?\d", out, re.MULTILINE)
    code, out, _ = run("trace", "wörter 注意", env=env | {"PYTHONIOENCODING": "utf-8"})
    assert code == 0
    assert "·" in out
    assert "wörter" in out
    code, out, err = run("trace", "a", env={"HEADWAY_ISA": "mmx"})
    assert (code, out) == (2, "")
    assert re.fullmatch(r"headway: HEADWAY_ISA: .*'mmx'.*\n", err)


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["trace", "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    for part in ("examples:", "headway trace --file story.txt", "exit codes:", "--html FILE"):
        assert part in out
