"""``headway cost``: the table, JSON, the picture; with and without a terminal and the extras."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from cli_runs import needs_posix, plain_text, run_on_terminal, without

import headway
from headway import cli, cost_plot

SIZES = ["--batch", "2", "--tokens", "64", "--d-in", "48", "--d-out", "24", "--heads", "4"]


def cost(**more: Any) -> headway.Cost:
    return headway.cost(batch=2, num_tokens=64, d_in=48, d_out=24, **{"num_heads": 4, **more})


def test_the_table_is_that_of_print(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--kv-heads", "2", "--out-proj", "--qkv-bias", "--dtype", "float16"]
    assert cli.main(["cost", *SIZES, *options]) == 0
    given = {"num_kv_heads": 2, "out_proj": True, "qkv_bias": True, "dtype": "float16"}
    assert capsys.readouterr().out == f"{cost(**given)}\n"
    assert cli.main(["cost", *SIZES, "--stage", "stacked"]) == 0
    assert capsys.readouterr().out == f"{cost(stage='stacked')}\n"


def test_the_defaults_are_a_layer_of_real_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cost"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("efficient: batch 1, 1,024 tokens, d_in 768, d_out 768, 12 heads of 64")
    assert max(map(len, out.splitlines())) <= 80


def test_the_stages_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cost", *SIZES, "--stage", "all", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    one = headway.cost(batch=2, num_tokens=64, d_in=48, d_out=6, num_heads=1, stage="single")
    wanted = {"single": one, "stacked": cost(stage="stacked"), "efficient": cost()}
    assert found == {stage: each.to_dict() for stage, each in wanted.items()}
    assert cli.main(["cost", *SIZES, "--stage", "all"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^figure +single +stacked +efficient$", out, re.MULTILINE)
    numbers = [f"{each.multiply_adds:,}" for each in wanted.values()]
    assert re.search(rf"^multiply-adds +{' +'.join(numbers)}$", out, re.MULTILINE)


def test_json_is_the_dict(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cost", *SIZES, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == cost().to_dict()


def test_the_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "cost.png"
    assert cli.main(["cost", *SIZES, "--png", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    assert cli.main(["cost", "--png", str(tmp_path / "none" / "cost.png")]) == 1
    err = capsys.readouterr().err
    assert re.fullmatch(r"headway: .*cost\.png: cannot be written \(No such file.*\)\n", err)


def test_without_matplotlib_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(cost_plot, "import_module", absent)
    assert cli.main(["cost", "--png", "cost.png"]) == 2
    out, err = capsys.readouterr()
    text = "headway: --png: plots need the package matplotlib: pip install 'headway[plot]'\n"
    assert (out, err) == ("", text)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--heads", "5"], "d_out: expected a multiple of num_heads=5, got 24; pass e.g. 25"),
        (["--kv-heads", "3"], "num_kv_heads: expected a divisor of num_heads=4, got 3; .*"),
        (["--tokens", "0"], ".*--tokens: expected a whole number, at least 1, got '0'; see .*"),
        (["--tokens", "many"], ".*--tokens: expected a whole number, at least 1, got 'many'; .*"),
        (["--dtype", "int8"], ".*--dtype: invalid choice: 'int8' .*; see headway cost --help"),
        (["--stage", "single"], 'num_heads: expected 1 with stage="single", got 4; .*'),
        (["--stage", "all", "--png", "x"], "--png: expected one stage, got --stage all; .*"),
        (["--token", "3"], "unrecognized arguments: --token 3; see headway --help"),
    ],
)
def test_wrong_sizes_are_told_in_one_line(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["cost", *SIZES, *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(f"headway: {text}\n", err)


# On a terminal ------------------------------------------------------------------------------------


@needs_posix
def test_with_rich_a_terminal_gets_rules_and_bold_headers() -> None:
    pytest.importorskip("rich")
    code, seen = run_on_terminal("cost", *SIZES)
    assert code == 0
    assert "\x1b[1m" in seen
    text = plain_text(seen)
    assert "\u2500" * 20 in text
    for figure in ("num_parameters", "multiply_adds", "score_bytes"):
        assert f"{getattr(cost(), figure):,}" in text
    _, seen = run_on_terminal("cost", *SIZES, env={"NO_COLOR": "1", "TERM": "dumb"})
    assert "\x1b[" not in seen


@needs_posix
def test_a_narrow_terminal_gets_the_plain_table() -> None:
    pytest.importorskip("rich")
    _, seen = run_on_terminal("cost", *SIZES, columns=40)
    assert seen == f"{cost()}\n"


@needs_posix
def test_without_rich_a_terminal_gets_the_plain_table(tmp_path: Path) -> None:
    code, seen = run_on_terminal("cost", *SIZES, env=without("rich", tmp_path))
    assert (code, seen) == (0, f"{cost()}\n")
