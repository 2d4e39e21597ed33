"""The benchmark's arithmetic, statistics, files and verdicts, and one tiny run of it."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCH = Path(__file__).resolve().parents[1] / "bench"
sys.path.append(str(BENCH))
compare = importlib.import_module("compare")
machine = importlib.import_module("machine")
readme_table = importlib.import_module("readme_table")
rivals = importlib.import_module("rivals")
shapes = importlib.import_module("shapes")
timing = importlib.import_module("timing")

TINY = shapes.Case("tiny", 2, 4, 2, 5, 9, 8, 6)


def entry(who: str, best: float, share: float | None = 0.5, **more: Any) -> dict[str, Any]:
    """One result as the suite writes it; the median is twice the best."""
    sizes = dict.fromkeys(shapes.SIZES, 1)
    made = {"case": "c", "dtype": "float32", "shape": sizes, "threads": 2, "contestant": who}
    made |= {"wall_min": best, "wall_median": 2 * best, "cpu_median": best, "calls": 3}
    made |= {"gflops_best": 1 / best, "gflops_median": 0.5 / best, "fraction_of_peak": share}
    return made | more


def write(path: Path, *entries: dict[str, Any]) -> str:
    """A result file with these entries; returns its name."""
    head = {"schema": 1, "versions": {"headway": "1", "numpy": "2"}, "isa": "avx2"}
    head |= {"machine": {"cpu": "A CPU", "usable_cpus": 2}}
    path.write_text(json.dumps({**head, "results": entries}), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(("queries", "keys"), [(7, 7), (1, 9), (5, 9), (9, 5), (0, 4), (4, 0)])
def test_visible_pairs(queries: int, keys: int) -> None:
    visible = np.arange(keys) <= np.arange(queries)[:, None] + keys - queries
    assert shapes.visible_pairs(queries, keys) == visible.sum()


def test_flops_of_square_attention() -> None:
    case = shapes.square("square", 2, 6, 3, 33, 16)
    assert case.flops == 4 * 2 * 6 * 16 * 33 * 34 // 2


def test_flops_count_both_widths() -> None:
    assert TINY.flops == 2 * 2 * 4 * (5 + 6 + 7 + 8 + 9) * (8 + 6)


def test_arrays_have_the_shapes_of_the_case() -> None:
    q, k, v = TINY.arrays()
    assert (q.shape, k.shape, v.shape) == ((2, 4, 5, 8), (2, 2, 9, 8), (2, 2, 9, 6))
    assert {array.dtype.name for array in (q, k, v)} == {"float32"}
    assert np.array_equal(q, TINY.arrays()[0])


def test_case_names_are_unique_and_some_are_quick() -> None:
    names = [case.name for case in shapes.CASES]
    assert len(names) == len(set(names))
    assert any(case.quick for case in shapes.CASES)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_numpy_rival_is_right(dtype: str) -> None:
    case = shapes.Case("numpy", 2, 4, 2, 5, 9, 8, 6, dtype)
    arrays = case.arrays()
    got = rivals.numpy_attention(*arrays)
    assert got.dtype == dtype
    assert rivals.error_against_reference(case, *arrays, got) < rivals.TOLERANCES[dtype]


def test_an_error_anywhere_in_the_checked_rows_is_seen() -> None:
    case = shapes.square("long", 1, 2, 1, 300, 4)
    arrays = case.arrays()
    right = rivals.numpy_attention(*arrays)
    assert rivals.error_against_reference(case, *arrays, right) < 2e-5
    for row in (3, 150, 299):
        for value in (right[0, 1, row, 2] + 0.5, np.nan):
            wrong = right.copy()
            wrong[0, 1, row, 2] = value
            assert rivals.error_against_reference(case, *arrays, wrong) > 0.1


def test_statistics() -> None:
    samples = timing.Samples(wall=[3.0, 1.0, 2.0, 10.0], cpu=[4.0, 2.0, 3.0])
    expected = {"wall_min": 1.0, "wall_median": 2.5, "cpu_median": 3.0, "calls": 4}
    assert samples.summary() == expected


def test_turns_are_interleaved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(timing, "MAX_REPEATS", 3)
    calls: list[str] = []
    turns: list[str] = []
    both = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}
    samples = timing.interleave(both, 2, turns.append)
    assert turns == ["a", "b", "a", "b"]
    assert calls == list("aaaabbbbaaaabbbb")  # one call of each turn is not timed
    assert [len(taken.wall) for taken in samples.values()] == [6, 6]
    assert [len(taken.cpu) for taken in samples.values()] == [2, 2]


def test_compare_is_content_where_headway_leads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "a.json", entry("headway", 1.0), entry("numpy", 9.0))
    assert compare.main([file, "--ahead-of", "numpy:8"]) == 0
    assert "9.00x" in capsys.readouterr().out


@pytest.mark.parametrize("wanted", ["numpy:10", "torch"])
def test_compare_fails_where_a_rival_is_ahead_or_absent(tmp_path: Path, wanted: str) -> None:
    file = write(tmp_path / "a.json", entry("headway", 1.0), entry("numpy", 9.0))
    assert compare.main([file, "--ahead-of", wanted]) == 1


def test_compare_judges_only_the_named_cases(tmp_path: Path) -> None:
    slow = [entry("headway", 9.0, case="d"), entry("numpy", 1.0, case="d")]
    file = write(tmp_path / "a.json", entry("headway", 1.0), entry("numpy", 9.0), *slow)
    assert compare.main([file, "--ahead-of", "numpy"]) == 1
    assert compare.main([file, "--ahead-of", "numpy", "--cases", "c"]) == 0


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        ((1.0, 0.5), (5.0, 0.5), 0),  # slower by the clock, at the same share of the peak
        ((1.0, 0.6), (1.0, 0.5), 1),
        ((1.0, None), (1.05, None), 0),
        ((1.0, None), (1.5, None), 1),
        ((1.0, None), (0.5, None), 0),
    ],
)
def test_compare_of_two_files(
    tmp_path: Path, old: tuple[float, Any], new: tuple[float, Any], verdict: int
) -> None:
    files = [
        write(tmp_path / f"{n}.json", entry("headway", *given))
        for n, given in enumerate((old, new))
    ]
    assert compare.main(files) == verdict


def test_compare_of_files_without_a_common_case_fails(tmp_path: Path) -> None:
    a = write(tmp_path / "a.json", entry("headway", 1.0))
    b = write(tmp_path / "b.json", entry("headway", 1.0, case="d"))
    assert compare.main([a, b]) == 1


@pytest.mark.parametrize("content", ["", "[]", '{"schema": 0}'])
def test_compare_refuses_other_files(tmp_path: Path, content: str) -> None:
    file = tmp_path / "a.json"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(SystemExit, match=r"compare: .*a\.json"):
        compare.main([str(file)])


def test_readme_table_replaces_what_stands_between_the_comments(tmp_path: Path) -> None:
    file = write(tmp_path / "a.json", entry("headway", 0.002), entry("numpy", 0.0301))
    table = readme_table.speed_table(compare.load(Path(file)))
    assert "| 1, 1, 1, 1, 1, 1 | float32 | 2 | 2.00 (4.00) | 30.1 (60.2) | 500 | 50% |" in table
    text = f"a\n{readme_table.BEGIN}\nold\n{readme_table.END}\nb\n"
    once = readme_table.rewrite(text, table)
    assert "old" not in once
    assert once.startswith("a\n")
    assert once.endswith("\nb\n")
    assert readme_table.rewrite(once, table) == once
    with pytest.raises(SystemExit, match="expected"):
        readme_table.rewrite("no comments", table)


def test_blas_settings_are_taken_out_of_the_environment() -> None:
    program = (
        "import machine, os; machine.without_blas_overrides(); "
        "print(sorted(set(machine.OVERRIDES) & set(os.environ)))"
    )
    env = {**os.environ, "OPENBLAS_CORETYPE": "Haswell", "OPENBLAS_L2_SIZE": "1"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=BENCH, env=env, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


@pytest.fixture
def restored_threads(any_threads: None) -> Iterator[None]:
    """Give the thread counts of headway, NumPy's BLAS and PyTorch back after the test."""
    threadpoolctl = pytest.importorskip("threadpoolctl")
    with threadpoolctl.threadpool_limits(1, user_api="blas"):
        torch = importlib.import_module("torch") if find_spec("torch") else None
        before = torch.get_num_threads() if torch else 0
        yield
        if torch:
            torch.set_num_threads(before)


def test_a_tiny_run(restored_threads: None) -> None:
    pytest.importorskip("tqdm")
    suite = importlib.import_module("suite")
    contestants = rivals.installed()
    data = json.loads(json.dumps(suite.run([TINY], [1], contestants, 1, quiet=True)))
    assert data["schema"] == suite.SCHEMA
    assert data["threads"] == [1]
    assert {"when", "commit", "machine", "versions", "isa", "blas", "load_average"} <= set(data)
    assert data["peak_gflops"]["1"] > 0
    assert [found["contestant"] for found in data["results"]] == [r.name for r in contestants]
    for found in data["results"]:
        assert set(entry("x", 1.0)) | {"error", "flops"} == set(found)
        assert found["error"] < 2e-5
        assert 0 < found["wall_min"] <= found["wall_median"]
        assert 0 < found["fraction_of_peak"] < 1
    assert "tiny" in suite.report(data)


def test_a_wrong_contestant_is_not_timed(
    monkeypatch: pytest.MonkeyPatch, restored_threads: None
) -> None:
    pytest.importorskip("tqdm")
    suite = importlib.import_module("suite")
    rival = rivals.Headway()
    monkeypatch.setattr(rival, "to_numpy", lambda result: np.asarray(result) + 1)
    with pytest.raises(SystemExit, match="tiny: headway differs from the reference"):
        suite.run([TINY], [1], [rival], 1, quiet=True)


def test_torch_agrees_on_every_kind_of_case() -> None:
    pytest.importorskip("torch")
    torch_rival = rivals.Torch()
    for case in (
        shapes.square("square", 1, 4, 2, 17, 8),
        TINY,
        shapes.Case("d", 2, 4, 2, 1, 9, 8, 8),
    ):
        arrays = case.arrays()
        got = torch_rival.to_numpy(torch_rival.prepare(case, *arrays)())
        assert rivals.error_against_reference(case, *arrays, got) < 2e-5


def test_unknown_names_are_refused() -> None:
    command = [sys.executable, str(BENCH / "bench.py"), "--cases", "nonesuch"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "nonesuch: unknown; known here: prefill-1024" in done.stderr
