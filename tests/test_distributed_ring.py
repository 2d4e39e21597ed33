"""Attention over 1 to 4 ranks: the call on one machine, for every sharding and option."""

from __future__ import annotations

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
