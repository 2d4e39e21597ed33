"""What an option hides does not exist for the query; what it leaves visible cannot be missed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, pairwise, product
from typing import Any

import numpy as np
import pytest
from helpers import (
    DTYPES,
    LSE_TOLERANCE,
    TOLERANCE,
    Array,
    assert_close,
    assert_same_bits,
    attend,
    reference,
)
from option_table import COMPANY, EACH_ISA, HIDING, Options, Problem, visible_keys
from poisons import POISONS, check_nan, poison

import headway

#: (Tq, Tk), D: a prefill of more than one tile, a chunk, one query, queries before the first key.
SIZES = [((70, 150), 12), ((5, 150), 64), ((1, 150), 8), ((130, 100), 8)]


pytestmark = EACH_ISA


@pytest.fixture(autouse=True)
def one_thread(any_threads: None) -> None:
    """One thread, but where a test asks for more."""
    headway.set_num_threads(1)


def problems(dtype: str, sizes: list[tuple[tuple[int, int], int]] = SIZES) -> Iterator[Problem]:
    """Yield a problem of each size, the single query to be computed by two threads."""
    for tokens, width in sizes:
        headway.set_num_threads(2 if tokens[0] == 1 else 1)
        yield Problem(dtype, tokens=tokens, head_dim=width)


def places(keys: int) -> list[slice]:
    """Return the keys that are changed at once: one, a tile, the first and the last ones."""
    return [
        *(slice(n, n + 1) for n in (0, keys // 3, keys - 1)),
        *(slice(0, keys // 3), slice(64, 128), slice(keys - 30, keys), slice(1, None, 2)),
    ]


def unseen(problem: Problem, options: Options, keys: slice) -> Array:
    """(B, H, Tq) bool: the queries that see none of these keys."""
    return ~visible_keys(problem.shape, options)[..., keys].any(axis=-1)


@pytest.mark.parametrize("name", HIDING)
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_hidden_changes_nothing(dtype: str, name: str, isa: str, turn: int) -> None:
    """Keys and values turned into anything leave every row that may not see them as it was.

    Each half of the places, with keys, values or both, has its turn.
    """
    found, kinds = 0, cycle(POISONS)
    for problem in problems(dtype):
        options = problem.options(HIDING[name])
        q, k, v = problem.arrays()
        expected, expected_lse = attend(q, k, v, **options)
        changes = list(product(places(problem.tokens[1]), ("k", "v", "kv")))
        for keys, which in changes[turn % 2 :: 2]:
            rows = unseen(problem, options, keys)
            found += np.count_nonzero(rows)
            changed, kind = {"k": k.copy(), "v": v.copy()}, next(kinds)
            for x in which:
                poison(changed[x][:, :, keys], kind)
            out, lse = attend(q, *changed.values(), **options)
            what = f"{kind} in {which} at {keys}, {problem.tokens}"
            assert_same_bits(out[rows], expected[rows], what)
            assert_same_bits(lse[rows], expected_lse[rows], f"lse: {what}")
    assert found > 100


@pytest.mark.parametrize("name", HIDING)
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_hidden_changes_no_weight(dtype: str, name: str, isa: str) -> None:
    """Weights and masked scores too; what is hidden has weight 0 and score -inf."""
    problem = Problem(dtype)
    options = problem.options(HIDING[name])
    q, k, _ = problem.arrays()
    seen = visible_keys(problem.shape, options)
    weights = headway.attention_weights(q, k, **options)
    scores = headway.attention_scores(q, k, **options)
    assert not weights[~seen].any()
    assert (scores[~seen] == -np.inf).all()
    assert np.isfinite(scores[seen]).all()
    for keys in places(problem.tokens[1]):
        rows = unseen(problem, options, keys)
        bad = k.copy()
        bad[:, :, keys] = np.nan
        found = headway.attention_weights(q, bad, **options)
        assert_same_bits(found[rows], weights[rows], f"weights, {keys}")
        found = headway.attention_scores(q, bad, **options)
        assert_same_bits(found[rows], scores[rows], f"scores, {keys}")


@pytest.mark.parametrize("name", HIDING)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_sign_of_a_zero_does_not_tell_a_hidden_value(
    dtype: str, name: str, isa: str, turn: int
) -> None:
    """A context of zeros is the same whatever finite values are hidden; two sizes by turns."""
    for problem in problems(dtype, SIZES[turn % 2 :: 2]):
        options = problem.options(HIDING[name])
        q, k, v = problem.arrays()
        for zero in (0.0, -0.0):
            v[...] = zero
            zeros = headway.attention(q, k, v, **options)
            for keys in places(problem.tokens[1])[::2]:
                rows = unseen(problem, options, keys)
                expected = zeros[rows]
                for hidden in (5.0, -5.0):
                    changed = v.copy()
                    changed[:, :, keys] = hidden
                    out = headway.attention(q, k, changed, **options)[rows]
                    assert_same_bits(out, expected, f"{hidden} at {keys}, {problem.tokens}")


@pytest.mark.parametrize("name", COMPANY)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_visible_nan_is_seen(dtype: str, name: str, isa: str, turn: int) -> None:
    """A NaN in q, k or v makes NaN exactly the rows that see it; in v, in its column only.

    Two of the sizes by turns.
    """
    for problem in problems(dtype, SIZES[turn % 2 :: 2]):
        options = problem.options(COMPANY[name])
        arrays = problem.arrays()
        clean = attend(*arrays, **options)
        seen = visible_keys(problem.shape, options)
        queries, keys = problem.tokens
        for b, h, few in ((0, 0, {1, 64, keys - 1}), (1, 3, {0, keys // 3})):
            for j in sorted(few):
                rows = np.zeros(seen.shape[:3], bool)
                group = slice(h // 2 * 2, h // 2 * 2 + 2)
                rows[b, group] = seen[b, group, :, j]
                check_k_and_v(arrays, options, clean, rows, (b, h // 2, j))
            for i in sorted({0, queries // 2, queries - 1}):
                q = arrays[0].copy()
                q[b, h, i, -1] = np.nan
                rows = np.zeros(seen.shape[:3], bool)
                rows[b, h, i] = seen[b, h, i].any()
                check_rows(attend(q, *arrays[1:], **options), clean, rows, f"q at {i}")


def check_k_and_v(
    arrays: tuple[Array, Array, Array],
    options: Options,
    clean: tuple[Array, Array],
    rows: Array,
    place: tuple[int, int, int],
) -> None:
    """Put a NaN into one key, then into one value."""
    q, k, v = arrays
    bad = k.copy()
    bad[place][k.shape[3] // 2] = np.nan
    check_rows(attend(q, bad, v, **options), clean, rows, f"k at {place}")
    bad = v.copy()
    bad[place][-1] = np.nan
    out, lse = attend(q, k, bad, **options)
    column = np.arange(v.shape[3]) == v.shape[3] - 1
    check_nan(out, clean[0], rows[..., None] & column, f"v at {place}")
    assert_same_bits(lse, clean[1], f"lse, v at {place}")


def check_rows(
    got: tuple[Array, Array], clean: tuple[Array, Array], rows: Array, what: str
) -> None:
    """Fail unless out and lse are NaN in exactly these rows, and what they were in the others."""
    check_nan(got[0], clean[0], np.broadcast_to(rows[..., None], got[0].shape), what)
    check_nan(got[1], clean[1], rows, f"lse, {what}")


@pytest.mark.parametrize("others", [(), ("window",), ("lengths",), ("softcap", "alibi", "sinks")])
@pytest.mark.parametrize("name", ["float-mask", "row-mask"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_nan_in_a_mask(dtype: str, name: str, others: tuple[str, ...], isa: str) -> None:
    """It makes NaN the rows that see this element, and no row from which the key is hidden."""
    for problem in problems(dtype):
        options = problem.options([name, *others])
        arrays = problem.arrays()
        clean = attend(*arrays, **options)
        seen = visible_keys(problem.shape, options)
        queries, keys = problem.tokens
        for i, j in ((0, 0), (queries // 2, keys // 2), (queries - 1, keys - 1), (0, keys - 1)):
            mask = options["mask"].copy()
            place = (1, *(0 if n == 1 else n - 1 for n in mask.shape[1:2]), i, j)
            place = tuple(min(n, size - 1) for n, size in zip(place, mask.shape, strict=True))
            hidden = mask[place] == -np.inf
            mask[place] = np.nan
            told = np.zeros(mask.shape, bool)
            told[place] = True
            rows = (seen & told).any(axis=-1)
            if not hidden:  # else the NaN takes the place of the hiding
                check_rows(attend(*arrays, **options | {"mask": mask}), clean, rows, f"{place}")


@pytest.mark.parametrize("dtype", DTYPES)
def test_minus_infinity_hides_what_is_no_number(dtype: str, isa: str) -> None:
    """A key full of NaN behind a mask element of -inf is hidden like any other."""
    for problem in problems(dtype):
        options = problem.options(["float-mask", "all-keys"])
        q, k, v = problem.arrays()
        k[:, :, ::3] = v[:, :, ::3] = np.nan
        mask = options["mask"].copy()
        mask[..., ::3] = -np.inf
        options, boolean = options | {"mask": mask}, options | {"mask": mask != -np.inf}
        out, lse = attend(q, k, v, **options)
        assert np.isfinite(out.astype(np.float64)).all()
        expected, expected_lse = reference(q, k, v, **options)
        assert_close(out, expected, TOLERANCE[dtype])
        assert_close(lse, expected_lse, LSE_TOLERANCE[dtype], "lse")
        zero = {"mask": np.where(boolean["mask"], 0.0, -np.inf).astype(q.dtype)}
        added, told = attend(q, k, v, **options | zero), attend(q, k, v, **boolean)
        for got, same in zip(added, told, strict=True):
            assert_close(got, same.astype(np.float64), TOLERANCE[dtype], "a mask of 0 and -inf")


@pytest.mark.parametrize("name", ["plain", "window", "two-sided", "many"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_packed_neighbours(dtype: str, name: str, isa: str) -> None:
    """Keys and values of every other member, and those hidden within one, change nothing."""
    sizes = [70, 3, 0, 130, 1, 40]
    cu = np.cumsum([0, *sizes])
    problem = Problem(dtype, 1, (4, 2), (cu[-1], cu[-1]))
    options: dict[str, Any] = {
        "plain": {},
        "window": {"window": 20},
        "two-sided": {"window": (11, 6), "causal": False},
        "many": {"window": 33, **problem.options(["softcap", "alibi", "sinks"])},
    }[name]
    q, k, v = (np.ascontiguousarray(x[0].swapaxes(0, 1)) for x in problem.arrays())
    expected, expected_lse = headway.attention_varlen(q, k, v, cu, return_lse=True, **options)
    seen = np.zeros((cu[-1], cu[-1]), bool)
    for start, stop in pairwise(cu.tolist()):
        size = stop - start
        seen[start:stop, start:stop] = visible_keys((1, 1, size, size), options)[0, 0]
    changes = slice(0, 70), slice(70, 73), slice(100, 150), slice(203, 204), slice(0, None, 40)
    for keys, kind in product(changes, POISONS):
        bad_k, bad_v = k.copy(), v.copy()
        poison(bad_k[keys], kind)
        poison(bad_v[keys], kind)
        rows = ~seen[:, keys].any(axis=-1)
        assert rows.any()
        out, lse = headway.attention_varlen(q, bad_k, bad_v, cu, return_lse=True, **options)
        assert_same_bits(out[rows], expected[rows], f"{kind} at {keys}")
        assert_same_bits(lse[:, rows], expected_lse[:, rows], f"lse, {kind} at {keys}")
