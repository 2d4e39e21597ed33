"""Turns and their statistics, with contestants that take made-up times."""

from __future__ import annotations

from typing import Any

import pytest

from headway.timing import turns
from headway.timing.turns import Timed, estimated, summary, take_turns
from headway.timing.worker import Unsupported, Worker, answer, burst


class Clockwork:
    """Answers bursts: every call of a contestant takes its time, the first of a turn twice."""

    def __init__(self, **seconds: float | str) -> None:
        self.seconds, self.asked = seconds, []

    asked: list[tuple[str, dict[str, Any]]]

    def __call__(self, timed: Timed, seconds: float, /, **given: Any) -> dict[str, Any]:
        self.asked.append((timed.name, given))
        each = self.seconds[timed.name]
        if isinstance(each, str):
            return {"skipped": each}
        assert seconds > given["count"] * given["inner"] * each
        calls = given["count"] * given["inner"]
        return {"wall": [2 * each] + [each] * given["count"], "cpu": 3 * each, "calls": calls}


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The rests between turns, which nobody waits for here."""
    rests: list[float] = []
    monkeypatch.setattr(turns.time, "sleep", rests.append)
    return rests


def test_everyone_takes_turns_and_rests(no_waiting: list[float]) -> None:
    clock = Clockwork(one=0.01, two=0.02)
    ready = [Timed("one", 0.01, {"error": 0.0}, rest=0.3), Timed("two", 0.02, {}, rest=0.1)]
    take_turns(ready, 3, clock)
    assert [name for name, _ in clock.asked] == ["one", "two"] * 3
    assert no_waiting == [0.3] + [0.3, 0.1] * 3
    found = summary(ready[0], 2 * 10**9, 4)
    assert found["wall_min"] == found["wall_median"] == 0.01
    assert found["cpu_min"] == found["cpu_median"] == 0.03
    assert (found["bursts"], found["calls"], found["threads"]) == (3, 36, 4)
    assert found["gflops"] == pytest.approx(200)
    assert found["error"] == 0.0


def test_a_far_slower_rival_leaves_and_headway_never() -> None:
    for rival, taken in ((True, 2), (False, 4)):
        clock = Clockwork(quick=0.01, slow=0.05)
        ready = [Timed("quick", 0.01, {}), Timed("slow", 0.05, {}, rival=rival)]
        take_turns(ready, 4, clock)
        assert [name for name, _ in clock.asked].count("slow") == taken
        assert ready[1].bursts == taken
    clock = Clockwork(quick=0.01, slow=0.5)
    take_turns([Timed("quick", 0.01, {}), Timed("slow", 0.5, {})], 4, clock)
    assert [name for name, _ in clock.asked].count("slow") == 1


def test_who_fails_later_has_no_figures() -> None:
    ready = [Timed("broken", 0.01, {})]
    ready[0].wall.append(0.01)
    take_turns(ready, 3, Clockwork(broken="full"))
    assert summary(ready[0], 1, 1) == {"skipped": "full"}


def test_an_estimate_is_the_best_of_a_few_calls() -> None:
    one = Timed("one", 0.0, {})
    assert estimated(one, 0.1, Clockwork(one=0.01)) == (0.01, None)
    clock = Clockwork(one=0.01)
    assert estimated(one, 3.0, clock) == (3.0, None)
    assert clock.asked == []
    assert estimated(one, 3.0, clock, compiles=True) == (0.01, None)
    assert estimated(one, 0.1, Clockwork(one="gone")) == (0.1, "gone")
    assert estimated(one, 99.0, clock) == (99.0, "99 s a call, over 60 s")


def test_a_burst_makes_all_its_calls() -> None:
    made: list[int] = []
    found = burst(lambda: made.append(1), count=5, inner=3, wake=2)
    assert len(made) == 17
    assert found["calls"] == 15
    assert len(found["wall"]) == 5
    assert all(seconds >= 0 for seconds in found["wall"])


def test_a_worker_answers_refusals_and_failures_in_one_line() -> None:
    class Failing(Worker):
        def prepare(self, message: dict[str, Any]) -> dict[str, Any]:
            raise Unsupported("not today") if message["kind"] == "no" else ValueError("two\nlines")

    worker = Failing()
    assert answer(worker, '{"do": "prepare", "kind": "no"}') == {"unsupported": "not today"}
    assert answer(worker, '{"do": "prepare", "kind": ""}') == {"failed": "ValueError: two lines"}
    assert answer(worker, '{"do": "drop"}') == {}
