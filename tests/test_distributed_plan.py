"""Plans of attention over ranks: every figure against a count, or against what it has to mean."""

from __future__ import annotations

import doctest
import json
import math
import re
from typing import Any

import numpy as np
import pytest

from headway.distributed import _plan_record, _planning, plan, positions, ring_traffic
from headway.distributed._sharding import SHARDINGS

SIZES: dict[str, Any] = {
    "num_tokens": 4096,
    "num_heads": 8,
    "num_kv_heads": 2,
    "head_dim": 64,
    "num_ranks": 4,
    "flop_rate": 1e11,
    "bandwidth": 1e9,
}


def seen(tokens: int, causal: bool, window: Any) -> np.ndarray[Any, Any]:
    """(T, T) bool by the words of the documentation."""
    left, right = (-1, -1) if window is None else window
    ahead = np.arange(tokens)[:, None] - np.arange(tokens)
    mask = np.ones((tokens, tokens), bool)
    if causal:
        mask &= ahead >= 0
    if left >= 0:
        mask &= ahead <= left
    if right >= 0:
        mask &= -ahead <= right
    return mask


@pytest.mark.parametrize("sharding", SHARDINGS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize(
    ("causal", "window"),
    [
        (True, None),
        (True, (6, 0)),
        (False, None),
        (False, (5, 3)),
        (False, (-1, 2)),
        (True, (0, 0)),
    ],
)
def test_pairs_and_traffic_are_those_of_the_mask(
    sharding: str, ranks: int, causal: bool, window: Any
) -> None:
    for tokens in (1, ranks + 1, 37, 48):
        sizes = {**SIZES, "num_tokens": tokens, "num_ranks": ranks}
        found = plan(**sizes, sharding=sharding, causal=causal, window=window)
        mask = seen(tokens, causal, window)
        rows = [positions(rank, ranks, tokens, sharding=sharding) for rank in range(ranks)]
        counts = [
            max(int(mask[np.ix_(rows[r], rows[(r - t) % ranks])].sum()) for r in range(ranks))
            for t in range(ranks)
        ]
        planned = [0] * ranks
        for step in found.forward.steps:
            for number in range(step.first, min(step.last + 1, ranks)):
                planned[number] = step.pairs
        assert planned == counts
        assert found.forward.flops == 4 * 64 * 8 * int(mask.sum())
        assert found.backward.flops == 10 * 64 * 8 * int(mask.sum())
        assert found.forward.critical_flops == 4 * 64 * 8 * sum(counts)
        for backward, one in ((False, found.forward), (True, found.backward)):
            traffic = ring_traffic(
                tokens,
                ranks,
                num_kv_heads=2,
                head_dim=64,
                causal=causal,
                window=window,
                sharding=sharding,
                backward=backward,
            )
            assert one.sent_bytes == max(traffic.sent)


def test_shares_of_equal_work_and_of_twice_the_work() -> None:
    even, striped, uneven = (
        plan(**{**SIZES, "num_tokens": 65536}, sharding=name)
        for name in ("zigzag", "striped", "contiguous")
    )
    assert even.forward.efficiency == pytest.approx(1.0, abs=1e-3)
    assert striped.forward.efficiency == pytest.approx(1.0, abs=1e-3)
    assert uneven.forward.efficiency == pytest.approx(4 / 7, abs=1e-3)  # half of step 0, then all
    assert even.forward.exposed_seconds == 0


@pytest.mark.parametrize("sharding", SHARDINGS)
@pytest.mark.parametrize("latency", [0.0, 1e-4])
@pytest.mark.parametrize("causal", [True, False])
def test_communication_hides_from_the_stated_tokens_on(
    sharding: str, latency: float, causal: bool
) -> None:
    kind: dict[str, Any] = {"sharding": sharding, "latency": latency, "causal": causal}
    for name in ("forward", "backward"):
        least = getattr(plan(**SIZES, **kind), name).hidden_tokens
        assert least > 1
        for rows, hidden in ((math.ceil(least / 2) * 2 + 2, True), (least // 2 // 2 * 2, False)):
            one = getattr(plan(**{**SIZES, "num_tokens": 4 * rows}, **kind), name)
            both = [step for step in one.steps if step.pairs and step.sent_bytes]
            covered = [step.compute_seconds >= step.communication_seconds for step in both]
            assert all(covered) is hidden


def test_the_time_is_the_sum_of_the_steps() -> None:
    one = plan(**SIZES, latency=1e-3).backward
    compute, wire, both = 0.0, 0.0, 0.0
    for step in one.steps:
        times = step.last - step.first + 1
        compute += times * step.compute_seconds
        wire += times * step.communication_seconds
        both += times * max(step.compute_seconds, step.communication_seconds)
    assert (one.compute_seconds, one.communication_seconds) == pytest.approx((compute, wire))
    assert (one.seconds, one.exposed_seconds) == pytest.approx((both, both - compute))
    assert one.steps[0].communication_seconds == 1e-3 + 1024 * 2 * 128 * 4 / 1e9


def test_a_new_token_reads_its_share_and_moves_no_keys() -> None:
    one = plan(**SIZES, latency=1e-3, memory_bandwidth=1e8).decode
    assert (one.flops, one.read_bytes) == (4 * 64 * 8 * 1024, 1024 * 2 * 128 * 4)
    assert one.memory_bytes == one.read_bytes
    assert one.compute_seconds == one.read_bytes / 1e8
    assert one.sent_bytes == 6 * 65 * 4 + 3 * 2 * 65 * 4
    assert one.communication_seconds == pytest.approx(6e-3 + one.sent_bytes / 1e9)
    assert one.seconds == one.compute_seconds + one.communication_seconds
    alone = plan(**{**SIZES, "num_ranks": 1}, latency=1e-3).decode
    assert (alone.sent_bytes, alone.communication_seconds) == (0, 0.0)
    assert alone.compute_seconds == alone.flops / 1e11


@pytest.mark.parametrize("sharding", SHARDINGS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_most_tokens_fill_the_memory(sharding: str, dtype: str) -> None:
    memory = 12_345_678
    kind: dict[str, Any] = {"sharding": sharding, "dtype": dtype}
    most = plan(**SIZES, **kind, memory=memory).largest
    assert most is not None
    for name, tokens in most._asdict().items():
        fits, beyond = (
            getattr(plan(**{**SIZES, "num_tokens": n}, **kind), name).memory_bytes
            for n in (tokens, tokens + 1)
        )
        assert fits <= memory < beyond
    assert plan(**SIZES).largest is None


def test_memory_is_that_of_the_notes() -> None:
    sizes = {**SIZES, "v_head_dim": 32}
    rows, heads, kv = 1024, 8, 2 * (64 + 32)
    for dtype, item in (("float32", 4), ("bfloat16", 2), ("float64", 8)):
        found, wide, half = plan(**sizes, dtype=dtype), max(item, 4), item == 2
        queries = rows * heads * (64 + 32) * item + rows * heads * wide  # q and out, lse
        there = queries + 3 * rows * kv * item + rows * heads * (32 * wide * (1 + half) + 64)
        assert found.forward.memory_bytes == there
        back = queries + rows * heads * (32 + 64) * item + 4 * rows * kv * item  # grad_out, dq
        back += 6 * rows * kv * wide + rows * heads * (2 * 64 * wide + 64)
        back += half * wide * rows * (heads * (64 + 2 * 32) + kv)
        assert found.backward.memory_bytes == back


def test_a_window_ends_the_ring() -> None:
    found = plan(**SIZES, sharding="contiguous", window=100)
    assert [step.first for step in found.forward.steps] == [0, 1]
    assert found.forward.hidden_tokens is None
    assert found.window == (99, 0)


def test_a_thousand_ranks() -> None:
    found = plan(**{**SIZES, "num_tokens": 10**6, "num_ranks": 500}, dtype="bfloat16")
    assert found.forward.flops == 4 * 64 * 8 * (10**6 * (10**6 + 1) // 2)
    assert len(found.forward.steps) <= 4


def test_the_largest_problem_is_counted_and_fits_on_the_screen() -> None:
    """No sum passes the range of int64, nothing is infinite, and lines stay short."""
    sizes = {
        **SIZES,
        "num_tokens": 2**31,
        "num_ranks": 2,
        "num_heads": 2**31,
        "num_kv_heads": 2**20,
    }
    found = plan(**sizes, memory=2**62)
    assert found.forward.sent_bytes == 2**30 * 2**20 * 128 * 4
    assert found.backward.sent_bytes == 2 * found.forward.sent_bytes
    slow = plan(**{**sizes, "flop_rate": 1e-3, "bandwidth": 1e-3}, latency=1e9)
    assert math.isfinite(slow.backward.seconds)
    assert math.isfinite(slow.forward.efficiency)
    assert all(len(line) < 160 for one in (found, slow) for line in str(one).splitlines())


def test_the_dict_is_plain() -> None:
    found = plan(**SIZES, memory=10**9, memory_bandwidth=1e10)
    about = json.loads(json.dumps(found.to_dict()))
    assert about["forward"]["seconds"] == found.forward.seconds
    assert about["backward"]["steps"][0]["pairs"] == found.backward.steps[0].pairs
    assert about["largest"]["decode"] == found.largest.decode  # type: ignore[union-attr]


def test_the_text_as_it_stands() -> None:
    text = str(plan(**SIZES, latency=5e-6, memory=10**9))
    assert max(map(len, text.splitlines())) <= 82
    first, figures, forward, backward, notes = text.split("\n\n")
    assert first == (
        "4 ranks, zigzag, causal: batch 1, 4,096 tokens, 8 heads of 64, 2 for keys and\n"
        "values, float32\n"
        "a rank: 100 GFLOP/s, sends 1 GB/s after 5.00 us, holds 1 GB"
    )
    assert re.search(r"^time +43.0 ms +108 ms ", figures, re.MULTILINE)
    assert re.search(r"^a rank sends, bytes +3.15 M +6.29 M +", figures, re.MULTILINE)
    assert re.search(r"^1 to 2 +524,288 +1.05 M ", forward, re.MULTILINE)
    assert "backward, step" in backward
    assert "hidden from" in notes


@pytest.mark.parametrize("module", [_planning, _plan_record])
def test_the_examples_print_what_they_say(module: Any) -> None:
    failed, tried = doctest.testmod(module)
    assert (failed, tried > 0) == (0, True), "the report stands above"


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({"num_tokens": 0}, ValueError, "num_tokens: expected at least 1, got 0"),
        ({"num_tokens": 2**31 + 1}, ValueError, "num_tokens: expected at most 2,147,483,648, got"),
        ({"num_ranks": 5000}, ValueError, "num_ranks: expected at most 4,096, got 5,000; plan"),
        ({"num_ranks": 2.0}, TypeError, "num_ranks: expected an int, got float"),
        ({"num_kv_heads": 3}, ValueError, "num_kv_heads: expected a divisor of num_heads=8"),
        ({"head_dim": 10**22}, ValueError, "head_dim: expected at most 2,147,483,648, got"),
        ({"batch": 10**20}, ValueError, "batch: expected at most 2,147,483,648, got .*; plan a"),
        ({"num_heads": 2**32}, ValueError, "num_heads: expected at most 2,147,483,648, got"),
        ({"v_head_dim": 2**32}, ValueError, "v_head_dim: expected at most 2,147,483,648, got"),
        ({"memory": 10**400}, ValueError, "memory: expected at most 4,611,686,018,427,387,904"),
        (
            {"num_tokens": 2**31, "batch": 2**21},
            ValueError,
            "num_tokens: expected keys and values of at most 4,611,686,018,427,387,904 bytes, "
            "their gradients included, got 9,223,372,036,854,775,808; plan a smaller",
        ),
        ({"flop_rate": 0}, ValueError, r"flop_rate: expected a number from 0.001 to 1e\+24, per"),
        ({"flop_rate": 1e-300}, ValueError, "flop_rate: expected a number from 0.001 to"),
        ({"flop_rate": 10**400}, ValueError, "flop_rate: expected .*, got inf; pass e.g."),
        ({"bandwidth": math.inf}, ValueError, "bandwidth: expected a number from 0.001 to"),
        ({"latency": 1e308}, ValueError, r"latency: expected seconds, .* 0 to 1e\+09, got 1e\+308"),
        (
            {"bandwidth": "fast"},
            TypeError,
            r"bandwidth: expected .*, got 'fast' \(str\); pass e.g.",
        ),
        ({"latency": -1e-6}, ValueError, "latency: expected seconds, a number from 0 to 1e"),
        ({"backward_flop_rate": -1}, ValueError, "backward_flop_rate: expected a number"),
        ({"memory_bandwidth": math.nan}, ValueError, "memory_bandwidth: expected a number"),
        ({"memory": 1.5}, TypeError, "memory: expected an int, got float"),
        ({"dtype": "int8"}, TypeError, "dtype: expected float32, float64, float16 or bfloat16"),
        ({"sharding": "round"}, ValueError, "sharding: expected .* got 'round'"),
        ({"causal": 1}, TypeError, "causal: expected True or False, got 1"),
        ({"window": 0}, ValueError, "window: expected a number of keys, 1 or more"),
    ],
)
def test_wrong_arguments_are_refused(given: dict[str, Any], kind: Any, text: str) -> None:
    with pytest.raises(kind, match=text):
        plan(**{**SIZES, **given})
