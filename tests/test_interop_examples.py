"""The examples in the docstrings of headway.interop run and print what they say."""

from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize("name", ["threadpoolctl", "torch"])
def test_examples(name: str, any_threads: None) -> None:
    pytest.importorskip(name)
    module = importlib.import_module(f"headway.interop.{name}")
    public = [getattr(module, each) for each in module.__all__]
    options = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    for place in {each.__module__ for each in public}:
        failed, _ = doctest.testmod(importlib.import_module(place), optionflags=options)
        assert failed == 0, "the report stands above"
    for each in public:
        assert isinstance(each, type) or "Examples\n" in each.__doc__, each
