"""Dropout of the weights: against the reference, and what decides, or does not, who is dropped."""

from __future__ import annotations

from functools import cache
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
    make,
    make_qkv,
    reference,
)
from option_table import COMPANY, EACH_ISA, Problem, visible_keys
from poisons import POISONS, check_nan, poison

import headway
from headway.philox import kept_weights

DROPS: dict[str, Any] = {"dropout": 0.4, "seed": 0xFEDCBA9876543210}
#: (Tq, Tk): tiles of every height, chunks, decoding steps; one span and more.
SIZES = [(1, 1), (3, 5), (64, 64), (131, 131), (2, 700), (9, 1100), (40, 2200), (1, 3000)]


Call = tuple[tuple[Array, Array, Array], tuple[Array, Array]]


@cache
def call_of(number: int, heads: tuple[int, int], dtype: str) -> Call:
    """Return q, k, v of this size, and the reference's out and lse, kept for the other ISAs."""
    arrays = make_qkv(
        number, dtype, batch=2, heads=heads, tokens=SIZES[number], head_dim=8, value_dim=5
    )
    return arrays, reference(*arrays, **DROPS)


@EACH_ISA
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(1, 1), (6, 2)])
def test_sizes(heads: tuple[int, int], dtype: str, isa: str, some_threads: int) -> None:
    """A prefill, a chunk and a decoding step, with grouped heads and without."""
    for n, tokens in enumerate(SIZES):
        (q, k, v), (expected, expected_lse) = call_of(n, heads, dtype)
        out, lse = attend(q, k, v, **DROPS)
        assert_close(out, expected, TOLERANCE[dtype], str(tokens))
        assert_close(lse, expected_lse, LSE_TOLERANCE[dtype], f"lse of {tokens}")


@pytest.mark.parametrize("module", [headway, headway.reference])
def test_weights_are_dropped_or_scaled(module: Any) -> None:
    """Each weight is 0 or what it is without dropout, over 1 - rate."""
    q, k, _ = make_qkv(1, "float64", batch=2, heads=(4, 2), tokens=(30, 50))
    for options in ({}, {"align": [3, -2], "sinks": np.ones(4), "window": 9}):
        plain = module.attention_weights(q, k, **options)
        kept = kept_weights(plain.shape, options.get("align", [20, 20]), *DROPS.values())
        found = module.attention_weights(q, k, **options, **DROPS)
        np.testing.assert_allclose(found, plain * kept / 0.6, rtol=1e-13)


@EACH_ISA
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", COMPANY)
def test_with_company(name: str, dtype: str, isa: str, any_threads: None) -> None:
    """With every set of options: the weights times v, the lse without dropout, any threads."""
    problem = Problem(dtype)
    options = problem.options(COMPANY[name])
    q, k, v = problem.arrays()
    headway.set_num_threads(1)
    out, lse = attend(q, k, v, **options, **DROPS)
    weights = headway.attention_weights(q, k, **options, **DROPS)
    expected = weights.astype(np.float64) @ np.repeat(v.astype(np.float64), 2, axis=1)
    assert_close(out, expected, 2 * TOLERANCE[dtype], "weights @ v")
    assert_same_bits(lse, attend(q, k, v, **options)[1], "lse")
    for threads in (2, 3):
        headway.set_num_threads(threads)
        assert_same_bits(headway.attention(q, k, v, **options, **DROPS), out, f"{threads} threads")


@pytest.mark.parametrize("dtype", DTYPES)
def test_chunks_of_a_prefill(dtype: str, isa: str, threads: int) -> None:
    """A row is dropped by its position: the same bits in any chunk, of all keys or those so far."""
    q, k, v = make_qkv(2, dtype, batch=2, heads=(4, 2), tokens=(1100, 1100))
    expected = headway.attention(q, k, v, **DROPS)
    for first, last in ((0, 2), (5, 9), (63, 130), (1000, 1100)):
        rows, far = slice(first, last), slice(0, last)
        found = headway.attention(q[:, :, rows], k, v, align=first, **DROPS)
        assert_same_bits(found, expected[:, :, rows], f"{first} to {last}")
        found = headway.attention(q[:, :, rows], k[:, :, far], v[:, :, far], **DROPS)
        assert_same_bits(found, expected[:, :, rows], f"{first} to {last}, keys so far")
    for place in (0, 77, 1099):  # one query
        one, far = slice(place, place + 1), slice(0, place + 1)
        found = headway.attention(q[:, :, one], k[:, :, far], v[:, :, far], **DROPS)
        wide = expected[:, :, one].astype(np.float64)
        assert_close(found, wide, TOLERANCE[dtype], f"query {place}")


@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_that_share_a_row(dtype: str, isa: str, any_threads: None) -> None:
    """Few queries over many keys, whose spans go to several threads."""
    q, k, v = make_qkv(3, dtype, heads=(2, 1), tokens=(2, 9000), head_dim=64)
    headway.set_num_threads(1)
    expected = headway.attention(q, k, v, **DROPS)
    for threads in (2, 5):
        headway.set_num_threads(threads)
        assert_same_bits(headway.attention(q, k, v, **DROPS), expected, f"{threads} threads")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["BHTD", "BTHD"])
def test_ranks_and_layouts(layout: str, dtype: str, isa: str) -> None:
    """Fewer axes are the first entry and head; another order of axes changes nothing."""
    q, k, v = make_qkv(4, dtype, batch=3, heads=(4, 2), tokens=(70, 90))
    expected = headway.attention(q, k, v, **DROPS)
    first = headway.attention(q[0, 0], k[0, 0], v[0, 0], **DROPS)
    assert_same_bits(first, expected[0, 0])
    if layout == "BTHD":
        q, k, v, expected = (x.swapaxes(1, 2) for x in (q, k, v, expected))
    found = headway.attention(q, k, v, layout=layout, **DROPS)
    assert_same_bits(found, expected)
    assert_same_bits(headway.attention(q[0], k[0], v[0], layout=layout, **DROPS), expected[0])
    # At another place of the batch other weights are dropped.
    assert (headway.attention(q[1], k[1], v[1], layout=layout, **DROPS) != expected[1]).any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_packed(dtype: str, isa: str, threads: int) -> None:
    """A sequence counts as the batch entry of its place, wherever its tokens lie."""
    queries, keys = [5, 0, 70, 1, 3], [9, 4, 70, 2, 1100]
    offsets = [np.cumsum([0, *lengths]).tolist() for lengths in (queries, keys)]
    q, k, v = (make((5, n), (sum(queries if n < 1 else keys), 4, 8), dtype) for n in range(3))
    out, lse = headway.attention_varlen(q, k, v, *offsets, return_lse=True, **DROPS)
    assert_same_bits(lse, headway.attention_varlen(q, k, v, *offsets, return_lse=True)[1])
    wide = [x.astype(np.float64) for x in (q, k, v)]
    expected = headway.reference.attention_varlen(*wide, *offsets, **DROPS)
    assert_close(out, expected, TOLERANCE[dtype])
    for n in (0, 2, 4):
        rows, columns = (slice(*each[n : n + 2]) for each in offsets)
        batch = [np.stack([x] * 5) for x in (q[rows], k[columns], v[columns])]
        alone = headway.attention(*batch, layout="BTHD", **DROPS)
        assert_same_bits(out[rows], alone[n], f"sequence {n}")
        one = headway.reference.attention(*batch, layout="BTHD", **DROPS)[n]
        assert_close(expected[rows], one.astype(np.float64), TOLERANCE[dtype], f"sequence {n}")


@pytest.mark.parametrize("kind", POISONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["causal", "window", "bool-mask", "float-mask-and-all"])
def test_hidden_keys_do_not_exist(name: str, dtype: str, kind: str, isa: str) -> None:
    """Whatever stands there, a row keeps its bits."""
    for tokens in ((40, 150), (1, 150)):
        problem = Problem(dtype, 1, (2, 2), tokens)
        options = problem.options(COMPANY[name]) | DROPS
        q, k, v = problem.arrays()
        row = (tokens[0] - 1) // 2  # the others may see what is replaced
        hidden = ~visible_keys(problem.shape, options)[:, :, row]
        assert hidden.any() or (name == "causal" and tokens[0] == 1)
        expected = headway.attention(q, k, v, **options)[:, :, row]
        for x in (k, v):
            replaced = x.copy()
            poison(replaced, kind)
            x[hidden] = replaced[hidden]
        found = headway.attention(q, k, v, **options)[:, :, row]
        assert_same_bits(found, expected, str(tokens))


@EACH_ISA
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["causal", "window", "bool-mask", "softcap", "float-mask-and-all"])
def test_nan_is_seen_even_where_it_is_dropped(name: str, dtype: str, isa: str) -> None:
    """In a value: its column of the rows that see it. In a key: these rows, and their weights."""
    for tokens in ((40, 150), (131, 131), (3, 150), (1, 150)):
        problem = Problem(dtype, 1, (2, 2), tokens)
        options = problem.options(COMPANY[name]) | DROPS
        q, k, v = problem.arrays()
        clean = headway.attention(q, k, v, **options)
        seen = visible_keys(problem.shape, options)
        key = int(np.argmax(seen[0, 0].sum(axis=0)))
        bad = v.copy()
        bad[:, :, key, 2] = np.nan
        where = np.zeros(clean.shape, bool)
        where[..., 2] = seen[..., key]
        found = headway.attention(q, k, bad, **options)
        check_nan(found, clean, where, f"value of {tokens}")
        k[:, :, key] = np.nan
        rows: Array = np.broadcast_to(seen[..., key, None], clean.shape)
        check_nan(headway.attention(q, k, v, **options), clean, rows, f"key of {tokens}")
        weights = headway.attention_weights(q, k, **options).astype(np.float64)
        same = headway.reference.attention_weights(q, k, **options).astype(np.float64)
        assert np.array_equal(np.isnan(weights), seen & seen[..., key, None])
        assert np.array_equal(np.isnan(same), np.isnan(weights))


def test_another_dropout_drops_others(isa: str) -> None:
    """A higher rate drops all that a lower one does, and more; what is left keeps its mean."""
    shape = (1, 1, 50, 60)
    before = np.ones(shape, bool)
    for rate in (0.1, 0.5, 0.9):
        q, k = np.zeros((50, 4)), np.zeros((60, 4))
        kept = headway.attention_weights(q, k, causal=False, dropout=rate, seed=3) > 0
        assert not (kept & ~before).any()
        assert kept.sum() < before.sum()
        before = kept
