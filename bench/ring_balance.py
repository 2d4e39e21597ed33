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


def on_ranks(tokens: int, sharding: str, rounds: int) -> None:
    """The program of one rank; the first one prints the steps of all, each at its best.

    Before each round two ranks make the one call on the whole sequence, at the same time, so that
    both are measured on the same machine in the same state, with two cores at work.
    """
    from mpi4py import MPI

    import headway
    from headway.distributed import RingStep, positions, ring_attention
    from headway.distributed._waiting import wait

    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # longer turns, warmer caches
    comm = MPI.COMM_WORLD
    headway.set_num_threads(1)
    whole = inputs(tokens, 0) if comm.rank < 2 else []
    rows = positions(comm.rank, comm.size, tokens, sharding=sharding).size
    own = inputs(rows, comm.rank)
    q, k, v = own
    place = q * 0.0  # results go where memory is in use already: new pages cost CPU time
    whole_place = whole[0] * 0.0 if whole else place
    records: list[list[RingStep]] = []
    single = []
    for _ in range(rounds):
        if whole:
            began = time.thread_time()
            headway.attention(*whole, out=whole_place)
            single.append(time.thread_time() - began)
        for _ in range(2):  # the first one finds cold memory after the wait
            wait([comm.Ibarrier()])  # asleep: a blocking one would spin
            records.append([])
            ring_attention(q, k, v, comm, sharding=sharding, out=place, record=records[-1])
        wait([comm.Ibarrier()])
    best = [min(step, key=lambda each: each.kernel_cpu) for step in zip(*records, strict=True)]
    steps = comm.gather([each._asdict() for each in best])
    if comm.rank == 0:
        print(json.dumps({"total": min(single), "steps": steps}))


def run(ranks: int, tokens: int, sharding: str, rounds: int) -> tuple[float, Steps]:
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
    found = json.loads(done.stdout.splitlines()[-1])
    return found["total"], found["steps"]


def critical(steps: Steps, *fields: str) -> float:
    """The slowest rank of each step, summed over the steps."""
    count = max(len(of_rank) for of_rank in steps)
    slowest = [max(sum(r[t][name] for name in fields) for r in steps) for t in range(count)]
    return float(sum(slowest))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--tokens", type=int, default=4096, help="of each rank")
    parser.add_argument("--rounds", type=int, default=2, help="each step counts by its best round")
    parser.add_argument("--shardings", nargs="+", default=["zigzag"])
    parser.add_argument("--limit", type=float, help="exit with 1 where zigzag takes more than this")
    parser.add_argument("--json", type=Path, help="write every step of every rank")
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank_of:
        on_ranks(given.tokens, given.rank_of, given.rounds)
        return 0
    print(
        "| ranks | tokens | sharding | one call, s | kernel, s | of an even share | with joining |"
    )
    print("|---|---|---|---|---|---|---|")
    kept, slow = [], False
    for ranks in given.ranks:
        tokens = given.tokens * ranks
        for sharding in given.shardings:
            total, steps = run(ranks, tokens, sharding, given.rounds)
            kernel = critical(steps, "kernel_cpu")
            joined = critical(steps, "kernel_cpu", "join_cpu")
            share = total / ranks
            print(
                f"| {ranks} | {tokens:,} | {sharding} | {total:.2f} | {kernel:.2f} "
                f"| {kernel / share:.3f} | {joined / share:.3f} |",
                flush=True,
            )
            slow |= bool(given.limit and sharding == "zigzag" and kernel > given.limit * share)
            kept.append({"ranks": ranks, "sharding": sharding, "total": total, "steps": steps})
    if given.json:
        given.json.write_text(json.dumps(kept), encoding="utf-8")
    return int(slow)


if __name__ == "__main__":
    raise SystemExit(main())
