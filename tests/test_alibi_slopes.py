"""The slopes of ALiBi, against the published figures and against the recipe in exact powers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import headway


def powers(num_heads: int) -> list[float]:
    """The exponents of 2, by the recipe: those of a power of two, then every second of the next."""
    power = 1
    while power * 2 <= num_heads:
        power *= 2
    first = [-8 * (h + 1) / power for h in range(power)]
    next_power = [-8 * (h + 1) / (2 * power) for h in range(2 * power)]
    return first + next_power[::2][: num_heads - power]


@pytest.mark.parametrize("num_heads", [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20, 24, 25, 40, 64, 71, 112])
def test_the_recipe(num_heads: int) -> None:
    slopes = headway.alibi_slopes(num_heads)
    assert (slopes.shape, slopes.dtype) == ((num_heads,), np.dtype(np.float32))
    assert slopes.flags.c_contiguous
    assert slopes.flags.writeable
    expected = np.array([2.0**each for each in powers(num_heads)]).astype(np.float32)
    np.testing.assert_array_equal(slopes, expected)
    assert len(set(slopes.tolist())) == num_heads, "every head has a slope of its own"
    assert (slopes > 0).all()
    assert (slopes < 1).all()


def test_the_figures_of_the_paper() -> None:
    """8 heads: 1/2, 1/4 ... 1/256; 16 heads: the square roots between them, too."""
    np.testing.assert_array_equal(headway.alibi_slopes(8), 0.5 ** np.arange(1, 9))
    sixteen = (0.5 ** np.arange(0.5, 8.5, 0.5)).astype(np.float32)
    np.testing.assert_array_equal(headway.alibi_slopes(16), sixteen)
    twelve = np.concatenate([0.5 ** np.arange(1.0, 9.0), 0.5 ** np.arange(0.5, 4.0)])
    np.testing.assert_array_equal(headway.alibi_slopes(12), twelve.astype(np.float32))
    np.testing.assert_array_equal(headway.alibi_slopes(1), [2.0**-8])


@pytest.mark.parametrize("number", [np.int64(6), np.uint8(6), np.array(6)])
def test_ints_of_every_kind(number: Any) -> None:
    np.testing.assert_array_equal(headway.alibi_slopes(number), headway.alibi_slopes(6))


def test_each_call_gives_an_array_of_its_own() -> None:
    headway.alibi_slopes(4)[:] = 0
    assert headway.alibi_slopes(4).all()


@pytest.mark.parametrize(
    ("number", "error", "got"),
    [
        (8.0, TypeError, "8.0 (float)"),
        (True, TypeError, "True (bool)"),
        (np.True_, TypeError, f"{np.True_!r} ("),
        ("8", TypeError, "'8' (str)"),
        (None, TypeError, "None (NoneType)"),
        ([8], TypeError, "[8] (list)"),
        (0, ValueError, "0"),
        (-3, ValueError, "-3"),
        (2**40, ValueError, "1099511627776"),
        (2**200, ValueError, str(2**200)),
    ],
)
def test_refused_with_a_text_that_helps(number: Any, error: type[Exception], got: str) -> None:
    with pytest.raises(error) as caught:
        headway.alibi_slopes(number)
    text = str(caught.value)
    wanted = "1 to 1048576" if error is ValueError else "an int"
    assert text.startswith(f"num_heads: expected {wanted}, got {got}")
    assert text.endswith("; pass the number of query heads")


@pytest.mark.parametrize("module", [headway, headway.reference], ids=["headway", "reference"])
def test_what_a_slope_does(module: Any) -> None:
    """A head's scores fall by its slope with every key further back, and rise never."""
    q, k = np.zeros((12, 3, 4)), np.zeros((12, 6, 4))
    slopes = headway.alibi_slopes(12)
    scores = module.attention_scores(q, k, alibi_slopes=slopes, causal=False)
    distance = abs(np.arange(3)[:, None] + 3 - np.arange(6))
    np.testing.assert_array_equal(scores, -slopes[:, None, None].astype(float) * distance)
