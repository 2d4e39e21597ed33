"""What examples/train_char_gpt.py says where something is wrong: one line, and nothing is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from example_files import EXAMPLES, module

train = module("train_char_gpt")

FEW = ["--layers", "1", "--heads", "2", "--width", "8", "--context", "8", "--batch", "2",
       "--steps", "3", "--sample", "0", "--data", str(EXAMPLES / "train_char_gpt.py")]  # fmt: skip


def complaint(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that is the answer to these arguments."""
    capsys.readouterr()
    assert train.main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("train_char_gpt: ")
    assert error.count("\n") == 1
    return error.removeprefix("train_char_gpt: ").rstrip("\n")


@pytest.fixture(scope="module")
def packages() -> None:
    for package in ("matplotlib", "safetensors", "tqdm"):
        pytest.importorskip(package)


@pytest.fixture
def finished(packages: None, tmp_path: Path) -> Path:
    """A folder with a run of three steps."""
    assert train.main([*FEW, "--out", str(tmp_path)]) == 0
    return tmp_path


@pytest.mark.parametrize(
    ("option", "value", "wanted"),
    [
        ("--steps", "0", "expected a whole number from 1 on, got '0'"),
        ("--seed", "-1", "expected a whole number from 0 on, got '-1'"),
        ("--threads", "two", "expected a whole number from 1 on, got 'two'"),
        ("--sample", "1.5", "expected a whole number from 0 on, got '1.5'"),
        ("--context", "1", "expected a whole number from 2 on, got '1'"),
        ("--dropout", "1", "expected a number from 0 on and below 1, got '1'"),
        ("--dropout", "nan", "expected a number from 0 on and below 1, got 'nan'"),
        ("--learning-rate", "0", "expected a finite number above 0, got '0'"),
        ("--temperature", "inf", "expected a finite number above 0, got 'inf'"),
        ("--prompt", "", "expected one character at least, got ''"),
    ],
)
def test_wrong_options(
    option: str, value: str, wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        train.main([option, value])
    assert f"argument {option}: {wanted}" in capsys.readouterr().err


def test_missing_packages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    present = {"headway", "matplotlib"}
    monkeypatch.setattr(train, "find_spec", lambda name: name if name in present else None)
    assert complaint([], capsys) == "missing: safetensors, tqdm; pip install '.[examples]'"


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--width", "10", "--heads", "4"], "--width: expected a multiple of --heads 4, got 10"),
        (["--data", "{folder}/none.txt"], "the text cannot be read: [Errno 2] No such file or "
         "directory: '{folder}/none.txt'"),
        (["--data", "{folder}"], "the text cannot be read: [Errno 21] Is a directory: '{folder}'"),
        (["--data", "{folder}/short.txt"], "--data: expected parts of more than 8 bytes for "
         "training and validation, got one of 4; take a longer text or a smaller --context"),
        (["--out", "{folder}/short.txt/deep"], "--out: the checkpoint cannot be written: "
         "[Errno 20] Not a directory: '{folder}/short.txt/deep'"),
        (["--resume"], "--resume: there is no {folder}/out/checkpoint.safetensors; leave it out "
         "to begin a run"),
        (["--threads", "5000"], "--threads: expected an integer from 1 to 1024, got 5000; info() "
         "tells the number in use and its source"),
    ],
)  # fmt: skip
def test_what_cannot_be_done(
    arguments: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "short.txt").write_bytes(b"x" * 48)
    asked = [argument.format(folder=tmp_path) for argument in arguments]
    given = [*FEW, "--out", str(tmp_path / "out"), *asked]
    assert complaint(given, capsys) == line.format(folder=tmp_path)
    assert not (tmp_path / "out").exists()


def test_a_finished_run_is_not_overwritten(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = finished / train.CHECKPOINT
    before = checkpoint.read_bytes()
    assert complaint([*FEW, "--out", str(finished)], capsys) == (
        f"{checkpoint} is there; --resume goes on with it, another --out begins anew"
    )
    assert checkpoint.read_bytes() == before


@pytest.mark.parametrize(
    ("option", "value", "has"),
    [
        ("--steps", "4", "3"),
        ("--learning-rate", "0.5", "0.003"),
        ("--dropout", "0.5", "0.0"),
        ("--seed", "7", "0"),
    ],
)
def test_a_resumed_run_keeps_its_settings(
    option: str, value: str, has: str, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--resume", "--out", str(finished), option, value]
    assert complaint(given, capsys) == (
        f"{option}: the run in {finished / train.CHECKPOINT} has {has}, got {value}; leave "
        f"{option} out, or begin a run in another --out"
    )


def test_a_text_that_changed(
    packages: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text"
    text.write_bytes(b"some text " * 30)
    given = [*FEW, "--data", str(text), "--out", str(tmp_path)]
    assert train.main(given) == 0
    text.write_bytes(b"some test " * 30)
    assert complaint([*given, "--resume"], capsys) == (
        "--resume: the text is not the one that this run began with"
    )


@pytest.mark.parametrize("damage", ["empty", "cut", "other", "shape"])
def test_a_damaged_checkpoint(
    damage: str, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors.numpy import load, save

    path = finished / train.CHECKPOINT
    content = path.read_bytes()
    if damage == "shape":
        about, tensors = module("char_gpt_run").read(path)
        tensors["weight.norm.bias"] = np.zeros(3, np.float32)
        import json

        path.write_bytes(save(tensors, {"about": json.dumps(about)}))
    else:
        other = save({"x": load(content)["losses"]})
        path.write_bytes({"empty": b"", "cut": content[:-1], "other": other}[damage])
    error = complaint(["--resume", "--out", str(finished)], capsys)
    assert error.startswith(f"{path} cannot be read: ")
    if damage == "other":
        assert error.endswith("expected the format 'char_gpt 1', got None")


@pytest.mark.usefixtures("packages")
def test_a_loss_that_is_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = module("char_gpt_run")

    def advance(self: Any) -> float:
        self.losses.append(float("nan"))
        return float("nan")

    monkeypatch.setattr(run.Run, "advance", advance)
    assert complaint([*FEW, "--out", str(tmp_path)], capsys) == (
        "the loss of step 1 is nan; begin anew with a smaller --learning-rate than 0.003"
    )
