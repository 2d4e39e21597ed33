"""The command line: ``headway info``, ``headway demo``, and what they say when it goes wrong."""

from __future__ import annotations

import io
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runs import needs_posix, run, start

import headway
from headway import cli, demo_layer, demo_text, demo_walk


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small layer in the timed part of the demo."""
    monkeypatch.setattr(demo_layer, "NUM_TOKENS", 48)
    monkeypatch.setattr(demo_layer, "ROUNDS", 2)


# info ---------------------------------------------------------------------------------------------


def test_info_as_json() -> None:
    code, out, err = run("info", "--json")
    assert (code, err) == (0, "")
    about = json.loads(out)
    mine = headway.info()
    for name in ("version", "available_isas", "compiled_isas", "numpy", "python", "build"):
        assert about[name] == mine[name]
    assert about["isa"] == about["available_isas"][0]


def test_info_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info"]) == 0
    out = capsys.readouterr().out
    about = headway.info()
    for text in (
        headway.__version__,
        f"{about['isa']} (available: {', '.join(about['available_isas'])})",
        f"{about['num_threads']} ({about['threads_source']})",
        np.__version__,
        *about["build"].values(),
    ):
        assert text in out


def test_info_tells_where_the_thread_count_comes_from() -> None:
    env: dict[str, str | None] = {"HEADWAY_NUM_THREADS": "3", "HEADWAY_ISA": "scalar"}
    _, out, _ = run("info", env=env)
    assert re.search(r"threads +3 \(HEADWAY_NUM_THREADS\)", out)
    assert re.search(r"instruction set +scalar \(available: ", out)


@pytest.mark.parametrize("command", ["info", "demo", "check", "bench"])
def test_a_wrong_setting_is_told_in_one_line(command: str) -> None:
    code, out, err = run(command, env={"HEADWAY_ISA": "mmx"})
    assert (code, out) == (2, "")
    assert re.fullmatch(r"headway: HEADWAY_ISA: .*'mmx'.*\n", err)


# demo ---------------------------------------------------------------------------------------------


def test_the_demo_as_users_run_it() -> None:
    with start("demo") as process:
        out, err = process.communicate(timeout=120)  # an end to waiting, no promise of speed
    assert (process.returncode, err) == (0, b"")
    text = out.decode("ascii")
    assert max(len(line) for line in text.splitlines()) <= 79
    for part in (
        "x (8, 6)\n    The embedded tokens",
        "All three agree",
        "the same to the bit",
        "12 heads, 1,024 tokens, 768 wide",
        f"Instruction set: {headway.available_isas()[0]}.",
    ):
        assert part in text
    for n in (1, 2):
        for part in (
            f"Head {n} -",
            f"Q_{n} (8, 3) = x @ w_query_{n}",
            f"scores_{n} (8, 8) = Q_{n} @ K_{n}.T",
            f"Z_{n} (8, 3) = weights_{n} @ V_{n}",
        ):
            assert part in text
    assert re.search(r"^attention +(\d+\.\d\d +){4}\d+\.\dx", text, re.MULTILINE)
    assert re.search(r"^whole layer +(\d+\.\d\d +){4}\d+\.\dx", text, re.MULTILINE)


def test_the_demo_prints_what_the_modules_compute(
    quick: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["demo"]) == 0
    out = capsys.readouterr().out
    text = demo_text.read_text(None)
    assert 2000 < text.num_characters < 6000
    x = demo_text.embed(text.tokens[:8], sorted(set(text.tokens)))
    stacked = headway.StackedMultiHeadAttention.init(6, 6, num_heads=2)
    for block in (x, stacked(x)[:, :3], stacked(x)[:, 3:]):
        for row in block:
            assert "".join(f"{value:6.2f}" for value in row) in out
    for head in stacked:
        for block in (x @ head.w_query, x @ head.w_key, x @ head.w_value):
            assert "".join(f"{value:6.2f}" for value in block[4]) in out
        weights = headway.attention_weights(x @ head.w_query, x @ head.w_key)
        seen = "".join(f"{value:6.2f}" for value in weights[4, :5])
        assert seen + "     ." * 3 in out
    for dots in range(8):
        assert out.count(" ".join(["#"] * (8 - dots) + ["."] * dots) + "\n") == 2


def test_the_demo_on_a_text_of_ones_own(
    quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.txt"
    path.write_text("\ufeffDon't!\n\n\tWorte, Wörter", encoding="utf-8")
    assert cli.main(["demo", str(path)]) == 0
    out = capsys.readouterr().out
    assert "7 tokens, 7 of them distinct" in out
    assert "don ' t ! worte , wörter" in out
    assert "(7, 7)" in out


@pytest.mark.parametrize("content", ["x", "a b", "the " * 3000], ids=["one", "two", "many"])
def test_texts_of_any_length(
    content: str, quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "text.txt"
    path.write_text(content, encoding="utf-8")
    assert cli.main(["demo", str(path)]) == 0
    out = capsys.readouterr().out
    assert "All three agree" in out
    assert ("the same to the bit" in out) == (content != "x")


REFUSED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "blank": (b" \n\t\r\n \xc2\xa0", "holds nothing but blanks"),
    "latin-1": ("Gr\xfc\xdfe".encode("latin-1"), "is not text in UTF-8 (byte 0xfc at 2)"),
    "utf-16": ("text".encode("utf-16-le"), "is not text (it holds the character U+0000)"),
    "binary": (bytes(range(1, 9)) + b"abc", "is not text (it holds the character U+0001)"),
    "cut": ("ü".encode()[:1], "is not text in UTF-8"),
    "large": (b"a " * (4 * 2**20 + 1), "larger than 8 MiB; a few pages are enough"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_file_that_is_no_text(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, why = REFUSED[kind]
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    assert_refused(str(path), why, capsys)


def assert_refused(path: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", path]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert why in err
    assert err.startswith("headway: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")


def test_a_path_that_leads_to_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path, why in (
        (tmp_path / "none.txt", "none.txt: no such file"),
        (tmp_path, "is a directory; name a text file"),
        (tmp_path / "two\nlines", r"two\nlines': no such file"),
        ("\0", "cannot be read"),
        ("", "no such file"),
    ):
        assert_refused(str(path), why, capsys)


@needs_posix
def test_a_file_that_may_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "secret.txt"
    path.write_text("words")

    def closed(*_: Any) -> Any:  # root may read everything, whatever the mode says
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", closed)
        text = "may not be read; name a text file"
        with pytest.raises(demo_text.TextError, match=text):
            demo_text.read_text(str(path))
        patch.setattr("builtins.open", lambda *_: io.BytesIO(b"words"))
        assert demo_text.read_text(str(path)).tokens == ["words"]


def test_a_wrong_result_is_an_exit_code(
    quick: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo_walk, "_reference_z", lambda stacked, x: stacked(x) + 1)
    assert cli.main(["demo"]) == 1
    assert "THEY DO NOT AGREE" in capsys.readouterr().out


# The screen ---------------------------------------------------------------------------------------


def test_a_terminal_without_the_characters_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("Wörter: 注意力 😀 \x1b[31m", encoding="utf-8")
    with start("demo", str(path), env={"PYTHONIOENCODING": "ascii"}) as process:
        seen = b"".join(process.stdout.readline() for _ in range(60))
        process.stdout.close()
        assert process.stderr.read() == b""
    text = seen.decode("ascii")
    assert "w?rter : ??? ? ? [ 31m" in text
    assert re.search(r"^w\?rter +( +-?\d\.\d\d){6}$", text, re.MULTILINE)


@needs_posix
def test_a_reader_that_goes_away_ends_the_demo_quietly() -> None:
    with start("demo") as process:
        assert process.stdout.readline().startswith(b"headway ")
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0
    one_check = ["check", "--isa", "scalar", "--dtype", "float64"]
    for arguments in (["--help"], [], ["info"], ["cost"], ["cost", "--json"], one_check):
        read, write = os.pipe()
        os.close(read)
        with start(*arguments, stdout=write) as process:
            os.close(write)
            assert process.stderr.read() == b""
        assert process.returncode == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this machine: no /dev/full")
def test_a_full_disk_is_told_in_one_line() -> None:
    with open("/dev/full", "wb") as full, start("info", stdout=full) as process:
        err = process.stderr.read()
    assert process.returncode == 1
    assert re.fullmatch(rb"headway: the output cannot be written: .*No space left.*\n", err)


@needs_posix
def test_ctrl_c_ends_with_one_line() -> None:
    with start("demo") as process:
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (130, b"headway: interrupted\n")
