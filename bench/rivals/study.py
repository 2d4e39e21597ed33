"""A program that times itself, given by ``--study``: forward pass only, (B, H, T, D), no groups.

It is called as ``study time FILTER B H T D THREADS SECONDS 1`` and prints, for each kernel that
the filter names, ``NAME min X us med Y us ... cpu-time med M% best N% ... n=COUNT``. Its results
are its own affair (``study check``): they are not compared here.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
from inputs import Inputs
from rows import Row

from . import Prepare, Prepared, Unsupported

FILTERS = {"float32": "F32 qk4", "bfloat16": "BF16", "float16": "FP16"}
LINE = re.compile(r"(?P<name>\S.*?) min +(?P<min>[\d.]+) us med +(?P<med>[\d.]+) us .*n=(?P<n>\d+)")


def versions() -> dict[str, str]:
    return {}


def threads() -> int:
    return int(os.environ["OMP_NUM_THREADS"])


def parse(text: str) -> tuple[list[float], int]:
    """Seconds, best and median, and the calls behind them, of the quickest kernel printed."""
    found = [match.groupdict() for match in LINE.finditer(text)]
    if not found:
        raise RuntimeError(f"no times in what the program printed: {text.strip()[:100]!r}")
    best = min(found, key=lambda each: float(each["min"]))
    return [float(best["min"]) * 1e-6, float(best["med"]) * 1e-6], int(best["n"])


def attention(row: Row, _: Inputs) -> Prepared:
    program = Path(os.environ["BENCH_STUDY"])
    if not (program.is_file() and os.access(program, os.X_OK)):
        raise Unsupported("the folder holds no compiled program")
    if row.num_heads != row.num_kv_heads or row.num_queries != row.num_keys:
        raise Unsupported("no grouped heads, no chunks")
    if row.layout != "BHTD" or row.dtype not in FILTERS:
        raise Unsupported(f"no {row.layout} {row.dtype}")
    kernel = "AVX2" if row.isa == "avx2" else FILTERS[row.dtype]
    sizes = [str(n) for n in (row.batch, row.num_heads, row.num_keys, row.head_dim, threads())]

    def timed(seconds: float) -> tuple[list[float], int]:
        command = [str(program), "time", kernel, *sizes, f"{seconds:g}", "1"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return parse(done.stdout)

    def call() -> Any:
        return timed(0)

    return Prepared(call, lambda _: np.empty(0), timed=timed)


PREPARE: dict[str, Prepare] = {"study": attention}
