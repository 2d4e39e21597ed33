"""The benchmark's rows of options: their arithmetic, what is asked of whom, and the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench_files import data, module, record, rows, write

import headway

claims = module("claims")
figures = module("figures")
inputs = module("inputs")
option_tables = module("option_tables")
sections = module("sections")
options = module("options")
results = module("results")
rivals = module("rivals")

OPTION_ROWS = {row.option: row for row in rows.option_rows() if row.kind == "options"}
PACKED = next(row for row in rows.option_rows() if row.kind == "packed")


def small(option: str, queries: int = 150, keys: int = 150) -> Any:
    """The row's options at a size that a test can afford, with shared key heads."""
    row, more = OPTION_ROWS[option], 0
    if row.options.length is not None:  # some keys beyond it, and queries there
        more = row.options.length - 100
    sizes = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 16}
    return replace(row, num_queries=queries + more, num_keys=keys + more, **sizes)


def right(row: Any, prepared: Any, made: Any) -> None:
    got = prepared.result(prepared.call())
    assert inputs.error_of(got, *inputs.expected(row, made)) < inputs.TOLERANCES[row.dtype]


def test_every_option_has_a_row_and_a_title() -> None:
    assert set(OPTION_ROWS) == set(options.OPTIONS)
    assert set(options.EVERY_OPTION) == set(options.TITLES)
    assert OPTION_ROWS["plain"].flops == OPTION_ROWS["plain"].plain_flops
    assert rows.Row.from_json(PACKED.to_json()) == PACKED


@pytest.mark.parametrize("option", options.OPTIONS)
def test_allowed_pairs_are_those_of_the_mask(option: str) -> None:
    for row in (small(option), small(option, 33), replace(OPTION_ROWS[option], num_heads=1)):
        if row.num_keys > 1024:
            continue
        seen = inputs.allowed(row, inputs.make_inputs(row))
        assert row.flops == 4 * row.num_heads * seen.sum() * row.head_dim
        assert seen.any(axis=1).all()


def test_flops_of_packed_sequences_are_the_sum_of_theirs() -> None:
    row = replace(PACKED, lengths=(4, 1, 2), num_heads=3, head_dim=8)
    assert row.flops == 4 * 3 * 8 * (10 + 1 + 3)


@pytest.mark.parametrize("option", options.OPTIONS)
def test_the_reference_agrees_with_the_library_s(option: str) -> None:
    own = module("rivals.own")
    for row in (small(option), small(option, 33)):
        made = inputs.make_inputs(row)
        q, k, v = (made[name] for name in "qkv")
        found = headway.reference.attention(q, k, v, **own.keywords(row, made))
        assert inputs.error_of(found, *inputs.expected(row, made)) < 1e-6


@pytest.mark.parametrize("option", options.OPTIONS)
def test_headway_s_own_calls_are_right(option: str) -> None:
    own = module("rivals.own")
    row = small(option)
    made = inputs.make_inputs(row)
    for name in ("headway", "headway-plain"):
        right(row, own.PREPARE[name](row, made), made)


def test_headway_s_own_packed_calls_are_right() -> None:
    own = module("rivals.own")
    row = replace(PACKED, lengths=(1, 40, 1, 7), num_queries=40, num_keys=40)
    made = inputs.make_inputs(row)
    for name in ("headway", "headway-plain"):
        right(row, own.PREPARE[name](row, made), made)
    assert own.PREPARE["headway-plain"](row, made).call().shape == (1, 40, 12, 64)


@pytest.mark.parametrize("option", options.OPTIONS)
def test_pytorch_s_masks_say_the_same(option: str) -> None:
    pytest.importorskip("torch")
    pytorch = module("rivals.pytorch")
    for row in (small(option), small(option, 33)):
        made = inputs.make_inputs(row)
        if row.options.softcap:
            with pytest.raises(rivals.Unsupported, match="no soft cap"):
                pytorch.PREPARE["torch"](row, made)
        else:
            right(row, pytorch.PREPARE["torch"](row, made), made)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("option", options.OPTIONS)
def test_flex_attention_s_functions_say_the_same(
    option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    flex = module("rivals.flex")
    monkeypatch.setattr(flex.torch, "compile", lambda function, **_: function)
    for row in (small(option), small(option, 33)):
        made = inputs.make_inputs(row)
        right(row, flex.PREPARE["torch-flex"](row, made), made)


def measured(option: str, headway_s: float, plain: float, **others: float | str) -> dict[str, Any]:
    """A record in which the plain call's rate is that of its own work."""
    row = OPTION_ROWS.get(option, PACKED)
    made = record(row, {"headway": headway_s, "headway-plain": plain, **others})
    made["entries"]["headway-plain"]["gflops"] = row.plain_flops / plain / 1e9
    return made


def verdicts(*records: dict[str, Any]) -> dict[str, Any]:
    return {verdict.title: verdict for verdict in claims.judge(data(*records))}


def test_claims_count_the_cost_per_allowed_pair() -> None:
    share = OPTION_ROWS["window"].flops / OPTION_ROWS["window"].plain_flops
    assert 0.7 < share < 0.8
    found = verdicts(
        measured("plain", 1.0, 1.0, vllm=2.0),
        measured("window", share * 1.05, 1.0, vllm=0.5),
        measured("softcap", 1.2, 1.0),
        measured("float-mask", 1.3, 1.0),
        measured("window-128", 1.0, 11.0),
        measured("packed", 1.4, 1.0),
    )
    assert found["cost per pair over the plain call, each option"].weakest == (
        pytest.approx(1.05),
        "options-window/float32",
    )
    assert not found["cost per pair over the plain call, each option"].failed
    assert not found["cost per pair over the plain call, soft cap"].failed
    assert found["cost per pair over the plain call, dense float mask"].failed
    assert not found["cost per pair over the plain call, five options together"].found
    assert found["options against every rival"].short() == [
        (pytest.approx(0.5 / share / 1.05), "options-window/float32, vllm")
    ]
    assert found["window 128 at T = 8,192 against the causal call"].failed
    assert found["packed 1 x 1000 + 99 x 1 over 1000"].weakest[0] == pytest.approx(1.4)


def test_rows_of_options_change_no_other_claim() -> None:
    found = verdicts(measured("plain", 1.0, 1.0, torch=0.1))
    assert not found["float32 against the best rival"].found


def test_the_section_is_rewritten_and_the_rest_of_the_page_kept(tmp_path: Path) -> None:
    out = tmp_path / "RESULTS.md"
    prefill = rows.attention("prefill-1024", rows.ATTENTION["prefill-1024"], "float32")
    grid = write(tmp_path / "grid.json", record(prefill, {"headway": 1.0, "torch": 2.0}))
    file = write(
        tmp_path / "options.json",
        measured("alibi", 0.011, 0.010, vllm=0.022, torch="wrong"),
        measured("packed", 0.011, 0.010, vllm=0.005),
    )
    page = ["--out", str(out), "--no-picture"]
    assert results.main([grid, *page]) == 0
    assert sections.NOTHING in out.read_text(encoding="utf-8")
    before, _, after = out.read_text(encoding="utf-8").partition(option_tables.BEGIN)
    assert results.main([file, *page, "--options"]) == 0
    text = out.read_text(encoding="utf-8")
    assert text.startswith(before)
    assert text.endswith(after.partition(option_tables.END)[2])
    assert "| ALiBi | (1, 12, 12, 1024, 64) | 1.000 | 11.0 (22.0) | 10.0 | 1.100 | 1.10 |" in text
    assert "| 2.00 | *22.0 (2.00)* |" in text
    assert "packed: 1000, and 99 of 1 | (1099, 12, 64)" in text
    assert "**0.45: vLLM is ahead**" in text
    assert "* PyTorch SDPA: wrong (alibi)" in text
    assert results.main([grid, *page]) == 0
    assert out.read_text(encoding="utf-8") == text
    with pytest.raises(SystemExit, match="no row of options"):
        results.main([grid, *page, "--options"])
    out.write_text("no comments", encoding="utf-8")
    with pytest.raises(SystemExit, match="expected"):
        results.main([file, *page, "--options"])
