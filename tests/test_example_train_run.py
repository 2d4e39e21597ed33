"""examples/train_char_gpt.py as it is used: its results, kills, Ctrl-C, and what it asks for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from example_files import EXAMPLES, module
from helpers import clean_environment

for package in ("matplotlib", "safetensors", "tqdm"):
    pytest.importorskip(package)

train = module("train_char_gpt")
run = module("char_gpt_run")

SCRIPT = EXAMPLES / "train_char_gpt.py"
STEPS, EVERY = 500, 10
SIZES = ["--layers", "2", "--heads", "2", "--width", "32", "--context", "32", "--batch", "4"]
TINY = [*SIZES, "--steps", str(STEPS), "--validate-every", "250", "--data", str(SCRIPT),
        "--threads", "1", "--sample", "40", "--save-every", str(EVERY)]  # fmt: skip

pytestmark = pytest.mark.usefixtures("any_threads")


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        env=clean_environment({"PYTHONIOENCODING": "utf-8"}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def steps_done(folder: Path) -> int:
    return len(run.read(folder / train.CHECKPOINT)[1]["losses"])


def wait_for(folder: Path, step: int) -> None:
    """Until the folder's checkpoint has so many steps."""
    limit = time.monotonic() + 300
    while not (folder / train.CHECKPOINT).exists() or steps_done(folder) < step:
        assert time.monotonic() < limit, "no checkpoint within five minutes"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The last checkpoint of a run that nothing interrupts, by its dropout."""
    found = {}
    for dropout in ("0", "0.2"):
        folder = tmp_path_factory.mktemp("whole")
        assert train.main([*TINY, "--dropout", dropout, "--out", str(folder)]) == 0
        assert sorted(path.name for path in folder.iterdir()) == [train.CHECKPOINT, train.PICTURE]
        found[dropout] = (folder / train.CHECKPOINT).read_bytes()
    return found


@pytest.mark.skipif(os.name != "posix", reason="this machine: another system's signals")
@pytest.mark.parametrize(
    ("name", "dropout"),  # names: Windows has no SIGKILL
    [("SIGKILL", "0"), ("SIGINT", "0"), ("SIGTERM", "0"), ("SIGKILL", "0.2")],
    ids=["kill -9", "Ctrl-C", "kill", "kill -9, dropout"],
)
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(
    name: str, dropout: str, whole: dict[str, bytes], tmp_path: Path
) -> None:
    number = signal.Signals[name]
    program = start(*TINY, "--dropout", dropout, "--out", tmp_path)
    wait_for(tmp_path, 2 * EVERY)
    program.send_signal(number)
    _, error = program.communicate(timeout=300)
    done = steps_done(tmp_path)
    assert 2 * EVERY <= done < STEPS
    if name == "SIGKILL":
        assert done % EVERY == 0
    else:
        assert program.returncode == 128 + number
        assert error == (
            f"train_char_gpt: stopped; step {done} of {STEPS} is saved in "
            f"{tmp_path / train.CHECKPOINT}, --resume goes on from there\n"
        )
    program = start("--resume", "--threads", "1", "--sample", "0", "--out", tmp_path)
    error = program.communicate(timeout=300)[1]
    assert program.returncode == 0, error
    assert (tmp_path / train.CHECKPOINT).read_bytes() == whole[dropout]


def test_the_threads_do_not_change_the_bits(tmp_path: Path) -> None:
    checkpoints = []
    for threads in ("1", "2"):
        folder = tmp_path / threads
        few = [*TINY, "--steps", "30", "--threads", threads, "--out", str(folder)]
        assert train.main(few) == 0
        checkpoints.append((folder / train.CHECKPOINT).read_bytes())
    assert checkpoints[0] == checkpoints[1]


def test_the_loss_of_a_short_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On the standard library's sources: 300 steps of 1024 bytes."""
    sizes = ["--layers", "2", "--heads", "4", "--width", "64", "--context", "64", "--batch", "16"]
    assert train.main([*sizes, "--steps", "300", "--sample", "80", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    last = run.read(tmp_path / train.CHECKPOINT)[1]["validation"][-1]
    assert last[0] == 300
    assert last[1] < 2.6
    assert "step 300: training" in printed
    assert f"validation {last[1]:.3f}" in printed
    assert len(printed.partition(" tokens/s\n\n")[2]) > 60  # the sample follows
    picture = (tmp_path / train.PICTURE).read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(picture) > 10_000
    again = ["--resume", "--sample", "30", "--prompt", "import ", "--out", str(tmp_path)]
    before = (tmp_path / train.CHECKPOINT).read_bytes()
    assert train.main(again) == 0
    assert capsys.readouterr().out.startswith("import ")
    assert (tmp_path / train.CHECKPOINT).read_bytes() == before


def test_the_sample_is_that_of_whole_calls() -> None:
    """Token by token with the cache, over the end of the context, as without one."""
    model, text = module("char_gpt_model"), module("char_gpt_text")
    config = model.Config(layers=2, heads=2, width=32, context=16)
    generator = np.random.default_rng(0)
    parameters = model.initial(config, generator)
    parameters.flat *= 8  # so that the likeliest byte depends on those before it
    gpt = model.CharGPT(config, parameters)
    drawn = list(text.sample(gpt, b"def f", 40, 1e-6, generator))
    assert len({*drawn}) > 3
    written, first = b"def f", 0
    for byte in drawn:
        if len(written) - first > config.context:
            first = len(written) - config.context // 2
        ids = np.frombuffer(written[first:], np.uint8).astype(np.intp)
        logits = gpt.logits(ids, model.Memory(config))
        assert byte == bytes([int(logits.argmax())])
        written += byte


@pytest.mark.skipif(os.name != "posix", reason="this machine: another system's pipes")
def test_nobody_reads_on(tmp_path: Path) -> None:
    program = start(*TINY, "--validate-every", "1", "--out", tmp_path)
    assert program.stdout is not None
    assert program.stdout.readline().startswith("step 1: ")
    program.stdout.close()
    program.stdout = None
    error = program.communicate(timeout=300)[1]
    assert (program.returncode, error) == (0, "")


def test_a_checkpoint_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    run.write_atomically(path, b"old")

    def full(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(run.os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        run.write_atomically(path, b"new, and longer")
    assert path.read_bytes() == b"old"
