"""The examples in the docstrings of headway.interop run and print what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import headway.interop

MODULES = [module.name for module in pkgutil.iter_modules(headway.interop.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str, any_threads: None) -> None:
    pytest.importorskip(name.partition("_")[0])
    module = importlib.import_module(f"headway.interop.{name}")
    options = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    failed, _ = doctest.testmod(module, optionflags=options)
    assert failed == 0, "the report stands above"


@pytest.mark.parametrize("name", [name for name in MODULES if "_" not in name])
def test_everything_public_has_an_example(name: str) -> None:
    pytest.importorskip(name)
    module = importlib.import_module(f"headway.interop.{name}")
    functions = [each for each in module.__all__ if not isinstance(getattr(module, each), type)]
    assert functions
    for each in functions:
        assert "Examples\n" in getattr(module, each).__doc__
