"""Ranks that do not agree: the same error everywhere, and nobody waits."""

from __future__ import annotations

import pytest
from mpi_runs import assert_all_agree, needs_mpi


@needs_mpi
@pytest.mark.parametrize("ranks", [2, 3])
def test_every_mismatch_is_named_on_every_rank(ranks: int) -> None:
    assert_all_agree("ranks_agreement.py", ranks)
