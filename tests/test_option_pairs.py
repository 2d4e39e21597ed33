"""Every pair of options against the reference: output, lse, weights and scores of all stages."""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from helpers import (
    DTYPES,
    LSE_TOLERANCE,
    TOLERANCE,
    Array,
    assert_close,
    dtype_of,
    lse_dtype,
    reference,
    wide_tolerance,
)
from layouts import step_two
from option_table import EACH_ISA, OPTIONS, Options, Problem

import headway

#: Features of a call that are no option of the scores.
SHAPES = ("grouped", "layout", "out", "wide-out", "no-lse", "packed")
FEATURES = (*OPTIONS, *SHAPES)
MASKS = {"bool-mask", "padding-mask", "float-mask", "row-mask"}
#: Those that would give the same keyword twice; and what packed calls do not take.
EXCLUDED = (
    MASKS,
    {"window", "two-sided"},
    {"alibi", "batch-alibi"},
    {"start", "int-align", "entry-aligns"},
    {"out", "wide-out"},
    *({"packed", other} for other in (*MASKS, "lengths", "layout")),
)
PAIRS = [
    pair for pair in combinations(FEATURES, 2) if not any(set(pair) <= group for group in EXCLUDED)
]
#: (Tq, Tk): a prefill of more than one tile, a chunk, one query.
TOKENS = [(65, 100), (4, 100), (1, 100)]
STAGES = ("scaled", "capped", "masked")


def problem_of(pair: tuple[str, str], dtype: str, tokens: tuple[int, int]) -> Problem:
    """Return the problem of a pair; only the feature "grouped" has fewer key heads."""
    heads = (4, 2) if "grouped" in pair else (2, 2)
    return Problem(dtype, heads=heads, tokens=tokens, seed=PAIRS.index(pair))


def options_of(pair: tuple[str, str], problem: Problem) -> Options:
    """Return the options of the scores that the pair names."""
    return problem.options(name for name in pair if name in OPTIONS)


def of_scores(options: Options) -> Options:
    """Return the options without those of the weights."""
    return {name: value for name, value in options.items() if name not in ("dropout", "seed")}


@lru_cache(maxsize=len(TOKENS))
def expected_of(
    pair: tuple[str, str], tokens: tuple[int, int]
) -> tuple[tuple[Array, Array], dict[str, Array]]:
    """Return (out, lse), and the weights and scores by name, for the numbers of every dtype."""
    problem = problem_of(pair, "float64", tokens)
    options = options_of(pair, problem)
    q, k, v = problem.arrays()
    shown = {"weights": headway.reference.attention_weights(q, k, **options)}
    for stage in STAGES:
        shown[stage] = headway.reference.attention_scores(q, k, stage=stage, **of_scores(options))
    return reference(q, k, v, **options), shown


# The pair is the outermost loop, so that its references are computed once and then forgotten.
@EACH_ISA
@pytest.mark.parametrize("pair", PAIRS, ids=["+".join(pair) for pair in PAIRS])
def test_pair(pair: tuple[str, str], isa: str, some_threads: int) -> None:
    """In a prefill, a chunk and a decoding step, in every dtype."""
    for tokens in TOKENS:
        expected, shown = expected_of(pair, tokens)
        for dtype in DTYPES:
            problem = problem_of(pair, dtype, tokens)
            if "packed" in pair:
                check_packed(pair, problem, expected)
            else:
                check(pair, problem, expected)
                check_shown(pair, problem, shown)


def check(pair: tuple[str, str], problem: Problem, expected: tuple[Array, Array]) -> None:
    """Compare the result and its lse."""
    options = options_of(pair, problem)
    q, k, v = problem.arrays()
    out = out_of(pair, expected[0], problem.dtype)
    if "layout" in pair:
        q, k, v = (x.swapaxes(1, 2).copy() for x in (q, k, v))
        options["layout"] = "BTHD"
    if out is not None:
        options["out"] = out.swapaxes(1, 2) if "layout" in pair else out
    result = headway.attention(q, k, v, return_lse="no-lse" not in pair, **options)
    compare(pair, problem, result, out, expected, swapped="layout" in pair)


def check_packed(pair: tuple[str, str], problem: Problem, expected: tuple[Array, Array]) -> None:
    """Compare a packed call whose members are the batch entries."""
    batch, (tq, tk) = problem.batch, problem.tokens
    options = options_of(pair, problem)
    q, k, v = (x.swapaxes(1, 2).reshape(-1, x.shape[1], x.shape[3]) for x in problem.arrays())
    out = out_of(pair, expected[0], problem.dtype)
    if out is not None:
        flat = out.swapaxes(1, 2).reshape(batch * tq, *expected[0].shape[1::2])
        options["out"] = step_two(flat) if "out" in pair else flat
    result = headway.attention_varlen(
        *(q, k, v),
        *(np.arange(batch + 1) * n for n in (tq, tk)),
        return_lse="no-lse" not in pair,
        **options,
    )
    found, lse = result if isinstance(result, tuple) else (result, None)
    if out is not None:
        assert found is options["out"]
    found = found.reshape(batch, tq, *found.shape[1:])
    if lse is not None:
        found = found, lse.reshape(-1, batch, tq).swapaxes(0, 1)
    compare(pair, problem, found, None, expected, swapped=True)


def out_of(pair: tuple[str, str], result: Array, dtype: str) -> Array | None:
    """Return the array that takes the result, full of NaN, if the pair asks for one."""
    if "out" in pair:
        return step_two(np.full(result.shape, np.nan).astype(dtype_of(dtype)))
    if "wide-out" in pair:
        return np.full(result.shape, np.nan, np.float64 if dtype == "float64" else np.float32)
    return None


def compare(
    pair: tuple[str, str],
    problem: Problem,
    result: Any,
    out: Array | None,
    expected: tuple[Array, Array],
    *,
    swapped: bool,
) -> None:
    """Fail unless the result, its lse, and what stands in `out` are as expected."""
    dtype = problem.dtype
    what = f"{dtype}, {problem.tokens}"
    if "no-lse" not in pair:
        result, lse = result
        assert lse.dtype == lse_dtype(dtype)
        assert_close(lse, expected[1], LSE_TOLERANCE[dtype], f"lse of {what}")
    found = result.swapaxes(1, 2) if swapped else result
    wide = "wide-out" in pair
    allowed = wide_tolerance(dtype) if wide else TOLERANCE[dtype]
    assert found.dtype == (lse_dtype(dtype) if wide else dtype_of(dtype))
    assert_close(found, expected[0], allowed, what)
    if out is not None:
        assert_close(out, expected[0], allowed, f"out= of {what}")


def check_shown(pair: tuple[str, str], problem: Problem, shown: dict[str, Array]) -> None:
    """Compare the weights and the scores of each stage."""
    if pair[1] in ("out", "wide-out", "no-lse"):
        return  # they have no such arguments
    dtype = problem.dtype
    options = options_of(pair, problem)
    q, k, _ = problem.arrays()
    if "layout" in pair:
        q, k = q.swapaxes(1, 2), k.swapaxes(1, 2)
        options["layout"] = "BTHD"
    what = f"of {dtype}, {problem.tokens}"
    weights = headway.attention_weights(q, k, **options)
    assert weights.dtype == dtype_of(dtype)
    assert_close(weights, shown["weights"], TOLERANCE[dtype], f"weights {what}")
    for stage in STAGES:
        scores = headway.attention_scores(q, k, stage=stage, **of_scores(options))
        assert scores.dtype == lse_dtype(dtype)
        assert_close(scores, shown[stage], LSE_TOLERANCE[dtype], f"{stage} scores {what}")


def test_all_pairs_are_there() -> None:
    """So many there are of these features, less those that cannot be asked for at once."""
    assert len(FEATURES) == 23
    assert len(PAIRS) == 23 * 22 // 2 - 6 - 1 - 1 - 3 - 1 - 6
