"""The examples in the docstrings of every public module run and print what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import headway

MODULES = ["headway"] + [
    f"headway.{module.name}"
    for module in pkgutil.iter_modules(headway.__path__)
    if not module.name.startswith("_")
]

NEEDED = {"headway.module_files": "safetensors"}
"""Packages without which the examples of a module cannot run."""

FUNCTIONS = [name for name in headway.__all__ if callable(getattr(headway, name))]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    if name in NEEDED:
        pytest.importorskip(NEEDED[name])
    module = importlib.import_module(name)
    options = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    failed, _ = doctest.testmod(module, optionflags=options)
    assert failed == 0, "the report stands above"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_everything_public_has_an_example(name: str) -> None:
    text = getattr(headway, name).__doc__ or ""
    assert ">>> " in text
    assert "Examples\n" in text


def test_no_module_has_the_name_of_a_public_function() -> None:
    assert not {module.rpartition(".")[2] for module in MODULES[1:]} & set(FUNCTIONS)
