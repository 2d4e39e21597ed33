"""A query from which options hide every key: context 0, lse -inf or the sink, and no warning."""

from __future__ import annotations

import warnings
from itertools import product
from typing import Any

import numpy as np
import pytest
from helpers import (
    DTYPES,
    FULL,
    LSE_TOLERANCE,
    TOLERANCE,
    Array,
    assert_close,
    assert_same_bits,
    attend,
    dtype_of,
    make_qkv,
    reference,
)
from option_table import Options, filled, starts_of, visible_keys

import headway

INF = np.inf
#: (B, H, Tq, Tk): no size is a multiple of a block's length.
SHAPE = 2, 4, 70, 101


def hiding(rows: Any, heads: Any = slice(None), batch: Any = slice(None)) -> Array:
    """(B, H, Tq, Tk) bool: nothing is visible in these rows, everything in the others."""
    mask = np.ones(SHAPE, bool)
    mask[batch, heads, rows] = False
    return mask


def added(mask: Array, dtype: str = "float32") -> Array:
    """Return the mask as numbers to be added: 0 and -inf."""
    return np.where(mask, 0.0, -INF).astype(dtype_of(dtype))


KEYS = np.arange(SHAPE[3])

#: Options that empty some rows, or all of them; each alone or only together.
EMPTYING: dict[str, Options] = {
    "one row": {"mask": hiding(33)},
    "last row": {"mask": hiding(-1)},
    "first rows": {"mask": hiding(slice(0, 20))},
    "odd rows of one head": {"mask": hiding(slice(1, None, 2), 2)},
    "one batch entry": {"mask": hiding(slice(None), batch=1)},
    "all rows": {"mask": np.zeros((1, 1, 1, 1), bool)},
    "all rows by one row": {"mask": np.zeros((1, 1, 1, SHAPE[3]), bool), "causal": False},
    "a column of rows": {"mask": (np.arange(70) % 3 > 0)[:, None], "causal": False},
    "one row by -inf": {"mask": added(hiding(33))},
    "last rows by -inf in float16": {"mask": added(hiding(slice(60, 70)), "float16")},
    "all rows by -inf in float64": {"mask": np.full((70, 1), -INF)},
    "causal and padding": {"mask": (KEYS >= 50)[None, None, None], "align": "start"},
    "causal and padding by -inf": {"mask": added(KEYS >= 50), "align": "start"},
    "window behind the last key": {"window": 5, "align": 80, "causal": False},
    "window before the first key": {"window": (-1, 3), "align": -20, "causal": False},
    "window and padding": {"window": 8, "mask": (KEYS >= 60)[None, None, None]},
    "window and lengths": {"window": 16, "kv_lengths": [40, 3], "align": "start"},
    "lengths of 0": {"kv_lengths": [0, 101]},
    "lengths of 0 to all": {"kv_lengths": [0, 0], "causal": False},
    "lengths below the queries": {"kv_lengths": [5, 69]},
    "entries before the keys": {"align": [-30, -200]},
    "everything": {
        "mask": added(hiding(slice(3, 40), 1)),
        "window": 30,
        "softcap": 2.0,
        "alibi_slopes": np.array([0.5, 0.25, 0.0, 0.125]),
        "kv_lengths": [60, 90],
        "align": [-4, 50],
    },
}
SINKS = np.array([0.5, -INF, 3.0, -200.0])


@pytest.mark.parametrize("with_sinks", [False, True], ids=["", "sinks"])
@pytest.mark.parametrize("name", EMPTYING)
@pytest.mark.parametrize("dtype", DTYPES)
def test_emptied_rows(dtype: str, name: str, with_sinks: bool, isa: str, some_threads: int) -> None:
    """Beside the reference, with and without sinks, in a result full of NaN before."""
    options = EMPTYING[name] | ({"sinks": SINKS} if with_sinks else {})
    empty = ~visible_keys(SHAPE, options).any(axis=-1)
    assert empty.any()
    q, k, v = make_qkv(102, dtype, batch=2, heads=(4, 2), tokens=SHAPE[2:], head_dim=9)
    q[empty] = np.nan  # a query that sees nothing may be anything
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out, lse = attend(q, k, v, out=filled(q, np.nan), **options)
        weights = headway.attention_weights(q, k, **options)
        scores = headway.attention_scores(q, k, **options)
    expected, expected_lse = reference(q, k, v, **options)
    assert_close(out, expected, TOLERANCE[dtype])
    assert_close(lse, expected_lse, LSE_TOLERANCE[dtype], "lse")
    for found in (out, weights):
        assert not found[empty].any()
    assert (scores[empty] == -INF).all()
    alone = np.broadcast_to((SINKS if with_sinks else np.full(4, -INF))[:, None], empty.shape)
    np.testing.assert_array_equal(lse[empty], alone[empty])
    assert_same_bits(headway.attention(q, k, v, **options), out, "without the lse")


@pytest.mark.parametrize("name", EMPTYING)
@pytest.mark.parametrize("dtype", FULL)
def test_emptied_rows_of_a_few_queries(dtype: str, name: str, isa: str, threads: int) -> None:
    """The same rows, asked for one at a time and a few at a time."""
    options = EMPTYING[name]
    seen = visible_keys(SHAPE, options).any(axis=-1)
    q, k, v = make_qkv(102, dtype, batch=2, heads=(4, 2), tokens=SHAPE[2:], head_dim=9)
    expected, expected_lse = reference(q, k, v, **options)
    first = int(np.flatnonzero(~seen.all(axis=(0, 1)))[0])
    for start, tokens in product({0, max(0, first - 1), first, 65}, (1, 2, 5)):
        rows = slice(start, min(start + tokens, 70))
        part = options | {"align": [n + start for n in starts_of(SHAPE, options)]}
        if "mask" in options and np.ndim(options["mask"]) > 1 and options["mask"].shape[-2] > 1:
            part["mask"] = options["mask"][..., rows, :]
        out, lse = attend(q[:, :, rows], k, v, **part)
        assert not out[~seen[:, :, rows]].any()
        assert (lse[~seen[:, :, rows]] == -INF).all()
        # Rows of small numbers alone have another scale than all of them.
        assert_close(out, expected[:, :, rows], 4 * TOLERANCE[dtype], f"{rows}")
        assert_close(lse, expected_lse[:, :, rows], 4 * LSE_TOLERANCE[dtype], f"lse of {rows}")


@pytest.mark.parametrize("dtype", FULL)
def test_random_numbers(dtype: str, isa: str, threads: int) -> None:
    """Figures worked out by another program; both kinds of mask, and the rows without row 2."""
    g = np.random.default_rng(102)
    q, k, v = (g.standard_normal((1, 2, 4, 8)).astype(dtype) for _ in range(3))
    mask = np.ones((1, 1, 4, 4), bool)
    mask[:, :, 2] = False
    for given in (mask, np.where(mask, 0, -INF).astype(dtype)):
        out, lse = attend(q, k, v, mask=given, causal=False)
        wanted = [[1.376411, 2.259993, -INF, 1.865127], [1.441912, 1.821348, -INF, 1.141873]]
        np.testing.assert_allclose(lse[0], wanted, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(out[0, 0, 0, :3], [-0.593401, -0.777646, 0.588826], rtol=1e-5)
        assert not out[:, :, 2].any()
        kept = [0, 1, 3]
        plain, plain_lse = attend(q, k, v, causal=False)
        assert_close(out[:, :, kept], plain[:, :, kept].astype(np.float64), TOLERANCE[dtype])
        assert_close(lse[:, :, kept], plain_lse[:, :, kept].astype(np.float64), 1e-6, "lse")


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_minus_infinity(dtype: str, isa: str, threads: int) -> None:
    """Visible scores of -inf, from k alone or with what is added, make an empty row, too."""
    q, k, v = make_qkv(8, dtype, heads=(2, 1), tokens=(70, 70), head_dim=6)
    q[...] = np.abs(q) + np.ones((), q.dtype)
    k[...] = -INF
    for options in (
        {"mask": np.full((70, 70), 5.0)},
        {"window": 9, "alibi_slopes": [0.5, 0.25]},
        {"kv_lengths": [50], "causal": False},
    ):
        out, lse = attend(q, k, v, **options)
        assert not out.any()
        assert (lse == -INF).all()
        assert not headway.attention_weights(q, k, **options).any()
        out, lse = attend(q, k, v, sinks=[1.0, -2.0], **options)
        assert not out.any()
        assert (lse == np.array([1.0, -2.0])[:, None]).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_packed_members_without_keys(dtype: str, isa: str, threads: int) -> None:
    """Members of no keys, of fewer keys than queries, and of no queries."""
    cu_q, cu_k = np.array([0, 3, 3, 10, 80, 85]), np.array([0, 0, 4, 6, 6, 90])
    q, k, v = (
        x[0].swapaxes(0, 1) for x in make_qkv(3, dtype, heads=(4, 2), tokens=(85, 90), head_dim=8)
    )
    for sinks in (None, SINKS):
        out, lse = headway.attention_varlen(
            *(q, k, v, cu_q, cu_k), sinks=sinks, return_lse=True, out=filled(q, np.nan)
        )
        empty = [*range(8), *range(10, 80)]
        assert not out[empty].any()
        alone = np.full(4, -INF) if sinks is None else sinks
        np.testing.assert_array_equal(lse[:, empty], np.repeat(alone[:, None], len(empty), axis=1))
        seen = [8, 9, 80, 81, 82, 83, 84]
        assert np.isfinite(lse[:, seen]).all()
        assert out[seen].any(axis=(1, 2)).all()
