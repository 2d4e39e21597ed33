"""Jobs that cannot go on: they end, not with 0, within 30 seconds, and one line says why."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import pytest
from helpers import assert_same_bits, make_qkv
from mpi_runs import Ended, assert_all_agree, needs_mpi, run_ranks

import headway
from headway.distributed import (
    ShardedKVCache,
    _waiting,
    gather,
    ring_attention,
    ring_attention_backward,
    scatter,
)

SECONDS = 30.0


def failing(fault: str, monkeypatch: pytest.MonkeyPatch) -> Ended:
    """Run a job of three ranks in which rank 1 fails; the clock starts when all are ready."""
    monkeypatch.setenv("HEADWAY_RING_TIMEOUT", "2" if fault == "stopped" else "")
    ended = run_ranks("ranks_faults.py", 3, fault)
    assert time.time() - float(ended.out.split()[0]) < SECONDS
    assert ended.code != 0
    assert "not reached" not in ended.out
    return ended


@needs_mpi
def test_a_rank_is_killed_in_mid_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    """mpiexec sees it, ends the others and names the signal in one line."""
    ended = failing("killed", monkeypatch)
    told = [line for line in (ended.out + ended.err).splitlines() if "Killed (signal 9)" in line]
    assert len(told) == 1


@needs_mpi
def test_one_rank_has_no_memory_after_the_agreement(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = failing("no memory", monkeypatch)
    assert ended.lines("headway: ") == [
        "headway: ring_attention: rank 1 of 3 failed, so the job ends: MemoryError: result: "
        "expected a size that fits in memory, got more"
    ]


@needs_mpi
def test_a_rank_fails_outside_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """``python -m mpi4py`` ends the job; without it the others would wait."""
    ended = failing("outside", monkeypatch)
    assert "RuntimeError: a fault outside of the call" in ended.err.splitlines()


@needs_mpi
def test_a_rank_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """With HEADWAY_RING_TIMEOUT a rank that is silent for longer ends the job."""
    ended = failing("stopped", monkeypatch)
    told = ended.lines("headway: ")
    assert told
    for line in told:
        assert line.startswith("headway: ring_attention: rank ")
        assert "TimeoutError: no message for 2 s (HEADWAY_RING_TIMEOUT)" in line


@needs_mpi
@pytest.mark.parametrize("ranks", [2, 3])
def test_calls_that_differ_are_refused_on_every_rank(ranks: int) -> None:
    ended = assert_all_agree("ranks_mismatch.py", ranks)
    assert ended.out.count("all refused") == ranks


@needs_mpi
@pytest.mark.parametrize("ranks", [1, 3])
def test_scatter_gather_and_the_record(ranks: int) -> None:
    assert assert_all_agree("ranks_collecting.py", ranks).out.count("done") == ranks


class Solo:
    """A communicator of one rank that can do nothing."""

    rank, size = 0, 1


def test_a_communicator_of_one_needs_no_mpi() -> None:
    """It has the bits of the call on one machine, and raises like it."""
    comm: Any = Solo()
    for dtype in ("float32", "bfloat16"):
        q, k, v = make_qkv(3, dtype, heads=(4, 2), tokens=(19, 19))
        for sharding in ("zigzag", "contiguous", "striped"):
            options: dict[str, Any] = {"window": 5, "alibi_slopes": [1.0, 0.5, 0.1, 0.0]}
            got = ring_attention(q, k, v, comm, sharding=sharding, return_lse=True, **options)
            wanted = headway.attention(q, k, v, return_lse=True, **options)
            assert_same_bits(got[0], wanted[0])
            assert_same_bits(got[1], wanted[1])
            if dtype == "float32":
                found = ring_attention_backward(q, q, k, v, *got, comm, **options)
                expected = headway.attention_backward(q, q, k, v, *wanted, **options)
                for x, y in zip(found, expected, strict=True):
                    assert_same_bits(x, y)
    with pytest.raises(ValueError, match=r"^k: expected 19 tokens like q, got 18; each rank"):
        ring_attention(q, k[:, :, 1:], v[:, :, 1:], comm)
    with pytest.raises(ValueError, match="scale: expected a finite number"):
        ring_attention(q, k, v, comm, scale=np.inf)


class Group(Solo):
    """Ranks that cannot send each other anything."""

    size = 2


class Null:
    """A communicator that this process does not belong to: MPI raises an error of its own."""

    Iallreduce = None

    @property
    def rank(self) -> int:
        raise RuntimeError("Null communicator")

    def __bool__(self) -> bool:
        return False


class Other(Group):
    """The ranks of another group."""

    is_inter = True
    Iallreduce = None


@pytest.mark.parametrize(
    ("comm", "kind"),
    [
        (None, "NoneType"),
        (0, "int"),
        ("world", "str"),
        (Group(), "Group"),
        (Null(), r"Null \(null\)"),
        (Other(), "Other"),
    ],
)
def test_what_is_no_communicator(comm: Any, kind: str) -> None:
    x = np.zeros((2, 3, 4), np.float32)
    text = f"^comm: expected a communicator of mpi4py that this process .*, got {kind}; pass e.g."
    for call in (
        lambda: ring_attention(x, x, x, comm),
        lambda: ring_attention_backward(x, x, x, x, x, x[:, :, 0], comm),
        lambda: scatter(x, comm),
        lambda: gather(x, comm),
        lambda: ShardedKVCache(comm, 1, 1, 4, 4),
    ):
        with pytest.raises(TypeError, match=text):
            call()


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan"])
def test_a_bad_time_limit(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "HEADWAY_RING_TIMEOUT", text)
    with pytest.raises(ValueError, match=f"^HEADWAY_RING_TIMEOUT: expected .* got '{text}'; unset"):
        _waiting.patience()
