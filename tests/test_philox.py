"""The generator behind dropout: the vectors of its paper, and the words that the kernels draw."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import DTYPES, Array, dtype_of

import headway
from headway.philox import kept_weights, philox

#: Salmon et al. (2011), the vectors of philox4x32 with 10 rounds: counter, key, words.
VECTORS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip
SEEDS = (0, 1, 2**32 - 1, 2**32, 0x299F31D0A4093822, 2**64 - 1)


def words_of(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def drawn(seed: int, batch: int, head: int, position: int, group: int) -> list[int]:
    """Return the words of four neighbouring keys, by the generator in Python's own integers."""
    c, k = [group, position % 2**32, head, batch], [seed % 2**32, seed // 2**32]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b % 2**32, (a >> 32) ^ c[3] ^ k[1], a % 2**32]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c


def weights(shape: tuple[int, int, int, int], module: Any = headway, **options: Any) -> Array:
    """Return the weights of keys that all weigh the same, (B, H, Tq, Tk)."""
    batch, heads, tq, tk = shape
    dtype = dtype_of(options.pop("dtype", "float32"))
    q, k = np.zeros((batch, heads, tq, 2), dtype), np.zeros((batch, 1, tk, 2), dtype)
    found: Array = module.attention_weights(q, k, causal=False, **{"align": 0} | options)
    return found


@pytest.mark.parametrize(("counter", "key", "words"), VECTORS)
def test_known_answers(counter: str, key: str, words: str) -> None:
    low, high = words_of(key)
    c0, c1, c2, c3 = (np.array([word, 0], np.uint32) for word in words_of(counter))
    found = philox((c0, c1, c2, c3), (low, high))
    assert [int(word[0]) for word in found] == words_of(words)
    assert all(word.dtype == np.uint32 and word.shape == (2,) for word in found)
    c = words_of(counter)
    assert drawn(low + 2**32 * high, c[3], c[2], c[1], c[0]) == words_of(words)


def test_known_answers_by_the_public_function(isa: str) -> None:
    """Counter 0 and key 0: a weight is kept up to the rate of its word, and no further."""
    for key, word in enumerate(words_of(VECTORS[0][2])):
        for rate, kept in ((word / 2**32, True), ((word + 1) / 2**32, False)):
            found = weights((1, 1, 1, 4), dropout=rate, seed=0)[0, 0, 0, key]
            assert (found > 0) == kept
            if kept:
                np.testing.assert_allclose(found, 0.25 / (1 - rate), rtol=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_word(dtype: str, seed: int, isa: str) -> None:
    """Of any entry, head, position and key, to the last bit, and each one a word of its own."""
    shape, position = (2, 3, 5, 70), (2**33 - 2, -3)
    used = set()
    for b, h, i, j in [(0, 0, 0, 0), (1, 2, 4, 69), (0, 1, 3, 33), (1, 0, 1, 2), (1, 2, 2, 67)]:
        word = drawn(seed, b, h, position[b] + i, j // 4)[j % 4]
        used.add(word)
        options = {"seed": seed, "align": list(position), "dtype": dtype}
        assert weights(shape, dropout=word / 2**32, **options)[b, h, i, j] > 0
        assert weights(shape, dropout=(word + 1) / 2**32, **options)[b, h, i, j] == 0
    assert len(used) == 5


@pytest.mark.parametrize("seed", SEEDS)
def test_the_reference_draws_the_same(seed: int) -> None:
    offsets = [-3, 2**32 - 2]
    found = kept_weights((2, 3, 4, 11), offsets, 0.5, seed, first_entry=5)
    for b, h, i, j in np.ndindex(*found.shape):
        word = drawn(seed, 5 + b, h, offsets[b] + i, j // 4)[j % 4]
        assert found[b, h, i, j] == (word >= 2**31)


@pytest.mark.parametrize(
    ("rate", "threshold"),
    [
        (2.0**-33, 0),  # a half, to even
        (3 * 2.0**-33, 2),
        (2.0**-32, 1),
        (0.1, 429496730),
        (np.nextafter(1.0, 0.0), 2**32 - 1),  # not 2**32, which is none of the words
    ],
)
def test_rounding_of_the_rate(rate: float, threshold: int) -> None:
    """To a multiple of 2**-32, ties to even; and never so that no word is kept."""
    words = np.sort(np.concatenate([w.ravel() for w in philox(counters(500), (0, 0))]))
    kept = kept_weights((1, 1, 500, 2000), [0], rate, 0)
    assert np.count_nonzero(~kept) == np.searchsorted(words, np.uint32(threshold))


def counters(tokens: int) -> tuple[Array, Array, Array, Array]:
    zero = np.zeros((), np.uint32)
    return np.arange(500), np.arange(tokens)[:, None], zero, zero


@pytest.mark.parametrize("rate", [2.0**-40, 0.01, 0.5, 0.9])
def test_fraction_and_mean(rate: float, isa: str, threads: int) -> None:
    """Of many weights the fraction that is kept, and the mean that they add up to."""
    found = weights((1, 4, 300, 400), dropout=rate, seed=7) * 400
    n = found.size
    assert abs(np.count_nonzero(found) / n - (1 - rate)) < 5 * np.sqrt(rate / n)
    assert abs(found.mean() - 1) < 5 * np.sqrt(rate / (1 - rate) / n) + 1e-6
    # No two neighbours go together more often than others do.
    kept = found != 0
    for a, b in ((kept[..., 1:], kept[..., :-1]), (kept[:, :, 1:], kept[:, :, :-1])):
        assert abs(np.mean(a & b) - (1 - rate) ** 2) < 5 * np.sqrt(rate / a.size)
    assert abs(np.mean(kept[:, 0] & kept[:, 1]) - (1 - rate) ** 2) < 10 * np.sqrt(rate / n)


def test_seeds_differ(isa: str) -> None:
    found = [weights((1, 1, 40, 50), dropout=0.5, seed=seed) > 0 for seed in SEEDS]
    for n, one in enumerate(found):
        for other in found[:n]:
            assert 0.4 < np.mean(one == other) < 0.6


def test_expectation_over_seeds(isa: str) -> None:
    """The mean over many seeds is the result without dropout."""
    g = np.random.default_rng(3)
    q, k, v = (g.standard_normal((1, 2, 9, 4)) for _ in range(3))
    plain = headway.attention(q, k, v)
    runs = np.array([headway.attention(q, k, v, dropout=0.2, seed=seed) for seed in range(2000)])
    spread = runs.std(axis=0) / np.sqrt(len(runs))
    assert (np.abs(runs.mean(axis=0) - plain) < 5 * spread + 1e-12).all()
    assert (spread > 0).all()
