"""The errors of headway, PyTorch and ONNX Runtime on the same inputs, against float64.

    python bench/accuracy.py                        # every case, 20 seeds, into bench/accuracy.json
    python bench/accuracy.py --tokens 64 1024 --dtypes float32 --seeds 4
    python bench/accuracy.py --claims               # exit code 1 where a claim does not hold
    python bench/accuracy.py --show FILE --markdown # the tables of a result file

An error is that of one number of the result, in units of the largest one wanted in its row (one
query of one head), or in units of the last place of the result's dtype at that largest number.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from accuracy_inputs import DTYPES, LOGITS, TOKENS, Case, compared_rows, make, truth
from accuracy_rivals import Attend, contestants
from accuracy_tables import failures, tables
from inputs import Array, numpy_dtype
from machine import describe, without_blas_overrides

Errors = dict[str, float]
FILE = Path(__file__).parent / "accuracy.json"


def units_of_last_place(size: Array, dtype: str) -> Array:
    """The distance between neighbours of the dtype at numbers of this size."""
    if dtype != "bfloat16":
        found: Array = np.spacing(np.abs(size).astype(numpy_dtype(dtype))).astype(np.float64)
        return found
    return np.spacing(np.abs(size).astype(np.float32)).astype(np.float64) * 2.0**16


def errors_of(got: Array, wanted: Array, dtype: str) -> Errors:
    """Mean and largest error of one seed; infinite where a number is not finite."""
    size = np.abs(wanted).max(axis=-1, keepdims=True)
    off = np.where(np.isfinite(got), np.abs(got - wanted), np.inf)
    found: Errors = {}
    for unit, apart in (("scale", off / size), ("ulp", off / units_of_last_place(size, dtype))):
        found |= {f"mean_{unit}": float(apart.mean()), f"max_{unit}": float(apart.max())}
    return found


def over_seeds(each: Sequence[Errors]) -> Errors:
    """Mean of the means, largest of the largest."""
    return {
        name: float((np.mean if name.startswith("mean") else np.max)([one[name] for one in each]))
        for name in each[0]
    }


def measure(case: Case, seeds: int, who: dict[str, Attend]) -> dict[str, Any]:
    """The record of a case: errors of those who computed it, reasons of those who did not."""
    found: dict[str, list[Errors]] = {name: [] for name in who}
    skipped: dict[str, str] = {}
    for seed in range(seeds):
        problem, chosen = make(case, seed), compared_rows(case, seed)
        wanted = truth(problem, chosen)
        for name, attend in who.items():
            if name in skipped:
                continue
            try:
                got = attend(problem)[0][:, chosen]
            except Exception as error:
                skipped[name] = str(error).splitlines()[0][:80] if str(error) else repr(error)
                continue
            found[name].append(errors_of(got, wanted, case.dtype))
    errors = {name: over_seeds(each) for name, each in found.items() if each}
    row = {"dtype": case.dtype, "tokens": case.tokens, "logits": case.logits, "seeds": seeds}
    return {**row, "errors": errors, "skipped": skipped}


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--tokens", nargs="+", type=int, default=TOKENS, metavar="T")
    parser.add_argument("--logits", nargs="+", choices=LOGITS, default=LOGITS)
    parser.add_argument("--isas", nargs="+", metavar="ISA", help="of headway; all by default")
    parser.add_argument("--seeds", type=int, default=20, metavar="N")
    parser.add_argument("--json", type=Path, default=FILE, metavar="FILE")
    parser.add_argument("--show", type=Path, metavar="FILE", help="measure nothing, read this")
    parser.add_argument("--markdown", action="store_true", help="tables for the documentation")
    parser.add_argument("--claims", action="store_true", help="exit code 1 where one fails")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parsed(arguments)
    if options.show is None:
        who, versions = contestants(options.isas)
        data: dict[str, Any] = {**describe(versions), "rows": []}
        for dtype in options.dtypes:
            for tokens in options.tokens:
                for logits in options.logits:
                    case = Case(dtype, tokens, logits)
                    data["rows"].append(measure(case, options.seeds, who))
                    print(f"{case.id}", file=sys.stderr, flush=True)
                    options.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    else:
        data = json.loads(options.show.read_text(encoding="utf-8"))
    print(tables(data["rows"], markdown=options.markdown))
    failed = failures(data["rows"])
    for line in failed:
        print(f"FAIL {line}")
    return 1 if options.claims and failed else 0


if __name__ == "__main__":
    without_blas_overrides()
    raise SystemExit(main())
