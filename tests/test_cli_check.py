"""``headway check``: it passes here, and finds what is broken."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runs import needs_posix, plain_text, run, run_on_terminal, start, without
from helpers import clean_environment

import headway
from headway import cli, self_test, self_test_caches, self_test_inputs
from headway.commands.common import ctrl_c_held
from headway.comparison import relative_error

ONE = ["check", "--isa", "scalar", "--dtype", "float32"]


def test_this_installation_passes() -> None:
    code, out, err = run("check", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["passed"] is True
    assert found["not_checked"] == {}
    assert found["info"]["version"] == headway.__version__
    checks = found["checks"]
    groups = {(each["isa"], each["dtype"], each["threads"]) for each in checks}
    counts = (1, max(2, found["info"]["num_threads"]))
    assert groups == {
        (isa, dtype, threads)
        for isa in headway.available_isas()
        for dtype in ("float32", "float64", "float16", "bfloat16")
        for threads in counts
    }
    for group in groups:
        mine = [e["name"] for e in checks if (e["isa"], e["dtype"], e["threads"]) == group]
        assert len(mine) == len(set(mine)) == (25 if group[1] == "float64" else 27)
    assert all(0 <= each["share"] <= 1 and each["trouble"] is None for each in checks)
    assert {"prefill", "decoding", "int8 cache", "options together"} < {e["name"] for e in checks}


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    before = headway.isa(), headway.get_num_threads()
    assert cli.main(ONE) == 0
    out = capsys.readouterr().out
    assert re.search(r"^scalar float32 +54 +0 +\d+% +ok$", out, re.MULTILINE)
    assert re.search(r"^All checks passed: 54 in \d+\.\d s\.$", out, re.MULTILINE)
    assert (headway.isa(), headway.get_num_threads()) == before


def spoil(monkeypatch: pytest.MonkeyPatch, wrong: Any) -> None:
    """Let attention's results go through `wrong` in the self-test."""
    right = self_test_inputs.attention

    def spoilt(*arrays: Any, **options: Any) -> Any:
        return wrong(right(*arrays, **options), **options)

    monkeypatch.setattr(self_test_inputs, "attention", spoilt)


def failures(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Lines about failed checks; the command ends with 1."""
    before = headway.isa(), headway.get_num_threads()
    assert cli.main(arguments) == 1
    assert (headway.isa(), headway.get_num_threads()) == before
    out, err = capsys.readouterr()
    assert err == ""
    assert re.search(r"^scalar float32 +54 +\d+ +\S.* FAILED$", out, re.MULTILINE)
    lines = re.findall(r"^FAILED (.*)$", out, re.MULTILINE)
    assert f"{len(lines)} of 54 checks FAILED" in out.splitlines()[-1]
    return list(lines)


def test_a_wrong_number_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(result: Any, **options: Any) -> Any:
        if "softcap" in options and "sinks" not in options:
            result[0][0, 0, 7, 3] += 1e-3
        return result

    spoil(monkeypatch, wrong)
    lines = failures(ONE, capsys)
    wanted = r"scalar float32, {}, soft cap: differs by \d\.\de-0[34] of the largest number, .*"
    assert len(lines) == 2
    assert re.fullmatch(wanted.format("1 thread"), lines[0])
    assert re.fullmatch(wanted.format(r"\d+ threads"), lines[1])


def test_a_wrong_lse_a_nan_and_a_wrong_shape_are_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(result: Any, **options: Any) -> Any:
        if "sinks" in options and "softcap" not in options:
            result[1][0, 0, 0] += 0.1
        if "window" in options and "softcap" not in options:
            result[0][0, 0, 0, 0] = math.nan
        if options.get("causal") is False:
            return result[0][..., :3], result[1]
        return result

    spoil(monkeypatch, wrong)
    names = [line.split(", ")[2].split(":")[0] for line in failures(ONE, capsys)]
    assert sorted(names) == sorted(["sinks", "window", "without the causal mask"] * 2)


def test_bits_that_depend_on_threads_are_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(result: Any, **options: Any) -> Any:
        if "mask" in options and headway.get_num_threads() > 1:
            return np.nextafter(result[0], np.float32(9)), result[1]
        return result

    spoil(monkeypatch, wrong)
    lines = failures(ONE, capsys)
    assert len(lines) == 3
    assert all(line.endswith("other bits than with 1 thread") for line in lines)


def test_an_exception_is_a_failed_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(result: Any, **options: Any) -> Any:
        if "kv_lengths" in options and "window" not in options:
            raise MemoryError("no\nroom")
        return result

    spoil(monkeypatch, wrong)
    lines = failures(ONE, capsys)
    assert [line.split(", ")[2] for line in lines] == ["lengths: MemoryError: no room"] * 2
    assert cli.main([*ONE, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["passed"] is False
    assert sum(each["share"] is None for each in found["checks"]) == 2


def test_without_ml_dtypes_bfloat16_is_left_out(tmp_path: Path) -> None:
    env = without("ml_dtypes", tmp_path)
    code, out, err = run("check", "--isa", "scalar", env=env)
    assert (code, err) == (0, "")
    assert re.search(
        r"^not checked: bfloat16: .* ml_dtypes: pip install 'headway\[bfloat16\]'$",
        out,
        re.MULTILINE,
    )
    assert "scalar bfloat16" not in out
    code, out, err = run("check", "--dtype", "bfloat16", env=env)
    assert (code, out) == (2, "")
    assert re.fullmatch(r"headway: .* pip install 'headway\[bfloat16\]'\n", err)


def test_an_unknown_instruction_set_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "--isa", "mmx"]) == 2
    wanted = ", ".join(headway.available_isas())
    err = capsys.readouterr().err
    assert err == f"headway: --isa: expected one of {wanted}, got 'mmx'; name one of these\n"


@needs_posix
def test_ctrl_c_ends_it_with_one_line() -> None:
    with start("check") as process:
        assert process.stdout.readline().startswith(b"headway ")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, b"headway: interrupted\n")
    assert b"passed" not in out


@needs_posix
def test_ctrl_c_waits_for_imports_that_would_lose_it() -> None:
    before, reached = signal.getsignal(signal.SIGINT), []

    @ctrl_c_held()
    def pressed() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        reached.append(True)

    with pytest.raises(KeyboardInterrupt):
        pressed()
    assert reached
    assert signal.getsignal(signal.SIGINT) is before
    with ctrl_c_held():
        pass
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("command", ["check", "demo"])
def test_numbers_can_be_drawn_before_anything_is_printed(command: str) -> None:
    """Whoever sees the first line may press Ctrl-C, and importing numpy.random loses it."""
    source = f"""
import sys
from headway import cli
from headway.commands import run_{command} as module

def say(text):
    sys.exit(0 if "numpy.random" in sys.modules else "not yet")

module.say = say
cli.main(["{command}"])
"""
    code = subprocess.run([sys.executable, "-c", source], env=clean_environment()).returncode
    assert code == 0


@needs_posix
@pytest.mark.parametrize("extra", [True, False], ids=["rich", "plain"])
def test_progress_is_shown_on_a_terminal(extra: bool, tmp_path: Path) -> None:
    if extra:
        pytest.importorskip("rich")
    env = None if extra else without("rich", tmp_path)
    code, seen = run_on_terminal("check", "--isa", "scalar", env=env)
    assert code == 0
    text = plain_text(seen)
    assert ("100%" if extra else "\r4/4 scalar bfloat16") in text
    assert "All checks passed" in text
    assert ("\x1b[" in seen) == extra


def test_numbers_of_8_bits_are_known_and_bad_rounding_is_found() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    every = np.arange(256, dtype=np.uint8)
    wanted = every.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    np.testing.assert_array_equal(self_test_caches._e4m3_numbers(), wanted)
    x = np.array([[0.3, -1.0, 0.011]])
    for numbers, scales, step in (
        (np.array([[38, -127, 1]], np.int8), np.array([1 / 127]), np.array([[1, -1, 1]], np.int8)),
        (np.array([[42, 184, 6]], np.uint8), None, np.array([[1, 1, 1]], np.uint8)),
    ):
        assert not self_test_caches._stored(numbers, scales, x)[1].any()
        assert self_test_caches._stored(numbers + step, scales, x)[1].all()


def test_errors_are_relative_to_the_largest_number() -> None:
    wanted = np.array([0.0, -4.0, np.inf, np.nan])
    assert relative_error(wanted, wanted) == 0
    assert relative_error(np.array([0.0, -3.0, np.inf, np.nan]), wanted) == 0.25
    for wrong in ([0, -4, -np.inf, np.nan], [np.nan, -4, np.inf, np.nan], [0, -4, np.inf, 1]):
        assert relative_error(np.array(wrong), wanted) == math.inf
    assert relative_error(wanted[:3], wanted) == math.inf
    assert relative_error(np.array([np.inf]), np.array([np.inf])) == 0
    assert relative_error(np.array([0.5]), np.array([0.0])) == 0.5


def test_settings_are_restored_after_an_interruption() -> None:
    before = headway.isa(), headway.get_num_threads()

    def interrupted() -> Any:
        raise KeyboardInterrupt

    case = self_test_inputs.Problem("any", interrupted, (), ())
    with pytest.raises(KeyboardInterrupt):
        self_test.check("scalar", "float32", [case], (1, 3))
    assert (headway.isa(), headway.get_num_threads()) == before
