"""Fixtures of the whole suite: instruction sets and thread counts, restored afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import settings

import headway

pytest_plugins = ("plugin_extras",)

settings.register_profile(
    "headway", deadline=None, derandomize=True, max_examples=60, database=None
)
settings.load_profile("headway")


@pytest.fixture(params=headway.available_isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test once with each instruction set that this CPU has."""
    before = headway.isa()
    name = str(request.param)
    headway.set_isa(name)
    yield name
    headway.set_isa(before)


@pytest.fixture(params=[1, 2], ids=["1-thread", "2-threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Run the test once with one thread and once with two."""
    before = headway.get_num_threads()
    count = int(request.param)
    headway.set_num_threads(count)
    yield count
    headway.set_num_threads(before)


@pytest.fixture
def turn(request: pytest.FixtureRequest) -> int:
    """Return a number that goes up by one where any parameter of the test takes its next choice.

    What is chosen by it, and is no parameter itself, meets every choice of each parameter, and
    every pair of choices where there is a third parameter: most of what a full product holds.
    """
    number = 0
    choices = [mark.args[:2] for mark in request.node.iter_markers("parametrize")]
    if "isa" in request.fixturenames and not any(names == "isa" for names, _ in choices):
        choices.append(("isa", headway.available_isas()))
    for names, values in choices:
        given = [request.getfixturevalue(name) for name in _split(names)]
        number += list(values).index(given[0] if len(given) == 1 else tuple(given))
    return number


def _split(names: str | Sequence[str]) -> Sequence[str]:
    return [name.strip() for name in names.split(",")] if isinstance(names, str) else names


@pytest.fixture
def some_threads(turn: int) -> Iterator[int]:
    """Run the test once: with one thread and with two by turns of the other parameters."""
    before = headway.get_num_threads()
    count = 1 + turn % 2
    headway.set_num_threads(count)
    yield count
    headway.set_num_threads(before)


@pytest.fixture
def any_threads() -> Iterator[None]:
    """Restore the thread count after a test that changes it."""
    before = headway.get_num_threads()
    yield
    headway.set_num_threads(before)
