"""Attention over 1 to 4 ranks: the call on one machine, for every sharding and option."""

from __future__ import annotations

import doctest
import importlib

import pytest
from mpi_runs import assert_all_agree, needs_mpi


@needs_mpi
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_forward(ranks: int) -> None:
    ended = assert_all_agree("ranks_forward.py", ranks)
    assert ended.out.count("all agree") == ranks


@needs_mpi
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_backward(ranks: int) -> None:
    ended = assert_all_agree("ranks_backward.py", ranks)
    assert ended.out.count("all agree") == ranks


@needs_mpi
@pytest.mark.parametrize("program", ["ranks_forward.py", "ranks_backward.py"])
def test_every_instruction_set(program: str, isa: str) -> None:
    assert_all_agree(program, 2, isa)


@needs_mpi
@pytest.mark.parametrize("ranks", [2, 4])
def test_memory_is_what_the_documentation_says(ranks: int) -> None:
    """It does not grow with the number of ranks."""
    assert assert_all_agree("ranks_memory.py", ranks).out.count("within") == 6 * ranks


@needs_mpi
def test_examples() -> None:
    assert_all_agree("ranks_doctests.py", 1)


@pytest.mark.parametrize("name", ["sharding", "plan"])
def test_examples_without_mpi(name: str) -> None:
    module = importlib.import_module(f"headway.distributed._{name}")
    failed, tried = doctest.testmod(module)
    assert tried
    assert not failed
