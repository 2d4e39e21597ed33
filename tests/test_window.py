"""What a window means: how many keys it counts, from which position, in every way of asking."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import (
    DTYPES,
    FULL,
    LSE_TOLERANCE,
    TOLERANCE,
    assert_close,
    assert_same_bits,
    attend,
    make_qkv,
    probe,
)
from option_table import visible_keys

#: The mean of the keys that each of six queries sees, by hand.
MEANS: list[tuple[int, list[float]]] = [
    (1, [0, 1, 2, 3, 4, 5]),
    (2, [0, 0.5, 1.5, 2.5, 3.5, 4.5]),
    (3, [0, 0.5, 1, 2, 3, 4]),
    (5, [0, 0.5, 1, 1.5, 2, 3]),
    (6, [0, 0.5, 1, 1.5, 2, 2.5]),
    (7, [0, 0.5, 1, 1.5, 2, 2.5]),
    (1000, [0, 0.5, 1, 1.5, 2, 2.5]),
]
#: The same without the causal rule, for five keys and (left, right).
TWO_SIDED: list[tuple[tuple[int, int], list[float]]] = [
    ((0, 0), [0, 1, 2, 3, 4]),
    ((1, 1), [0.5, 1, 2, 3, 3.5]),
    ((0, 2), [1, 2, 3, 3.5, 4]),
    ((2, 0), [0, 0.5, 1, 2, 3]),
    ((-1, 0), [0, 0.5, 1, 1.5, 2]),
    ((0, -1), [2, 2.5, 3, 3.5, 4]),
    ((-1, 1), [0.5, 1, 1.5, 2, 2]),
    ((-1, -1), [2, 2, 2, 2, 2]),
    ((1000, 2**62), [2, 2, 2, 2, 2]),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("window", "means"), MEANS)
def test_probe(window: int, means: list[float], dtype: str, isa: str, threads: int) -> None:
    """W keys are seen, the query's own included: in one call, in chunks and step by step."""
    everything = np.ones((6, 6), bool)
    for options in (
        {"window": window},
        {"window": (window - 1, 0)},
        {"window": (window - 1, -1)},  # the causal rule takes what lies to the right
        {"window": (window - 1, 3)},
        {"window": np.int32(window), "mask": everything},
        {"window": [window - 1, 0], "mask": everything * np.float16(0)},
        {"window": (window - 1, 0), "causal": False},
    ):
        found, counted = probe(6, 6, dtype, **options)
        np.testing.assert_allclose(found, means, rtol=1e-6)
        np.testing.assert_allclose(counted, np.minimum(np.arange(1, 7), window), rtol=1e-6)
    for start in range(6):
        for stop in range(start + 1, 7):
            found, _ = probe(stop - start, stop, dtype, window=window)
            np.testing.assert_allclose(found, means[start:stop], rtol=1e-6)
            found, _ = probe(stop - start, 6, dtype, window=window, align=start)
            np.testing.assert_allclose(found, means[start:stop], rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("window", "means"), TWO_SIDED)
def test_left_and_right(
    window: tuple[int, int], means: list[float], dtype: str, isa: str, threads: int
) -> None:
    """Both bounds are inclusive, -1 is no bound; positions count from the end or as told."""
    found, _ = probe(5, 5, dtype, window=window, causal=False)
    np.testing.assert_allclose(found, means, rtol=1e-6)
    for start in range(5):
        found, _ = probe(5 - start, 5, dtype, window=window, causal=False)
        np.testing.assert_allclose(found, means[start:], rtol=1e-6)
        found, _ = probe(2, 5, dtype, window=window, causal=False, align=min(start, 3))
        np.testing.assert_allclose(found, means[min(start, 3) :][:2], rtol=1e-6)
    longer, _ = probe(5, 90, dtype, window=window, causal=False, align="start", kv_lengths=[5])
    np.testing.assert_allclose(longer, means, rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_decoding_step(dtype: str, isa: str, threads: int) -> None:
    """The last of six queries alone, three keys: the mean of 3, 4 and 5."""
    found, counted = probe(1, 6, dtype, window=3)
    np.testing.assert_allclose(found, [4], rtol=1e-6)
    np.testing.assert_allclose(counted, [3], rtol=1e-6)
    for length in (1, 2, 5, 200):
        found, _ = probe(1, 300, dtype, window=3, kv_lengths=[length])
        wide = length - 1 - (min(length, 3) - 1) / 2
        np.testing.assert_allclose(found, [wide], rtol=4e-3 if dtype == "bfloat16" else 1e-3)


@pytest.mark.parametrize("dtype", FULL)
def test_without_the_causal_rule_an_int_bounds_the_left(dtype: str, isa: str, threads: int) -> None:
    """W is then (W - 1, -1)."""
    q, k, v = make_qkv(7, dtype, heads=(2, 1), tokens=(70, 90), head_dim=8)
    for window in (1, 2, 33, 64, 65, 89, 90, 91):
        found = attend(q, k, v, window=window, causal=False)
        pair = attend(q, k, v, window=(window - 1, -1), causal=False)
        for got, same in zip(found, pair, strict=True):
            assert_same_bits(got, same, f"window {window}")


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_window_of_all_keys_is_none(dtype: str, isa: str, threads: int) -> None:
    """W = T - 1 hides one key from one query, W = T and more none."""
    tokens = 129
    q, k, v = make_qkv(7, dtype, heads=(2, 1), tokens=(tokens, tokens), head_dim=8)
    plain, plain_lse = attend(q, k, v)
    for window in (tokens, tokens + 1, 10**6, 2**70, (-1, 0), (2**70, 5)):
        out, lse = attend(q, k, v, window=window)
        assert_close(out, plain.astype(np.float64), TOLERANCE[dtype])
        assert_close(lse, plain_lse.astype(np.float64), LSE_TOLERANCE[dtype], "lse")
    out, lse = attend(q, k, v, window=tokens - 1)
    rows = slice(0, tokens - 1)
    assert_close(out[:, :, rows], plain[:, :, rows].astype(np.float64), TOLERANCE[dtype])
    alone, alone_lse = attend(q[:, :, -1:], k[:, :, 1:], v[:, :, 1:])
    assert_close(out[:, :, -1:], alone.astype(np.float64), TOLERANCE[dtype])
    assert_close(lse[:, :, -1:], alone_lse.astype(np.float64), LSE_TOLERANCE[dtype], "lse")
    assert np.abs(lse[:, :, -1] - plain_lse[:, :, -1]).min() > 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [(70, 70), (300, 300), (9, 700), (1, 700), (90, 60)])
def test_a_window_is_a_mask(
    tokens: tuple[int, int], dtype: str, isa: str, some_threads: int
) -> None:
    """Widths around the sizes of blocks, one-sided and two-sided, beside the same mask."""
    q, k, v = make_qkv(9, dtype, batch=2, heads=(2, 1), tokens=tokens, head_dim=16)
    shape = 2, 2, *tokens
    for options in (
        *({"window": window} for window in (1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129)),
        {"window": (5, 70), "causal": False},
        {"window": (64, 64), "causal": False, "align": [3, -20]},
        {"window": (-1, 7), "causal": False, "align": "start"},
        {"window": 40, "align": [tokens[1] - 5, 13]},
    ):
        mask = visible_keys(shape, options)
        out, lse = attend(q, k, v, **options)
        same, same_lse = attend(q, k, v, causal=False, mask=mask)
        assert_close(out, same.astype(np.float64), TOLERANCE[dtype], f"{options}")
        assert_close(lse, same_lse.astype(np.float64), LSE_TOLERANCE[dtype], f"lse of {options}")
