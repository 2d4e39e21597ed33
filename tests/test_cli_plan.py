"""``headway plan``: the tables, JSON, numbers with a prefix, and what it refuses."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from cli_runs import needs_posix, plain_text, run_on_terminal

from headway import cli
from headway.distributed import plan

SIZES = ["--tokens", "64Ki", "--ranks", "4", "--heads", "8", "--kv-heads", "2", "--head-dim", "64"]
RATES = ["--flop-rate", "100G", "--bandwidth", "1.25e9", "--latency", "2.5u", "--dtype", "float32"]


def wanted(**more: Any) -> Any:
    rates = {"flop_rate": 1e11, "bandwidth": 1.25e9, "latency": 2.5e-6}
    heads = {"num_heads": 8, "num_kv_heads": 2, "head_dim": 64}
    return plan(num_tokens=65536, num_ranks=4, **heads, **rates, **more)


def test_the_tables_are_those_of_print(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", *SIZES, *RATES]) == 0
    assert capsys.readouterr().out == f"{wanted()}\n"


def test_json_is_the_dict_with_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--sharding", "striped", "--full", "--v-head-dim", "32", "--window", "100"]
    more += ["--memory", "2Gi", "--memory-bandwidth", "50G", "--backward-flop-rate", "80G"]
    assert cli.main(["plan", *SIZES, *RATES, *more, "--batch", "3", "--json"]) == 0
    options = {"sharding": "striped", "causal": False, "v_head_dim": 32, "window": 100, "batch": 3}
    rates = {"memory": 2**31, "memory_bandwidth": 5e10, "backward_flop_rate": 8e10}
    assert json.loads(capsys.readouterr().out) == wanted(**options, **rates).to_dict()


def test_the_defaults_are_a_layer_of_real_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("8 ranks, zigzag, causal: batch 1, 131,072 tokens, 32 heads of 128")


def test_memory_may_be_a_part_of_a_prefix(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", *SIZES, *RATES, "--memory", "0.1Gi", "--json"]) == 0
    assert '"memory": 107374182,' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("tokens", "count"), [("1.5k", 1500), ("0.5Ki", 512), ("2e3", 2000), ("1.1M", 1_100_000)]
)
def test_a_fraction_with_a_prefix_may_be_whole(
    tokens: str, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", "--tokens", tokens, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_tokens"] == count


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--tokens", "many"], ".*--tokens: expected a whole number, .* got 'many'; see .*"),
        (["--tokens", "1.5"], ".*--tokens: expected a whole number, .* got '1.5'; see .*"),
        (["--tokens", "1e9999"], ".*--tokens: expected a whole number, .* got '1e9999'; see .*"),
        (["--tokens", "1e999"], ".*--tokens: expected a whole number, .* got '1e999'; see .*"),
        (["--tokens", "1e99999999"], ".*--tokens: expected a whole number, .*; see .*"),
        (["--memory", "1e400"], ".*--memory: expected a number of bytes, .* got '1e400'; see .*"),
        (["--head-dim", "9" * 30], "head_dim: expected at most 2,147,483,648, got .*"),
        (["--bandwidth", "1e-300"], "bandwidth: expected a number from 0.001 to .*"),
        (["--tokens", "0"], "num_tokens: expected at least 1, got 0; .*"),
        (["--flop-rate", "1Q"], ".*--flop-rate: expected a number, .* got '1Q'; see .*"),
        (["--flop-rate", "0"], "flop_rate: expected a number from 0.001 to .*"),
        (["--kv-heads", "3"], "num_kv_heads: expected a divisor of num_heads=8, got 3; .*"),
        (["--ranks", "9999"], "num_ranks: expected at most 4,096, got 9,999; .*"),
        (["--sharding", "round"], ".*--sharding: invalid choice: 'round' .*"),
    ],
)
def test_wrong_use_is_told_in_one_line(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", *SIZES, *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(f"headway: {text}\n", err)


@needs_posix
def test_with_rich_a_terminal_gets_rules_and_bold_headers() -> None:
    pytest.importorskip("rich")
    code, seen = run_on_terminal("plan", *SIZES, *RATES)
    assert code == 0
    assert "\x1b[1m" in seen
    text = plain_text(seen)
    assert "\u2500" * 20 in text
    assert "134,217,728" in text
