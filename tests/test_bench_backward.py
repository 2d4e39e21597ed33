"""What the benchmark makes of rows with gradients: claims, and their section of the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bench_files import data, module, record, rows, write

backward_claims = module("backward_claims")
backward_tables = module("backward_tables")
claims = module("claims")
compare = module("compare")
results = module("results")
training_rows = module("training_rows")

ROWS = {row.id: row for row in training_rows.training_rows()}


def timed(name: str, times: dict[str, float | str], peak: float = 1000.0, **facts: float) -> Any:
    made = record(ROWS[name], times, peak=peak)
    made["entries"]["headway" if "headway" in times else "headway@1"] |= facts
    return made


def verdicts(*records: Any) -> dict[str, Any]:
    return {verdict.title: verdict for verdict in claims.judge(data(*records))}


def test_claims_against_pytorch_by_dtype_and_size_of_a_head() -> None:
    found = verdicts(
        timed("backward-1024/float32", {"headway": 1.0, "torch-backward": 1.9}),
        timed("backward-512-batch/float32", {"headway": 1.0, "torch-backward": 1.7}),
        timed("backward-1024-d128/float32", {"headway": 1.0, "torch-backward": 1.65}),
        timed("backward-1024/bfloat16", {"headway": 1.0, "torch-backward": 2.3}),
        timed("backward-1024-d128/bfloat16", {"headway": 1.0, "torch-backward": 1.9}),
        # none of these is what the claims speak of
        timed("backward-1024/float16", {"headway": 1.0, "torch-backward": 0.1}),
        timed("backward-1024-one/float32", {"headway@1": 1.0, "torch-backward@1": 0.1}),
        timed("backward-1024-alone/float32", {"headway": 1.0, "torch-backward": 0.1}),
        timed("backward-16384/float32", {"headway": 1.0, "torch-backward": 0.1}),
        timed("backward-options-window/float32", {"headway": 1.0, "torch-backward": 0.1}),
    )
    title = "forward and backward, {}, D = {}, against PyTorch"
    short = found[title.format("float32", 64)]
    assert short.short() == [(pytest.approx(1.7), "backward-512-batch/float32")]
    assert len(short.found) == 2
    assert not found[title.format("float32", 128)].failed
    assert not found[title.format("bfloat16", 64)].failed
    assert found[title.format("bfloat16", 128)].short() == [
        (pytest.approx(1.9), "backward-1024-d128/bfloat16")
    ]
    assert not found["float32 against the best rival"].found


def test_the_share_is_that_of_the_wall_or_of_the_cpu_time() -> None:
    name = "backward-1024-alone/float32"
    work = ROWS[name].flops / 1e9
    made = timed(name, {"headway": work / 600, "headway@1": work / 450})
    title = "backward alone, float32, share of the peak"
    made["entries"]["headway"]["cpu_min"] = 2 * work / 700
    made["entries"]["headway@1"]["cpu_min"] = work / 420
    assert sorted(verdicts(made)[title].found) == [
        (pytest.approx(0.7), f"{name}, headway"),
        (pytest.approx(0.9), f"{name}, headway@1"),
    ]
    assert verdicts(made)[title].failed
    made["entries"]["headway"]["cpu_min"] = None
    assert verdicts(made)[title].weakest[0] == pytest.approx(0.6)
    narrow = timed("backward-1024-alone/bfloat16", {"headway": 1e9})
    assert not verdicts(narrow)[title].found


def test_claims_of_memory_and_of_a_training_step() -> None:
    extra = {"extra": 12.0 * 2**20, "extra-quarter": 2.0 * 2**20}
    found = verdicts(
        timed("backward-16384/float32", {"headway": 1.0}, **extra),
        timed("train-step/float32", {"headway": 1.0, "headway-assign": 1.1, "torch-train": 1.2}),
        timed("train-step/bfloat16", {"headway": 1.0, "torch-train": 0.9}),
    )
    growth = found["backward, extra memory at T over T / 4"]
    assert growth.short() == [(pytest.approx(6.0), "backward-16384/float32")]
    assert found["backward, extra memory, MiB"].weakest[0] == pytest.approx(12.0)
    assert not found["backward, extra memory, MiB"].failed
    assert found["training step of a module against PyTorch"].short() == [
        (pytest.approx(0.9), "train-step/bfloat16")
    ]


def test_compare_prints_the_claims(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "backward-1024/float32"
    file = write(tmp_path / "a.json", timed(name, {"headway": 1.0, "torch-backward": 1.9}))
    assert compare.main([file, "--claims"]) == 0
    line = "ok   forward and backward, float32, D = 64, against PyTorch: at least 1.8, found 1.9"
    assert line in capsys.readouterr().out
    assert compare.main([file, "--claims", "--set", "backward-float32=2"]) == 1
    assert set(backward_claims.DEFAULTS) <= set(claims.DEFAULTS)


def test_the_section_is_rewritten_and_kept(tmp_path: Path) -> None:
    out = tmp_path / "RESULTS.md"
    page = ["--out", str(out), "--no-picture"]
    prefill = rows.attention("prefill-1024", rows.ATTENTION["prefill-1024"], "float32")
    grid = write(tmp_path / "grid.json", record(prefill, {"headway": 1.0, "torch": 2.0}))
    option = timed("backward-options-alibi/float32", {"headway": 0.011, "headway-plain": 0.010})
    plain = ROWS["backward-options-alibi/float32"].plain_flops
    option["entries"]["headway-plain"]["gflops"] = plain / 0.010 / 1e9
    one = {"headway@1": 0.020, "torch-backward@1": 0.030}
    extra = {"extra": 10.0 * 2**20, "extra-quarter": 4.0 * 2**20}
    file = write(
        tmp_path / "backward.json",
        timed("backward-1024/float32", {"headway": 0.010, "torch-backward": 0.009}),
        timed("backward-1024-one/float32", one),
        timed("backward-1024-alone/float32", {"headway": 0.1, "torch-backward": "wrong"}),
        timed("backward-16384/bfloat16", {"headway": 1.0}, **extra),
        option,
        timed("train-step/float32", {"headway": 0.04, "headway-assign": 0.05, "torch-train": 0.06}),
    )
    assert results.main([grid, *page]) == 0
    before = out.read_text(encoding="utf-8").partition(backward_tables.BEGIN)[0]
    assert results.main([file, *page, "--backward"]) == 0
    text = out.read_text(encoding="utf-8")
    assert text.startswith(before)
    shape = "(1, 12, 12, 1024, 64)"
    rate = ROWS["backward-1024/float32"].flops / 1e7
    start = f"| {shape} | float32 | 2 | 10.0 (20.0) | {rate:.0f} | {rate / 1000:.0%} |"
    assert start in text
    assert "| **0.90 (0.90)** |" in text
    assert f"| {shape} | float32 | 1 | 20.0 (40.0) |" in text
    assert "| 30.0 (60.0) |" in text
    assert "| 1.50 (1.50) |" in text
    assert "| ALiBi | 1.000 | 11.0 (22.0) | 10.0 | 1.100 | 1.10 | - | - | - |" in text
    assert "| (1, 2, 1, 16384, 64) | bfloat16 | 4.00 | 10.00 | 2048 |" in text
    assert "| B 4, T 512, 12 heads of 64 | float32 | 40.0 (80.0) |" in text
    assert "| 50.0 (100) | 60.0 (120) |" in text
    assert "* PyTorch SDPA: wrong (backward-1024-alone/float32)" in text
    assert "FAIL forward and backward, float32, D = 64, against PyTorch" in text
    assert results.main([grid, *page]) == 0
    assert out.read_text(encoding="utf-8") == text
    with pytest.raises(SystemExit, match="no row of the backward pass"):
        results.main([grid, *page, "--backward"])
    with pytest.raises(SystemExit, match="no row of decoding"):
        results.main([file, *page, "--decode"])
