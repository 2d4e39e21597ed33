"""Checks and times cases, and prints what came out; the part of bench.py that needs NumPy."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import machine
from compare import table
from peak import fma_peak
from rivals import TOLERANCES, Rival, error_against_reference
from shapes import SIZES, Case
from timing import interleave

import headway

SCHEMA = 1
WEIGHTS = {"headway": 1.0, "torch": 1.5, "numpy": 10.0}
"""Rough cost of a contestant's turn, for the progress bar's time left."""


def turn_weight(name: str, case: Case) -> float:
    return 0.2 + WEIGHTS.get(name, 1.0) * case.flops / 1e11


def advance(bar: Any, weight: float) -> None:
    """Move the bar on, never past its end: sums of floats may be a hair too long."""
    bar.update(min(weight, bar.total - bar.n))


def run_case(
    case: Case, threads: int, rivals: Sequence[Rival], rounds: int, bar: Any
) -> tuple[list[dict[str, Any]], float]:
    """Check, then time one case: an entry per contestant, and the peak measured beside them."""
    q, k, v = case.arrays()
    calls, errors = {}, {}
    for rival in rivals:
        rival.set_threads(threads)
        calls[rival.name] = rival.prepare(case, q, k, v)
        error = error_against_reference(case, q, k, v, rival.to_numpy(calls[rival.name]()))
        if error > TOLERANCES[case.dtype]:
            raise SystemExit(
                f"{case.name}: {rival.name} differs from the reference by {error:.1e}, "
                f"allowed is {TOLERANCES[case.dtype]:.0e}; nothing was timed"
            )
        errors[rival.name] = error
    peak = fma_peak(threads)
    samples = interleave(calls, rounds, lambda name: advance(bar, turn_weight(name, case)))
    peak = max(peak, fma_peak(threads))
    entries = []
    for name, taken in samples.items():
        summary = taken.summary()
        entries.append(
            {
                "case": case.name,
                "dtype": case.dtype,
                "shape": {name: getattr(case, name) for name in SIZES},
                "threads": threads,
                "contestant": name,
                "error": errors[name],
                "flops": case.flops,
                "gflops_best": case.flops / summary["wall_min"] / 1e9,
                "gflops_median": case.flops / summary["wall_median"] / 1e9,
                **summary,
            }
        )
    return entries, peak


def run(
    cases: Sequence[Case],
    threads: Sequence[int],
    rivals: Sequence[Rival],
    rounds: int,
    *,
    quiet: bool = False,
) -> dict[str, Any]:
    """Run all cases for each number of threads; what comes back goes into the JSON as it is."""
    try:
        from tqdm import tqdm
    except ImportError:
        raise SystemExit("bench: tqdm is missing; pip install 'headway[bench]'") from None

    plan = [(case, n, [r for r in rivals if r.offers(case)]) for n in threads for case in cases]
    total = rounds * sum(turn_weight(r.name, case) for case, _, offered in plan for r in offered)
    results: list[dict[str, Any]] = []
    peaks = dict.fromkeys(threads, 0.0)
    form = "{l_bar}{bar}| {elapsed} elapsed, {remaining} left"
    with tqdm(total=total, bar_format=form, disable=quiet, file=sys.stderr) as bar:
        for case, count, offered in plan:
            bar.set_description(f"{case.name}, {count} threads")
            entries, peak = run_case(case, count, offered, rounds, bar)
            results += entries
            peaks[count] = max(peaks[count], peak)
    for entry in results:
        share = entry["gflops_best"] / peaks[entry["threads"]]
        entry["fraction_of_peak"] = share if entry["dtype"] == "float32" else None
    head = machine.describe({r.name: r.version() for r in rivals}, headway.isa(), threads)
    return {
        "schema": SCHEMA,
        **head,
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "rounds": rounds,
        "peak_gflops": {str(count): value for count, value in peaks.items()},
        "results": results,
    }


def report(data: dict[str, Any]) -> str:
    """Machine, peak and the table."""
    kernels = [f"{b['internal_api']} {b['version']} ({b['architecture']})" for b in data["blas"]]
    where = data["machine"]
    lines = [
        f"{where['cpu']}, {where['usable_cpus']} usable CPUs, ISA {data['isa']}",
        ", ".join(f"{name} {version}" for name, version in data["versions"].items()),
        f"BLAS: {', '.join(kernels) or 'none found'}",
        f"commit: {data['commit']}{', modified' if data['modified'] else ''}",
    ]
    for count, peak in data["peak_gflops"].items():
        lines.append(f"peak, {count} threads: {peak:.1f} GFLOP/s (float32)")
    return "\n".join([*lines, "", table(data)])
