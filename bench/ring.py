"""Measure attention over ranks beside what `headway plan` predicts: python bench/ring.py.

Runs mpiexec with 1, 2, 4 and 8 ranks (``--ranks``) of one thread each and writes bench/ring.json.
``--results`` writes the section of RESULTS.md from that file without measuring, ``--picture``
the picture of the documentation. Needs mpi4py and mpiexec (``pip install 'headway[mpi]'``).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import machine
import ring_tables
import sections

FOLDER = Path(__file__).parent
OUT = FOLDER / "ring.json"
RESULTS = FOLDER / "RESULTS.md"
PICTURE = FOLDER.parent / "docs" / "pages" / "pictures" / "ring-overlap.svg"

RUNS = (("zigzag", (1, 2, 4, 8)), ("contiguous", (4,)), ("striped", (1, 2, 4)))
"""Sharding and numbers of ranks of each run."""
SIZES = {"heads": 8, "kv_heads": 2, "head_dim": 64}
TRACE = {"tokens": 2048, "heads": 8, "kv_heads": 8, "head_dim": 64}
"""What the picture shows: as many key heads as query heads, so that messages take their time."""


def mpiexec() -> str:
    own = Path(sysconfig.get_path("scripts")) / "mpiexec"
    return str(own) if own.exists() else "mpiexec"


def run(ranks: int, problem: dict[str, Any]) -> dict[str, Any]:
    """One job: what rank 0 prints."""
    settings = {"HEADWAY_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    env = {name: value for name, value in os.environ.items() if name not in machine.OVERRIDES}
    command = [mpiexec(), "-n", str(ranks), sys.executable, str(FOLDER / "ring_worker.py")]
    try:
        done = subprocess.run(
            [*command, json.dumps(problem)], env=env | settings, stdout=subprocess.PIPE, timeout=600
        )
    except FileNotFoundError:
        raise SystemExit("ring: no mpiexec: pip install 'headway[mpi]'") from None
    if done.returncode:
        raise SystemExit(f"ring: {ranks} ranks ended with exit code {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(most: int, rounds: int, tokens: int) -> dict[str, Any]:
    """All runs, one after another."""
    import headway

    head = machine.describe({"headway": headway.__version__}) | {"isa": headway.isa()}
    head["build"] = headway.info()["build"]
    runs, sizes = [], {**SIZES, "tokens": tokens}
    for sharding, counts in RUNS:
        for ranks in (count for count in counts if count <= most):
            runs.append(run(ranks, {**sizes, "sharding": sharding, "rounds": rounds}))
            print(f"{sharding}, {ranks} ranks: done", file=sys.stderr)
    trace = run(2, {**TRACE, "sharding": "zigzag", "rounds": 5}) if most >= 2 else None
    return {"head": head, "load": os.getloadavg()[0], "runs": runs, "trace": trace}


def joined(before: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    """The rounds of both, run by run; the rest of the later one."""
    for old, new in zip(before["runs"], data["runs"], strict=True):
        names = ("sharding", "ranks", "tokens")
        if any(old[name] != new[name] for name in names):
            raise SystemExit("ring: --again: the file holds other runs")
        for which in ("forward", "backward"):
            new[which] = old[which] + new[which]
        if new["decode"] and old["decode"][0]["wall"] < new["decode"][0]["wall"]:
            new["decode"] = old["decode"]
    return data


def read(path: Path) -> dict[str, Any]:
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SystemExit(f"ring: {path}: {error}") from None
    return data


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=8, metavar="N", help="at most (default: 8)")
    parser.add_argument("--rounds", type=int, default=4, metavar="N", help="default: 4")
    parser.add_argument("--tokens", type=int, default=8192, metavar="N", help="default: 8192")
    parser.add_argument("--json", type=Path, default=OUT, help="default: bench/ring.json")
    parser.add_argument("--again", action="store_true", help="add the rounds to those of the file")
    parser.add_argument("--results", action="store_true", help="write the section of RESULTS.md")
    parser.add_argument("--picture", action="store_true", help="draw the overlap (matplotlib)")
    args = parser.parse_args(arguments)
    if not args.results and not args.picture:
        before = read(args.json) if args.again else None
        data = measure(args.ranks, args.rounds, args.tokens)
        data = joined(before, data) if before else data
        args.json.write_text(json.dumps(data) + "\n", encoding="utf-8")
        print("\n".join(ring_tables.lines(data)))
        return 0
    data = read(args.json)
    if args.results:
        sections.rewrite(RESULTS, "ring", ring_tables.lines(data))
    if args.picture:
        import ring_picture

        ring_picture.draw(data["trace"], PICTURE)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
