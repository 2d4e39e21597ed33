"""What the benchmark makes of its result files: verdicts, tables, the page, the picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench_files import data, module, record, rows, write

claims = module("claims")
compare = module("compare")
figures = module("figures")
readme_table = module("readme_table")
results = module("results")
store = module("store")


def prefill(name: str = "prefill-1024", dtype: str = "float32", **more: object) -> object:
    return rows.attention(name, rows.ATTENTION[name], dtype, **more)


def test_compare_is_content_where_headway_leads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(
        tmp_path / "a.json", record(prefill(), {"headway": 1.0, "numpy": 9.0, "jax": "no"})
    )
    assert compare.main([file, "--ahead-of", "numpy:8", "--ahead"]) == 0
    printed = capsys.readouterr().out
    assert "9.00x" in printed
    assert "prefill-1024/float32/BHTD: jax: no" in printed


@pytest.mark.parametrize(
    "options", [["--ahead-of", "numpy:10"], ["--ahead-of", "torch"], ["--ahead", "9.5"]]
)
def test_compare_fails_where_a_rival_is_ahead_or_absent(tmp_path: Path, options: list[str]) -> None:
    file = write(tmp_path / "a.json", record(prefill(), {"headway": 1.0, "numpy": 9.0}))
    assert compare.main([file, *options]) == 1


def test_compare_judges_only_the_named_rows(tmp_path: Path) -> None:
    lost = record(prefill("prefill-512"), {"headway": 9.0, "numpy": 1.0})
    won = record(prefill(), {"headway": 1.0, "numpy": 9.0})
    file = write(tmp_path / "a.json", won, lost)
    assert compare.main([file, "--ahead"]) == 1
    assert compare.main([file, "--ahead", "--rows", "prefill-1024/*"]) == 0
    with pytest.raises(SystemExit, match="names no row"):
        compare.main([file, "--rows", "nonesuch"])


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        ((1.0, 1000.0), (5.0, 200.0), 0),  # slower by the clock, at the same share of the peak
        ((1.0, 1000.0), (1.0, 1200.0), 1),
        ((1.0, 1000.0), (0.5, 1000.0), 0),
    ],
)
def test_compare_of_two_files(
    tmp_path: Path, old: tuple[float, float], new: tuple[float, float], verdict: int
) -> None:
    files = [
        write(tmp_path / f"{n}.json", record(prefill(), {"headway": seconds}, peak=peak))
        for n, (seconds, peak) in enumerate((old, new))
    ]
    assert compare.main(files) == verdict


def test_compare_of_files_without_a_common_row_fails(tmp_path: Path) -> None:
    a = write(tmp_path / "a.json", record(prefill(), {"headway": 1.0}))
    b = write(tmp_path / "b.json", record(prefill("prefill-512"), {"headway": 1.0}))
    assert compare.main([a, b]) == 1


@pytest.mark.parametrize("content", ["", "[]", '{"schema": 1}'])
def test_other_files_are_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "a.json"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(SystemExit, match=r"compare: .*a\.json"):
        compare.main([str(file)])


@pytest.mark.parametrize(
    "options",
    [["--ahead-of", "nobody"], ["--ahead-of", "torch:x"], ["--set", "nothing=1", "--claims"]],
)
def test_wrong_options_are_named(tmp_path: Path, options: list[str]) -> None:
    file = write(tmp_path / "a.json", record(prefill(), {"headway": 1.0, "torch": 2.0}))
    with pytest.raises(SystemExit, match="compare: --"):
        compare.main([file, *options])


def verdicts(*records: dict[str, object]) -> dict[str, object]:
    return {verdict.title: verdict for verdict in claims.judge(data(*records))}


def test_claims_see_the_weakest_rival_of_every_row() -> None:
    found = verdicts(
        record(prefill(), {"headway": 1.0, "vllm": 1.2, "torch": 1.5}),
        record(prefill("prefill-512"), {"headway": 1.0, "vllm": 1.01, "torch": 1.9}),
        record(prefill(dtype="bfloat16"), {"headway": 1.0, "zentorch": 1.7}),
        record(prefill("prefill-4096", "bfloat16"), {"headway": 1.0, "zentorch": 1.4}),
    )
    best = found["float32 against the best rival"]
    assert best.weakest == (pytest.approx(1.01), "prefill-512/float32/BHTD, vllm")
    assert best.failed
    assert found["float32 against the best rival, geometric mean"].failed
    assert not found["float32 against PyTorch up to T = 512"].failed
    assert not found["float32 against PyTorch beyond"].failed
    assert found["bfloat16 up to T = 1,024, D = 64"].failed
    assert not found["bfloat16 against the best rival"].failed
    assert found["stage 2 against stage 1"].line.endswith("not measured")


def test_claims_of_shares_threads_modules_and_growth() -> None:
    alone = prefill("prefill-1024", isa="avx512", contestants=rows.ALONE)
    flops = alone.flops
    layer = rows.module("m", 1, 64, 2, 8, "float32")
    base, long = (prefill(name) for name in ("prefill-4096", "prefill-16384"))
    times = {"headway@1": flops / 450e9, "headway@2": flops / 800e9}
    found = verdicts(
        record(alone, times, peak=1000.0),
        record(layer, {"headway": 1.1, "headway-products": 0.6, "headway-attention": 0.4}),
        record(base, {"headway": base.flops / 500e9}),
        record(long, {"headway": long.flops / 400e9}),
    )
    assert found["share of the peak, float32"].weakest[0] == pytest.approx(0.9)
    assert found["two threads against one"].weakest[0] == pytest.approx(800 / 450)
    assert found["two threads against one"].failed
    assert found["module, float32, over its parts"].weakest[0] == pytest.approx(1.1)
    assert found["module, float32, over its parts"].failed
    growth = found["rate at T = 16,384 and 131,072 against T = 4,096"]
    assert growth.weakest[0] == pytest.approx(0.8)


def test_claims_decide_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "a.json", record(prefill(), {"headway": 1.0, "vllm": 1.1}))
    assert compare.main([file, "--claims"]) == 1
    assert "geometric mean: at least 1.15, found 1.1" in capsys.readouterr().out
    assert compare.main([file, "--claims", "--set", "float32-mean=1.05"]) == 0


def some_records() -> list[dict[str, object]]:
    alone = prefill("prefill-1024", isa="avx512", contestants=rows.ALONE)
    return [
        record(prefill(), {"headway": 0.002, "numpy": 0.0301, "jax": "not installed: jax"}),
        record(prefill("prefill-512"), {"headway": 0.003, "vllm": 0.002, "jax": "too large"}),
        record(prefill(dtype="bfloat16", layout="BTHD"), {"headway": 0.002, "torch": 0.003}),
        record(alone, {"headway@1": 0.004, "headway@2": 0.002, "study": 0.0041}),
        record(
            rows.module("module-768", 1, 8, 2, 4, "float32"), {"headway": 1.0, "torch-mha": 2.0}
        ),
        record(
            rows.module("s", 1, 8, 2, 4, "float32", kind="stages"), {"stage-1": 2.0, "stage-2": 1.0}
        ),
    ]


def test_the_page_shows_won_and_lost_rows_and_keeps_what_was_written_by_hand(
    tmp_path: Path,
) -> None:
    file = write(tmp_path / "a.json", *some_records())
    out = tmp_path / "RESULTS.md"
    arguments = [file, "--out", str(out), "--no-picture"]
    assert results.main(arguments) == 0
    text = out.read_text(encoding="utf-8")
    assert (
        "| (1, 12, 12, 1024, 64) | 2.00 (4.00) | 806 | 81% | 15.05 | *30.1* | - |"
        in text.replace("- | *30.1*", "*30.1* | -")
    )
    assert "**0.67: vLLM is ahead**" in text
    assert "* JAX: not installed: jax (prefill-1024/float32/BHTD)" in text
    assert results.NOTHING in text
    assert text.count("No notes.") == 2  # below decoding, and the backward pass
    noted = text.replace(results.NOTHING, "Tried this, and that.")
    out.write_text(noted.replace("No notes.", "Read once more."), encoding="utf-8")
    assert results.main(arguments) == 0
    text = out.read_text(encoding="utf-8")
    assert "Tried this, and that." in text
    assert text.count("Read once more.") == 2
    out.write_text("no comments", encoding="utf-8")
    with pytest.raises(SystemExit, match="expected"):
        results.main(arguments)


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    module("plot").draw(data(*some_records()), tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_readme_table_replaces_what_stands_between_the_comments() -> None:
    table = readme_table.speed_table(data(*some_records()))
    assert "| (1, 12, 12, 1024, 64) | float32 | 2.00 | 806 | 81% | NumPy 30.1 | 15.05 |" in table
    text = f"a\n{readme_table.BEGIN}\nold\n{readme_table.END}\nb\n"
    once = readme_table.rewrite(text, table)
    assert "old" not in once
    assert once.startswith("a\n")
    assert once.endswith("\nb\n")
    assert readme_table.rewrite(once, table) == once
    with pytest.raises(SystemExit, match="expected"):
        readme_table.rewrite("no comments", table)


def test_a_store_keeps_rows_of_the_same_build_and_machine_only(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    head = data()["head"]
    first = store.Store(path, head, fresh=False)
    first.add("rows", "r", {"entries": {"headway": {}, "numpy": {}}})
    again = store.Store(path, head, fresh=False)
    assert again.done("r", ["headway"])
    assert not again.done("r", ["headway", "torch"])
    assert not again.done("other", ["headway"])
    rebuilt = store.Store(path, {**head, "build": "c"}, fresh=False)
    assert rebuilt.left_over == 1
    assert not rebuilt.done("r", ["headway"])
    assert not store.Store(path, head, fresh=True).done("r", ["headway"])
    assert json.loads(path.read_text(encoding="utf-8"))["schema"] == store.SCHEMA
    assert list(tmp_path.iterdir()) == [path]
