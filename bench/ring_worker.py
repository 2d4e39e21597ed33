"""What one rank of bench/ring.py does: mpiexec -n W python bench/ring_worker.py PROBLEM, as JSON.

Rank 0 prints one line of JSON: of every pass the CPU time of the kernel for each step and rank, the
wall time, the bytes that were counted, and, with two ranks, when the messages of each rank began
and ended.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from headway.distributed import (
    CountingComm,
    RingStep,
    ShardedKVCache,
    ring_attention,
    ring_attention_backward,
    shard,
)
from headway.distributed._waiting import wait

Problem = dict[str, Any]

world = MPI.COMM_WORLD


class Watched:
    """A request that notes when it was first seen to be complete."""

    def __init__(self, request: Any, note: Callable[[], None]) -> None:
        self._request, self._note = request, note

    def Test(self) -> bool:
        done = bool(self._request.Test())
        if done:
            self._note()
        return done


class WatchedComm(CountingComm):
    """A communicator that counts bytes, also those of exchanges, and times messages."""

    def __init__(self, comm: Any) -> None:
        super().__init__(comm)
        self.messages: list[tuple[str, float, float, int]] = []

    def _watched(self, kind: str, request: Any, buffer: Any) -> Watched:
        began, size = time.monotonic(), int(np.asarray(buffer).nbytes)
        return Watched(request, lambda: self.messages.append((kind, began, time.monotonic(), size)))

    def Isend(self, buffer: Any, dest: int, tag: int = 0) -> Any:
        return self._watched("sent", super().Isend(buffer, dest, tag), buffer)

    def Irecv(self, buffer: Any, source: int, tag: int) -> Any:
        return self._watched("received", super().Irecv(buffer, source, tag), buffer)

    def Ialltoallv(self, given: Any, result: Any) -> Any:
        array, counts = given
        self.sent += int(sum(counts) - counts[self.comm.rank]) * array.itemsize
        return self.comm.Ialltoallv(given, result)

    def Iallgatherv(self, given: Any, result: Any) -> Any:
        self.sent += given.nbytes * (self.comm.size - 1)
        return self.comm.Iallgatherv(given, result)


def link(size: int) -> tuple[float, float]:
    """(seconds of a message of 8 bytes, bytes per second of one of `size`), all ranks at once."""
    if world.size == 1:
        return 0.0, 0.0
    times = []
    for count, rounds in ((8, 60), (size, 12)):
        out, back = np.ones(count, np.uint8), np.zeros(count, np.uint8)
        found = []
        for _ in range(rounds):
            world.Barrier()
            began = time.perf_counter()
            to, source = (world.rank + 1) % world.size, (world.rank - 1) % world.size
            wait([world.Irecv(back, source=source), world.Isend(out, dest=to)])
            found.append(time.perf_counter() - began)
        times.append(float(np.median(found)))
    return times[0], size / max(times[1] - times[0], 1e-9)


def arrays(problem: Problem) -> list[Any]:
    """q, k, v and the gradient of the result, the rows of this rank."""
    heads, kv_heads, width = (problem[name] for name in ("heads", "kv_heads", "head_dim"))
    rng = np.random.default_rng(0)
    found = []
    for count in (heads, kv_heads, kv_heads, heads):
        x = rng.standard_normal((1, count, problem["tokens"], width), dtype=np.float32)
        found.append(shard(x, world.rank, world.size, sharding=problem["sharding"]))
    return found


def timed(call: Callable[[WatchedComm, list[RingStep]], Any], rounds: int) -> tuple[Any, Any]:
    """What a call returned on this rank, and on rank 0 the figures of all ranks and rounds."""
    found: list[dict[str, Any]] = []
    result: Any = None
    for _ in range(rounds):
        comm = WatchedComm(world)
        record: list[RingStep] = []
        wait([world.Ibarrier()])  # asleep: a blocking one would spin
        began = time.monotonic()
        result = call(comm, record)
        found.append(
            {
                "wall": [began, time.monotonic()],
                "kernel_cpu": [step.kernel_cpu for step in record],
                "join_cpu": [step.join_cpu for step in record],
                "steps": [[step.started, step.computed, step.arrived] for step in record],
                "messages": comm.messages,
                "sent": comm.sent,
            }
        )
    wait([world.Ibarrier()])
    of_ranks = world.gather(found)
    return result, list(zip(*of_ranks, strict=True)) if of_ranks else None


def decoded(problem: Problem, k: Any, v: Any, rounds: int) -> Any:
    """One new query over a cache that holds all tokens, `rounds` times."""
    cache = ShardedKVCache(
        world, 1, problem["kv_heads"], problem["tokens"], problem["head_dim"], dtype=np.float32
    )
    cache.append_rows(k, v, problem["tokens"])
    q = np.ones((1, problem["heads"], 1, problem["head_dim"]), np.float32)
    times = []
    for _ in range(rounds):
        wait([world.Ibarrier()])
        began = time.perf_counter()
        cache.attend(q)
        times.append(time.perf_counter() - began)
    counted = WatchedComm(world)
    cache._comm = counted
    cache.attend(q)
    return world.gather({"wall": float(np.median(times)), "sent": counted.sent})


def main() -> None:
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # longer turns, warmer caches
    problem: Problem = json.loads(sys.argv[1])
    kind, rounds = problem["sharding"], problem["rounds"]
    q, k, v, grad_out = arrays(problem)
    latency, bandwidth = link(k.nbytes * 2)
    place = np.zeros_like(q)  # new pages cost CPU time
    saved, forward = timed(
        lambda comm, record: ring_attention(
            q, k, v, comm, sharding=kind, return_lse=True, out=place, record=record
        ),
        rounds,
    )
    _, backward = timed(
        lambda comm, record: ring_attention_backward(
            grad_out, q, k, v, saved[0], saved[1], comm, sharding=kind, record=record
        ),
        rounds,
    )
    decode = decoded(problem, k, v, 30) if kind == "striped" else None
    if world.rank == 0:
        found = {
            **problem,
            "ranks": world.size,
            "latency": latency,
            "bandwidth": bandwidth,
            "forward": forward,
            "backward": backward,
            "decode": decode,
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
