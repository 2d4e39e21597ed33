"""The example over several ranks computes what one rank computes alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mpi_runs import assert_all_agree, needs_mpi

EXAMPLES = Path(__file__).parent.parent / "examples"


@needs_mpi
@pytest.mark.skipif(not EXAMPLES.exists(), reason="this machine: the examples are not here")
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_prompt_and_new_tokens_agree_with_one_rank(ranks: int) -> None:
    program = str(EXAMPLES / "long_context.py")
    done = assert_all_agree(program, ranks, "--tokens", "100", "--new", "5", "--check")
    told = re.search(r"100 tokens on (\d+) ranks: .* s\n5 new ones: .* ms each\n", done.out)
    assert told is not None, done.out
    assert int(told[1]) == ranks
    difference = re.search(r"largest difference to one rank alone: (\S+)\n", done.out)
    assert difference is not None, done.out
    assert float(difference[1]) < 1e-5
