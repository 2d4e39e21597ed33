"""Result files for the benchmark's tests, and its modules, which no package holds."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parents[1] / "bench"
if str(BENCH) not in sys.path:
    sys.path.append(str(BENCH))


def module(name: str) -> Any:
    """A module of the folder bench."""
    return importlib.import_module(name)


rows = module("rows")
HEAD = {
    "when": "2026-01-01T00:00:00+00:00",
    "commit": "abc",
    "modified": False,
    "machine": {"cpu": "A CPU", "usable_cpus": 2, "architecture": "x", "system": "S 1"},
    "versions": {"headway": "1", "numpy": "2"},
    "isa": "avx512",
    "build": "b",
    "threads": {"run": 2, "headway": 2},
    "blas": [],
}


def entry(best: float, *, threads: int = 2, flops: float = 1e9) -> dict[str, Any]:
    """A timed contestant; the median is twice the best."""
    made = {"error": 1e-7, "note": "", "wall_min": best, "wall_median": 2 * best, "cpu_min": best}
    made |= {"cpu_median": best, "calls": 30, "bursts": 5, "threads": threads}
    return made | {"gflops": flops / best / 1e9}


def record(row: Any, times: dict[str, float | str], peak: float = 1000.0) -> dict[str, Any]:
    """A row's record: seconds of those who were timed, reasons of those who were not."""
    entries: dict[str, Any] = {}
    for who, value in times.items():
        if isinstance(value, str):
            entries[who] = {"skipped": value}
        else:
            threads = 1 if who.endswith("@1") else 2
            entries[who] = entry(value, threads=threads, flops=row.flops)
    peaks = {
        f"{row.isa or 'avx512'}/{n}/{kind}": peak * n / 2
        for n in (1, 2)
        for kind in ("float32", "float64", "bfloat16")
    }
    return {
        "row": row.to_json(),
        "flops": row.flops,
        "peaks": peaks,
        "load": [0.1, 0, 0],
        "seconds": 2.0,
        "entries": entries,
        "when": HEAD["when"],
        "commit": "abc",
        "modified": False,
        "stamp": "s",
    }


def data(*records: dict[str, Any]) -> dict[str, Any]:
    named = {rows.Row.from_json(each["row"]).id: each for each in records}
    return {"schema": 2, "head": HEAD, "rows": named, "memory": {}, "bandwidth": 12.0}


def write(path: Path, *records: dict[str, Any]) -> str:
    """A result file with these records; returns its name."""
    path.write_text(json.dumps(data(*records)), encoding="utf-8")
    return str(path)
