"""Fixtures of the whole suite: instruction sets and thread counts, restored afterwards."""

from __future__ import annotations

from collections.abc import Iterator

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
def any_threads() -> Iterator[None]:
    """Restore the thread count after a test that changes it."""
    before = headway.get_num_threads()
    yield
    headway.set_num_threads(before)
