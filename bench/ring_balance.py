"""How evenly the ranks of a ring share the work: CPU time of the kernel, the worst rank per step.

    python bench/ring_balance.py                      # 2, 4 and 8 ranks of one thread each
    python bench/ring_balance.py --json ring.json     # every step of every rank, too

The critical path is the kernel's CPU time of the slowest rank of each step, summed over the steps;
it is set beside the CPU time of one call on the whole sequence, divided by the number of ranks. CPU
time does not count what another process takes, so there may be more ranks than cores. It needs the
extra mpi.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

HEADS, HEAD_DIM = 8, 64
Steps = list[list[dict[str, Any]]]
"""The fields of RingStep, for each rank and step."""


def inputs(tokens: int, seed: int) -> list[Any]:
    """q, k and v of some tokens, (H, T, D) float32."""
    import numpy as np

    shape = HEADS, tokens, HEAD_DIM
    return [np.random.default_rng((seed, i)).standard_normal(shape, np.float32) for i in range(3)]


def single(tokens: int, rounds: int) -> float:
    """Seconds of CPU time of one call on the whole sequence: the best of some."""
    import headway

    headway.set_num_threads(1)
    q, k, v = inputs(tokens, 0)
    found = []
    for _ in range(rounds):
        began = time.thread_time()
        headway.attention(q, k, v)
        found.append(time.thread_time() - began)
    return min(found)


def on_ranks(tokens: int, sharding: str, rounds: int) -> None:
    """The program of one rank; the first one prints the steps of all, each at its best."""
    from mpi4py import MPI

    import headway
    from headway.distributed import RingStep, positions, ring_attention

    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # longer turns, warmer caches
    comm = MPI.COMM_WORLD
    headway.set_num_threads(1)
    rows = positions(comm.rank, comm.size, tokens, sharding=sharding).size
    own = inputs(rows, comm.rank)
    records: list[list[RingStep]] = []
    for _ in range(rounds):
        comm.Barrier()
        records.append([])
        ring_attention(*own, comm, sharding=sharding, record=records[-1])
    best = [min(step, key=lambda each: each.kernel_cpu) for step in zip(*records, strict=True)]
    steps = comm.gather([each._asdict() for each in best])
    if comm.rank == 0:
        print(json.dumps(steps))


def run(ranks: int, tokens: int, sharding: str, rounds: int) -> Steps:
    """A job of this script under mpiexec."""
    own = Path(sysconfig.get_path("scripts")) / "mpiexec"
    mpiexec = str(own) if own.exists() else shutil.which("mpiexec")
    if mpiexec is None:
        raise SystemExit("ring_balance: no mpiexec; pip install 'headway[mpi]'")
    program = [sys.executable, "-m", "mpi4py", __file__, "--rank-of", sharding]
    done = subprocess.run(
        [mpiexec, "-n", str(ranks), *program, "--tokens", str(tokens), "--rounds", str(rounds)],
        env={**os.environ, "HEADWAY_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    steps: Steps = json.loads(done.stdout.splitlines()[-1])
    return steps


def critical(steps: Steps, *fields: str) -> float:
    """The slowest rank of each step, summed over the steps."""
    count = max(len(of_rank) for of_rank in steps)
    slowest = [max(sum(r[t][name] for name in fields) for r in steps) for t in range(count)]
    return float(sum(slowest))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--rounds", type=int, default=3, help="each step counts by its best round")
    parser.add_argument("--shardings", nargs="+", default=["zigzag"])
    parser.add_argument("--limit", type=float, help="exit with 1 where zigzag takes more than this")
    parser.add_argument("--json", type=Path, help="write every step of every rank")
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank_of:
        on_ranks(given.tokens, given.rank_of, given.rounds)
        return 0
    total = single(given.tokens, given.rounds)
    print(f"one call on {given.tokens:,} tokens: {total:.2f} s of CPU time")
    print("| ranks | sharding | kernel, s | of an even share | with joining |")
    print("|---|---|---|---|---|")
    kept, slow = [], False
    for ranks in given.ranks:
        for sharding in given.shardings:
            steps = run(ranks, given.tokens, sharding, given.rounds)
            kernel = critical(steps, "kernel_cpu")
            joined = critical(steps, "kernel_cpu", "join_cpu")
            share = total / ranks
            print(
                f"| {ranks} | {sharding} | {kernel:.2f} | {kernel / share:.3f} "
                f"| {joined / share:.3f} |",
                flush=True,
            )
            slow |= bool(given.limit and sharding == "zigzag" and kernel > given.limit * share)
            kept.append({"ranks": ranks, "sharding": sharding, "total": total, "steps": steps})
    if given.json:
        given.json.write_text(json.dumps(kept), encoding="utf-8")
    return int(slow)


if __name__ == "__main__":
    raise SystemExit(main())
