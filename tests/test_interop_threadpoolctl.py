"""threadpoolctl sees headway's threads and limits them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from helpers import run_python

import headway


@pytest.fixture
def threadpoolctl(any_threads: None) -> Any:
    module = pytest.importorskip("threadpoolctl")
    import_module("headway.interop.threadpoolctl").register()
    return module


def ours(threadpoolctl: Any) -> list[dict[str, Any]]:
    return [each for each in threadpoolctl.threadpool_info() if each["user_api"] == "headway"]


def test_seen_once(threadpoolctl: Any) -> None:
    from headway.interop.threadpoolctl import register

    register()
    headway.set_num_threads(2)
    (info,) = ours(threadpoolctl)
    assert info["num_threads"] == 2
    assert info["version"] == headway.__version__
    assert info["filepath"].rpartition("/")[2].startswith("_core")


def test_limited_and_given_back(threadpoolctl: Any) -> None:
    headway.set_num_threads(2)
    for options in ({}, {"user_api": "headway"}):
        with threadpoolctl.threadpool_limits(1, **options):
            assert headway.get_num_threads() == 1
            assert ours(threadpoolctl)[0]["num_threads"] == 1
        assert headway.get_num_threads() == 2
    with threadpoolctl.threadpool_limits({"headway": 3}):
        assert headway.get_num_threads() == 3
    assert headway.get_num_threads() == 2


def test_a_library_of_another_package_is_not_taken_for_it(threadpoolctl: Any) -> None:
    """threadpoolctl lists what has one of the symbols: another's library has none."""
    from numpy.linalg import _umath_linalg as another

    from headway import _core
    from headway.interop.threadpoolctl import HeadwayController

    for file, listed in ((_core.__file__, True), (another.__file__, False)):
        found = HeadwayController(filepath=file, prefix="_core")
        assert any(hasattr(found.dynlib, name) for name in found.check_symbols) is listed


def test_without_threadpoolctl() -> None:
    code = """
import json, sys
sys.modules["threadpoolctl"] = None
try:
    import headway.interop.threadpoolctl
except ImportError as error:
    print(json.dumps(str(error)))
"""
    text = "headway.interop.threadpoolctl needs threadpoolctl: pip install threadpoolctl"
    assert run_python(code) == text
