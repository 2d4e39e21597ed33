"""The example over several ranks computes what one rank computes alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mpi_runs import assert_all_agree, needs_mpi, run_ranks

EXAMPLES = Path(__file__).parent.parent / "examples"
PROGRAM = str(EXAMPLES / "long_context.py")
needs_example = pytest.mark.skipif(
    not EXAMPLES.exists(), reason="this machine: the examples are not here"
)


@needs_mpi
@needs_example
@pytest.mark.parametrize(
    ("ranks", "tokens", "new"), [(1, 100, 5), (3, 100, 5), (3, 1, 2)], ids=["one", "three", "short"]
)
def test_a_prompt_and_new_tokens_agree_with_one_rank(ranks: int, tokens: int, new: int) -> None:
    """The last case leaves ranks without a row of the prompt."""
    done = assert_all_agree(PROGRAM, ranks, "--tokens", str(tokens), "--new", str(new), "--check")
    told = re.search(r"(\d+) tokens on (\d+) ranks: .* s\n(\d+) new ones: .* ms each\n", done.out)
    assert told is not None, done.out
    assert [int(one) for one in told.groups()] == [tokens, ranks, new]
    difference = re.search(r"largest difference to one rank alone: (\S+)\n", done.out)
    assert difference is not None, done.out
    assert float(difference[1]) < 1e-5


@needs_mpi
@needs_example
@pytest.mark.parametrize(("tokens", "new"), [(0, 1), (-1, 1), (1, -1)])
def test_wrong_numbers_are_refused(tokens: int, new: int) -> None:
    ended = run_ranks(PROGRAM, 1, "--tokens", str(tokens), "--new", str(new))
    assert ended.code == 2
    wanted = f"expected --tokens 1 or more and --new 0 or more, got {tokens} and {new}"
    assert wanted in ended.err
    assert "Traceback" not in ended.err
