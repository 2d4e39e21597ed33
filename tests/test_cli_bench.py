"""``headway bench``: small rows with real and made-up peers; what it prints and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runs import first_on_path, needs_posix, plain_text, start

import headway
from headway import cli
from headway.benchmark import measuring, rows
from headway.benchmark.rows import Row
from headway.commands import run_bench
from headway.comparison import relative_error
from headway.timing import turns

pytestmark = needs_posix

TINY = (
    Row("square", "2 heads", "attention", 2, 2, 20, 20, 8),
    Row("chunk", "4 heads on 2", "attention", 4, 2, 5, 24, 8),
    Row("decode", "4 heads on 2", "attention", 4, 2, 1, 24, 8),
    Row("layer", "4 heads", "layer", 4, 4, 12, 12, 8),
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny rows and short turns."""
    monkeypatch.setattr(run_bench, "ROWS", {row.name: row for row in TINY})
    monkeypatch.setattr(turns, "BURST_SECONDS", 0.002)
    monkeypatch.setattr(turns, "CALLS", 4)


def bench(capsys: pytest.CaptureFixture[str], *options: str, code: int = 0) -> Any:
    assert cli.main(["bench", "--rounds", "2", "--threads", "1", "--json", *options]) == code
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


def test_headway_and_numpy_on_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    found = bench(capsys, "--only", "numpy")
    head = found["head"]
    assert head["isa"] == headway.available_isas()[0]
    assert head["threads"] == 1
    assert head["versions"]["headway"] == headway.__version__
    assert head["versions"]["numpy"] == np.__version__
    assert list(found["rows"]) == [row.name for row in TINY]
    for record, row in zip(found["rows"].values(), TINY, strict=True):
        assert Row(**record["row"]) == row
        assert record["flops"] == row.flops
        assert list(record["entries"]) == ["headway", "numpy"]
        for entry in record["entries"].values():
            assert 0 < entry["wall_min"] <= entry["wall_median"]
            assert entry["error"] < 2e-5
            assert entry["bursts"] == 2
            assert entry["threads"] == 1


def test_work_counts_the_unmasked_pairs() -> None:
    square, chunk, decode, layer = TINY
    assert square.flops == 4 * 16 * 210
    assert chunk.flops == 4 * 32 * (20 + 21 + 22 + 23 + 24)
    assert decode.flops == 4 * 32 * 24
    assert layer.flops == 4 * 32 * 78 + 8 * 12 * 32 * 32


@pytest.mark.parametrize("row", TINY, ids=lambda row: row.name)
def test_what_is_expected_is_the_reference_s(row: Row) -> None:
    arrays = rows.inputs(row)
    wide = {name: array.astype(np.float64) for name, array in arrays.items()}
    if row.kind == "layer":
        names = ("w_query", "w_key", "w_value")
        weights = [wide[name] for name in names]
        module = headway.MultiHeadAttention(*weights, num_heads=row.num_heads, w_out=wide["w_out"])
        wanted = module(wide["x"])
    else:
        wanted = headway.reference.attention(wide["q"], wide["k"], wide["v"])
    np.testing.assert_allclose(rows.expected(row), wanted, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("row", TINY, ids=lambda row: row.name)
@pytest.mark.parametrize("peer", ["own", "plain_numpy", "pytorch", "onnx_runtime"])
def test_every_peer_is_right(
    peer: str, row: Row, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in {"pytorch": ("torch",), "onnx_runtime": ("onnx", "onnxruntime")}.get(peer, ()):
        pytest.importorskip(package)
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    module = __import__(f"headway.benchmark.{peer}", fromlist=["prepare"])
    assert module.versions()
    assert module.threads() >= 1
    row = row._replace(dtype=dtype)
    refused = {"plain_numpy": ("bfloat16", "float16"), "onnx_runtime": ("bfloat16",)}
    if dtype in refused.get(peer, ()):
        with pytest.raises(Exception, match=r"no BLAS for|no bfloat16 kernel"):
            module.prepare(row, rows.inputs(row))
        return
    made = module.prepare(row, rows.inputs(row))
    for _ in range(2):  # a cache that is extended in place stays as it is
        got = made.result(made.call())
        assert relative_error(got, rows.expected(row)) <= rows.TOLERANCES[dtype]


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "--rounds", "1", "--threads", "1", "--only", "numpy", "--rows"]
    assert cli.main([*arguments, "decode", "square"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^row +headway +NumPy +ahead$", out, re.MULTILINE)
    for name in ("square", "decode"):
        cell = r"[\d.,]+ \([\d.,]+\)"
        assert re.search(rf"^{name} +{cell} +{cell} +\d+\.\d\d$", out, re.MULTILINE)
    assert f"{headway.available_isas()[0]}, 1 thread each" in out
    assert "decode       4 heads on 2, float32" in out
    assert cli.main([*arguments, "decode", "--dtype", "float16"]) == 0
    out = capsys.readouterr().out
    assert "NumPy: no BLAS for float16\n" in out
    assert re.search(r"^decode +\S+ \(\S+\) +- +-$", out, re.MULTILINE)


# Peers that are absent, wrong or broken -----------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("raise ImportError('none', name='torch')", "not installed: torch"),
        ("raise ValueError('odd')", "ValueError: odd"),
        ("print('last words'); import os; os._exit(3)", "its process ended with code 3"),
    ],
)
def test_a_peer_that_cannot_run_is_named_with_the_reason(
    program: str,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "torch.py").write_text(program)
    monkeypatch.syspath_prepend(tmp_path)
    found = bench(capsys, "--only", "torch", "--rows", "square")
    entries = found["rows"]["square"]["entries"]
    assert reason in entries["torch"]["skipped"]
    assert "wall_min" in entries["headway"]


def test_a_wrong_result_is_not_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measuring, "expected", lambda row: rows.expected(row) + 1)
    found = bench(capsys, "--only", "numpy", "--rows", "square", code=1)
    for entry in found["rows"]["square"]["entries"].values():
        assert re.fullmatch(r"wrong: differs by .*, allowed is 2e-05", entry["skipped"])
    assert cli.main(["bench", "--rows", "square", "--only", "numpy"]) == 1
    assert "headway: wrong: differs by" in capsys.readouterr().out


def test_another_library_s_process_holds_no_headway() -> None:
    program = measuring.START.rpartition("importlib.import_module")[0]
    program += "import headway.benchmark.plain_numpy, headway.benchmark.peers\n"
    program += "print(json.dumps([hasattr(headway, 'attention'), *sys.modules]))"
    given = json.dumps([sys.path, str(measuring.PACKAGE), "numpy"])
    command = [sys.executable, "-c", program, given]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    complete, *held = json.loads(done.stdout)
    assert not complete
    assert not [name for name in held if "_core" in name and name.startswith("headway")]


# Use ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--rows", "nonesuch"], ".*--rows: invalid choice: 'nonesuch' .*"),
        (["--only", "nobody"], ".*--only: invalid choice: 'nobody' .*"),
        (
            ["--threads", "100000"],
            r".*--threads: expected a whole number, 1 to \d+, got '100000'.*",
        ),
        (["--rounds", "0"], ".*--rounds: expected a whole number, 1 to 1,000, got '0'"),
    ],
)
def test_wrong_use_is_told_in_one_line(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(f"headway: {text}; see headway bench --help\n", err)


def test_bfloat16_without_ml_dtypes_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    assert cli.main(["bench", "--dtype", "bfloat16"]) == 2
    wanted = r"headway: --dtype bfloat16: .* pip install 'headway\[bfloat16\]'\n"
    assert re.fullmatch(wanted, capsys.readouterr().err)


def test_progress_names_rows_and_peers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from headway.commands import screen

    monkeypatch.setattr(screen, "is_terminal", lambda stream: stream is sys.stderr)
    monkeypatch.setattr(screen, "rich", lambda module: None)
    assert cli.main(["bench", "--rounds", "2", "--only", "numpy", "--rows", "square", "layer"]) == 0
    steps = re.findall(r"(\d+)/16 (\w+, \w+)", plain_text(capsys.readouterr().err))
    numbers = [int(number) for number, _ in steps]
    assert numbers == sorted(numbers)
    assert (numbers[0], numbers[-1]) == (1, 16)
    assert [name for _, name in steps[1:3]] == ["square, headway", "square, NumPy"]
    assert steps[8] == ("9", "layer, headway")
    assert steps[-1][1] == "layer, NumPy"


BUSY = """
import os, time

__version__ = "1"

def get_num_threads():
    return 1

class nn:
    def __getattr__(self, name):
        with open({pid!r} + ".new", "w") as file:
            file.write(str(os.getpid()))
        os.rename({pid!r} + ".new", {pid!r})
        time.sleep(60)

nn = nn()
"""


def test_ctrl_c_ends_it_with_one_line_and_takes_the_processes_along(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    (tmp_path / "torch.py").write_text(BUSY.format(pid=str(pid)))
    env = first_on_path(tmp_path)
    with start("bench", "--only", "torch", "--rows", "prefill-128", env=env) as process:
        end = time.monotonic() + 60
        while not pid.exists() and time.monotonic() < end:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, b"", b"headway: interrupted\n")
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
