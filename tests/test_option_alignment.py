"""Where the diagonal starts, with every option that counts from it, by probes with known answers.

With equal scores the result is the mean of the visible key numbers, and exp(lse) counts them.
"""

from __future__ import annotations

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
)
from option_table import Options, visible_keys

import headway

#: Chunks of 1 to 9 queries after a long past, one more and one less than the keys, and a prefill.
TOKENS = [*((n, 200) for n in range(1, 10)), (98, 97), (97, 98), (5, 2), (2, 5), (70, 70)]
ALIGNS: list[Any] = ["end", "start", 3, [-2, 60]]


def probe(queries: int, keys: int, dtype: str, **options: Any) -> tuple[Array, Array]:
    """Return the mean of the visible key numbers and how many are visible, (2, Tq) both."""
    q = np.zeros((2, 1, queries, 4), dtype_of(dtype))
    k = np.zeros((2, 1, keys, 4), q.dtype)
    v = np.broadcast_to(np.arange(keys).astype(q.dtype)[:, None], (2, 1, keys, 1))
    out, lse = attend(q, k, v, **options)
    assert_same_bits(headway.attention(q, k, v, **options), out, "without the lse")
    return out[:, 0, :, 0].astype(np.float64), np.exp(lse[:, 0])


def options_of(queries: int, keys: int) -> list[Options]:
    """Return options that hide keys by their position, and one that hides some of its own."""
    odd = (np.arange(keys) % 2 > 0)[None, None, None]
    stairs = np.tri(queries, keys, keys // 3, dtype=bool)[None, None]
    return [
        {},
        {"window": 4},
        {"window": (3, 2), "causal": False},
        {"mask": odd},
        {"mask": stairs, "window": 20},
        {"kv_lengths": [keys, keys // 2]},
        {"kv_lengths": [keys // 2, keys], "window": 3},
        {"kv_lengths": [1, keys - 1], "causal": False},
    ]


@pytest.mark.parametrize("align", ALIGNS, ids=str)
@pytest.mark.parametrize("tokens", TOKENS, ids=str)
@pytest.mark.parametrize("dtype", FULL)
def test_probe(
    tokens: tuple[int, int], align: Any, dtype: str, isa: str, some_threads: int
) -> None:
    """The visible keys are those that the words say, for each alignment and option."""
    numbers = np.arange(tokens[1])
    for options in options_of(*tokens):
        options["align"] = align
        seen = visible_keys((2, 1, *tokens), options)[:, 0]
        count = seen.sum(axis=-1)
        mean = (seen * numbers).sum(axis=-1) / np.maximum(count, 1)
        found, counted = probe(*tokens, dtype, **options)
        np.testing.assert_allclose(found, mean, rtol=2e-5, atol=1e-6, err_msg=f"{options}")
        np.testing.assert_allclose(counted, count, rtol=2e-5, err_msg=f"{options}")


#: Two queries at 3 and 4, or at 0 and 1, of five keys: (align, distances), the last ones hidden.
DISTANCES: list[tuple[Any, list[list[int]]]] = [
    ("end", [[3, 2, 1, 0, 1], [4, 3, 2, 1, 0]]),
    (3, [[3, 2, 1, 0, 1], [4, 3, 2, 1, 0]]),
    ("start", [[0, 1, 2, 3, 4], [1, 0, 1, 2, 3]]),
    (-1, [[1, 2, 3, 4, 5], [0, 1, 2, 3, 4]]),
    ([7, -3], [[7, 6, 5, 4, 3], [8, 7, 6, 5, 4]]),
]


@pytest.mark.parametrize(("align", "distances"), DISTANCES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_slopes_count_from_the_position(
    align: Any, distances: list[list[int]], dtype: str, isa: str, threads: int
) -> None:
    """The bias is -slope times the distance, to later keys too where they are visible."""
    q = np.zeros((2, 1, 2, 4), dtype_of(dtype))
    k = np.zeros((2, 1, 5, 4), q.dtype)
    options = {"align": align, "alibi_slopes": [0.75]}
    scores = headway.attention_scores(q, k, causal=False, **options)
    wanted = -0.75 * np.array(distances)
    np.testing.assert_array_equal(scores[0, 0], wanted)
    weights = headway.attention_weights(q, k, causal=False, **options)
    expected = np.exp(wanted) / np.exp(wanted).sum(axis=-1, keepdims=True)
    assert_close(weights[0, 0], expected, TOLERANCE[dtype])
    seen = visible_keys((2, 1, 2, 5), {"align": align})[0, 0]
    masked = headway.attention_scores(q, k, **options)
    np.testing.assert_array_equal(masked[0, 0], np.where(seen, wanted, -np.inf))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_end_is_that_of_the_length(dtype: str, isa: str, threads: int) -> None:
    """With lengths "end" counts from each entry's length, as if its other keys were not there."""
    q, k, v = make_qkv(4, dtype, batch=3, heads=(4, 2), tokens=(5, 90), head_dim=12)
    lengths = [90, 40, 3]
    for options in ({}, {"window": 9}, {"alibi_slopes": [0.5, 0.25, 0.125, 0.0], "softcap": 2.0}):
        for given in (lengths, np.array(lengths), np.array(lengths, np.uint8)):
            out, lse = attend(q, k, v, kv_lengths=given, **options)
        starts = [length - 5 for length in lengths]
        same, same_lse = attend(q, k, v, kv_lengths=lengths, align=starts, **options)
        assert_same_bits(same, out, "positions")
        assert_same_bits(same_lse, lse, "lse of positions")
        for b, length in enumerate(lengths):
            one = slice(b, b + 1)
            alone = attend(q[one], k[one, :, :length], v[one, :, :length], **options)
            assert_same_bits(alone[0], out[one], f"entry {b}")
            assert_same_bits(alone[1], lse[one], f"lse of entry {b}")


PACKED_ALIGNS: list[Any] = ["end", "start", 2, [4, 0, -1, 30]]


@pytest.mark.parametrize("align", PACKED_ALIGNS, ids=str)
@pytest.mark.parametrize("dtype", FULL)
def test_packed_members_are_aligned_one_by_one(
    align: Any, dtype: str, isa: str, threads: int
) -> None:
    """Each member's diagonal starts in its own keys; results are means within the member."""
    queries, keys = [3, 70, 1, 6], [9, 64, 5, 2]
    cu_q, cu_k = np.cumsum([0, *queries]), np.cumsum([0, *keys])
    q = np.zeros((cu_q[-1], 2, 4), dtype)
    k = np.zeros((cu_k[-1], 1, 4), dtype)
    v = np.concatenate([np.arange(n) for n in keys]).astype(dtype)[:, None, None]
    for options in ({}, {"window": 5}, {"window": (2, 1), "causal": False}):
        out, lse = headway.attention_varlen(
            q, k, v, cu_q, cu_k, align=align, return_lse=True, **options
        )
        for n, (tq, tk) in enumerate(zip(queries, keys, strict=True)):
            rows = slice(cu_q[n], cu_q[n + 1])
            own = options | {"align": align[n] if isinstance(align, list) else align}
            seen = visible_keys((1, 1, tq, tk), own)[0, 0]
            count = seen.sum(axis=-1)
            mean = seen @ np.arange(tk) / np.maximum(count, 1)
            for h in range(2):
                assert_close(out[rows, h, 0], mean, TOLERANCE[dtype], f"member {n}")
                assert_close(np.exp(lse[h, rows]), 1.0 * count, LSE_TOLERANCE[dtype], f"{n}")
