"""The benchmark's processes: workers that answer, refuse, err and die; and resumed runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bench_files import BENCH, module

import headway
from headway.timing import turns

grid = module("grid")
measure = module("measure")
processes = module("processes")
rows = module("rows")

STAND_INS = """
import os
from rivals import Prepared, Unsupported
from rivals.plain_numpy import attention

def versions():
    return {"numpy": "0", "headway": "0"}

def threads():
    return 1

def default_isa():
    return "any"

def peak(kind, seconds, isa):
    return {"float32": 1e6, "float64": 5e5}.get(kind)

def read_bandwidth(seconds, num_bytes):
    return 1.0

def wrong(row, inputs):
    made = attention(row, inputs)
    return Prepared(made.call, lambda out: made.result(out) + 1)

def refusing(row, inputs):
    raise Unsupported("not today")

def failing(row, inputs):
    raise ValueError("two\\nlines")

def dying(row, inputs):
    print("last words", flush=True)
    os._exit(3)

def late(row, inputs):
    import time
    time.sleep(60)

def failing_later(row, inputs):
    made, counted = attention(row, inputs), []
    def call():
        counted.append(1)
        if len(counted) > 3:
            raise MemoryError("full")
        return made.call()
    return Prepared(call, made.result)

PREPARE = dict(
    {"headway": attention, "numpy": attention, "vllm": wrong, "torch": refusing},
    **{"zentorch": failing, "jax": dying, "openvino": late, "torch-flex": failing_later},
)
"""
MAIN = """
import sys
sys.path[:0] = [{bench!r}, {here!r}]
import rivals
rivals.MODULES.update(dict.fromkeys(rivals.MODULES, "stand_ins"))
rivals.MODULES["ort-mha"] = "no_such_module"
import worker
worker.main()
"""


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Workers of contestants that need no library; short turns."""
    pytest.importorskip("tqdm")
    here = tmp_path / "stand-ins"
    here.mkdir()
    (here / "stand_ins.py").write_text(STAND_INS, encoding="utf-8")
    program = MAIN.format(bench=str(BENCH), here=str(here))
    (here / "main.py").write_text(program, encoding="utf-8")
    monkeypatch.setattr(processes, "WORKER", here / "main.py")
    monkeypatch.setattr(measure, "SETUP_LIMIT", 4.0)
    monkeypatch.setattr(turns, "BURST_SECONDS", 0.002)
    monkeypatch.setattr(turns, "CALLS", 4)
    return tmp_path / "grid.json"


def run(file: Path, *options: str) -> dict[str, Any]:
    fixed = ["--json", str(file), "--threads", "1", "--rounds", "2", "--quiet", "--no-memory"]
    assert grid.main([*fixed, *options]) == 0
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def test_good_bad_and_absent_contestants(stand_ins: Path) -> None:
    data = run(stand_ins, "--rows", "tiny/float32/BHTD")
    assert data["head"]["threads"]["run"] == 1
    assert data["head"]["build"]
    found = data["rows"]["tiny/float32/BHTD"]
    assert found["peaks"] == {"any/1/float32": 1e6}
    reasons = {who: e["skipped"] for who, e in found["entries"].items() if "skipped" in e}
    assert reasons["vllm"].startswith("wrong: differs by")
    assert reasons["torch"] == "not today"
    assert reasons["zentorch"] == "ValueError: two lines"
    assert reasons["jax"] == "its process ended with code 3: last words"
    assert reasons["openvino"] == "no answer within 4 s"
    assert reasons["torch-flex"] == "MemoryError: full"
    assert reasons["ort-mha"] == "not installed: no_such_module"
    for who in ("headway", "numpy"):
        entry = found["entries"][who]
        assert 0 < entry["wall_min"] <= entry["wall_median"]
        assert entry["cpu_min"] is not None
        assert entry["bursts"] == 2
        assert entry["error"] < 2e-5
    assert module("compare").main([str(stand_ins), "--ahead-of", "numpy:0.001"]) == 0


def test_a_run_is_taken_up_again_row_by_row(
    stand_ins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []
    original = measure.Measurer.row

    def counted(self: Any, row: Any, contestants: Any) -> Any:
        if len(measured) == 1 and row.layout == "BTHD":
            measured.append("stopped")
            raise KeyboardInterrupt
        measured.append(row.id)
        return original(self, row, contestants)

    monkeypatch.setattr(measure.Measurer, "row", counted)
    wanted = ["--rows", "tiny/float32/*", "--only", "headway", "numpy"]
    with pytest.raises(SystemExit, match="goes on from here"):
        run(stand_ins, *wanted)
    assert measured == ["tiny/float32/BHTD", "stopped"]
    data = run(stand_ins, *wanted)
    assert measured[2:] == ["tiny/float32/BTHD"]
    assert set(data["rows"]) == {"tiny/float32/BHTD", "tiny/float32/BTHD"}
    run(stand_ins, *wanted)
    assert len(measured) == 3
    run(stand_ins, *wanted, "--again")
    assert len(measured) == 5


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--rows", "nonesuch"], "names no row"),
        (["--only", "nobody"], "unknown; known: headway"),
    ],
)
def test_unknown_names_are_refused(options: list[str], complaint: str) -> None:
    pytest.importorskip("tqdm")
    with pytest.raises(SystemExit, match=complaint):
        grid.main(options)


@pytest.mark.parametrize(
    "options",
    [["--threads", "0"], ["--rounds", "-1"], ["--study", "no/such"], ["--json", "no/such/file"]],
)
def test_impossible_options_are_refused(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        grid.main(options)
    assert stopped.value.code == 2
    assert options[0] in capsys.readouterr().err


def test_the_real_workers_of_headway_and_numpy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tqdm")
    monkeypatch.setattr(turns, "BURST_SECONDS", 0.002)
    monkeypatch.setattr(measure, "PEAK_SECONDS", 0.01)
    monkeypatch.setattr(grid, "measure_bandwidth", lambda store, measurer: None)
    wanted = ["--rows", "tiny/float32/BTHD", "--only", "headway", "numpy"]
    data = run(tmp_path / "grid.json", *wanted)
    found = data["rows"]["tiny/float32/BTHD"]
    assert all(entry["error"] < 2e-5 for entry in found["entries"].values())
    assert found["peaks"][f"{data['head']['isa']}/1/float32"] > 0


def test_a_rival_s_process_holds_no_headway(tmp_path: Path) -> None:
    program = (
        "import json, sys; import worker; import rivals.plain_numpy; from machine import moment;"
        "print(json.dumps([name for name in sys.modules if name.startswith('headway')]))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=BENCH, check=True, capture_output=True, text=True)
    held = json.loads(done.stdout)
    assert "headway" not in held
    assert not any(name.startswith("headway._core") for name in held)
    program = "import worker, headway; print(headway.isa())"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=BENCH, check=True, capture_output=True, text=True)
    assert done.stdout.strip() in headway.available_isas()


def test_peaks_are_known_per_kind() -> None:
    import numpy as np

    from headway import _core

    assert (_core.peak(0.01, 1, "float32") or 0) > (_core.peak(0.01, 1, "float64") or 0) > 0
    assert _core.peak(0.01, 1, "float16") is None
    assert _core.read_bandwidth(0.01, 1, np.ones(2**18, np.uint64)) > 0
    for wrong in (
        np.ones(2**10, np.uint64),
        np.ones((2, 2**18), np.uint64),
        np.ones(2**21, np.uint8),
    ):
        with pytest.raises(ValueError, match="words"):
            _core.read_bandwidth(0.01, 1, wrong)
    with pytest.raises(ValueError, match="threads"):
        _core.peak(0.01, 0, "float32")
