"""Keeps skipped tests honest: what is skipped for want of an optional package is written down.

A test may be skipped for two reasons that no package mends; the reason then starts with
``not yet offered:`` (a feature) or ``this machine:`` (hardware, operating system). One that starts
with ``another stage:`` names the stage of the CI that runs the test. Every other skip waits for a
package.

HEADWAY_SKIPPED_LIST=FILE
    Write the ids of the tests that wait for a package to FILE, one a line, to be run again.
HEADWAY_REQUIRE_EXTRAS=1
    A test that waits for a package fails.

Registered in conftest.py by ``pytest_plugins = ("plugin_extras",)``.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

PERMITTED = ("not yet offered:", "this machine:", "another stage:")

waiting = pytest.StashKey[list[str]]()

Report = pytest.TestReport | pytest.CollectReport


def missing_package(report: Report) -> str | None:
    """The reason of a skip that a package would mend, else None."""
    if not report.skipped or hasattr(report, "wasxfail"):
        return None
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    reason = text.removeprefix("Skipped: ")
    return None if reason.startswith(PERMITTED) else reason


def judge(report: Report, config: pytest.Config) -> None:
    """Note a skip that waits for a package; make it a failure where packages are required."""
    reason = missing_package(report)
    if reason is None:
        return
    config.stash[waiting].append(report.nodeid)
    if os.environ.get("HEADWAY_REQUIRE_EXTRAS") == "1":
        report.outcome = "failed"
        report.longrepr = f"skipped although HEADWAY_REQUIRE_EXTRAS=1: {reason}"


def pytest_configure(config: pytest.Config) -> None:
    config.stash[waiting] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    judge(report, item.config)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    judge(report, collector.config)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    target = os.environ.get("HEADWAY_SKIPPED_LIST")
    if target:
        Path(target).write_text("".join(f"{n}\n" for n in session.config.stash[waiting]), "utf-8")
