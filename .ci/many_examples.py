"""A pytest plugin: property tests run on 2,000 random problems each; a failure prints its own."""

from __future__ import annotations

from hypothesis import settings


def pytest_collection() -> None:
    """After the suite's own profile, before the tests are imported."""
    settings.register_profile("many", max_examples=2000, deadline=None, print_blob=True)
    settings.load_profile("many")
