"""With every option, a row's bits do not depend on the heads beside it; matrices likewise."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import DTYPES, Array, assert_same_bits, attend, lse_dtype
from option_table import COMPANY, EACH_ISA, Options, Problem, entry_of, head_of

import headway

#: (Tq, Tk), head_dim: prefills, a chunk, one query.
SIZES = [((70, 150), 12), ((130, 130), 64), ((5, 150), 20), ((1, 150), 64)]

pytestmark = [
    pytest.mark.usefixtures("any_threads"),
    pytest.mark.parametrize("dtype", DTYPES),
    pytest.mark.parametrize("name", COMPANY),
    EACH_ISA,
]

Call = tuple[Problem, tuple[Array, Array, Array], Options]


def calls(name: str, dtype: str, sizes: list[tuple[tuple[int, int], int]]) -> list[Call]:
    """Return problems of these sizes, their arrays and their options."""
    made = [
        Problem(dtype, tokens=tokens, head_dim=width, value_dim=width + 3 * (width % 8 > 0))
        for tokens, width in sizes
    ]
    return [(problem, problem.arrays(), problem.options(COMPANY[name])) for problem in made]


def baseline(arrays: tuple[Array, Array, Array], options: Options) -> tuple[Array, Array]:
    """Return out and lse computed by one thread; the out of a call without the lse."""
    headway.set_num_threads(1)
    out = headway.attention(*arrays, **options)
    assert isinstance(out, np.ndarray)
    return out, attend(*arrays, **options)[1]


def test_heads_alone(name: str, dtype: str, isa: str) -> None:
    """A head alone, with its own row of the mask, its slope and its sink, gives the same rows."""
    for problem, (q, k, v), options in calls(name, dtype, SIZES[:3:2]):
        expected, expected_lse = baseline((q, k, v), options)
        repeated = attend(q, np.repeat(k, 2, axis=1), np.repeat(v, 2, axis=1), **options)
        assert_same_bits(repeated[0], expected, f"key heads repeated, {problem.tokens}")
        assert_same_bits(repeated[1], expected_lse, "lse of key heads repeated")
        for h in (0, 1, 3):
            one, key_head = slice(h, h + 1), slice(h // 2, h // 2 + 1)
            arrays = q[:, one], k[:, key_head], v[:, key_head]
            out, lse = attend(*arrays, **head_of(options, h))
            assert_same_bits(out, expected[:, one], f"head {h}, {problem.tokens}")
            assert_same_bits(lse, expected_lse[:, one], f"lse of head {h}")


def test_weights_and_scores_repeat(name: str, dtype: str, isa: str, turn: int) -> None:
    """Weights and scores too are the same for any thread count and company; sizes by turns."""
    for _, (q, k, _), options in calls(name, dtype, [SIZES[3 * (turn % 2)]]):
        headway.set_num_threads(1)
        weights = headway.attention_weights(q, k, **options)
        headway.set_num_threads(3)
        assert_same_bits(headway.attention_weights(q, k, **options), weights, "weights")
        own = q[1:], k[1:]
        entry = entry_of(options, 1)
        assert_same_bits(headway.attention_weights(*own, **entry), weights[1:], "weights alone")
        for stage in ("scaled", "capped", "masked"):
            headway.set_num_threads(1)
            scores = headway.attention_scores(q, k, stage=stage, **options)
            assert scores.dtype == lse_dtype(dtype)
            headway.set_num_threads(3)
            again = headway.attention_scores(q, k, stage=stage, **options)
            assert_same_bits(again, scores, stage)
            alone = headway.attention_scores(*own, stage=stage, **entry)
            assert_same_bits(alone, scores[1:], f"{stage} alone")
