"""Matrices of a trace as pictures: blocks of rows and columns, what is hidden, names."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import make_qkv

import headway
from headway.trace_pictures import axis, picture


def test_blocks_cover_an_axis_in_order() -> None:
    for count in (1, 5, 6, 7, 100):
        blocks = axis("keys", None, count, 6)
        assert blocks.starts[0] == 0
        assert blocks.starts[-1] == count
        sizes = np.diff(blocks.starts)
        assert len(blocks.names) == len(sizes) == min(count, 6)
        assert sizes.max() - sizes.min() <= 1
        assert blocks.blocked == (count > 6)
    assert axis("keys", None, 0, 6).names == []
    assert axis("keys", None, 9, 4).names == ["0..1", "2..3", "4..5", "6..8"]
    assert axis("keys", ["a", "\n", ""], 3, 4).names == ["a", r"'\n'", "''"]


def test_words_for_a_row() -> None:
    assert axis("queries", ["cat"], 1, 4, False).told(0) == 'query "cat" (0)'
    assert axis("keys", ["7", "5"], 2, 4, False).told(1) == 'key "5" (1)'
    assert axis("keys", list("abcdefghi"), 9, 4, False).told(3) == "keys 6 to 8"
    assert axis("queries", ["-2", "-1", "0"], 3, 4).told(1) == "query -1"
    assert axis("queries", ["-2", "-1", "0", "1"], 4, 2).told(0) == "queries -2 to -1"
    assert axis("head_dim", None, 9, 9, False).told(3) == "column 3"


def test_a_small_step_is_shown_as_it_is() -> None:
    trace = headway.trace(*make_qkv(1, "float64", tokens=(4, 6), batch=2))
    for name in ("Q_1", "scores_2", "mask_1", "weights_2", "Z"):
        drawn = picture(trace, name, 1, 32)
        np.testing.assert_array_equal(drawn.values, trace[name].matrix(1))
        assert drawn.sink is None
    np.testing.assert_array_equal(drawn.hidden, False)
    hidden = picture(trace, "weights_1", 0, 32).hidden
    np.testing.assert_array_equal(hidden, ~trace["mask_1"].array[0])


@pytest.mark.parametrize("tokens", [(50, 70), (3, 70), (50, 4)])
def test_blocks_of_weights_keep_their_sum(tokens: tuple[int, int]) -> None:
    """A row of the picture sums to 1, or to what the sink leaves."""
    q, k, v = make_qkv(2, "float64", tokens=tokens)
    trace = headway.trace(q, k, v, sinks=[1.0, -np.inf], align="start")
    for n in (1, 2):
        drawn = picture(trace, f"weights_{n}", 0, 7)
        assert max(drawn.values.shape) <= 7
        assert drawn.sink is not None
        np.testing.assert_allclose(drawn.values.sum(axis=1) + drawn.sink, 1.0, rtol=1e-12)
        i, j = drawn.rows.starts, drawn.columns.starts
        block = trace[f"weights_{n}"].array[0, i[1] : i[2], j[1] : j[2]]
        np.testing.assert_allclose(drawn.values[1, 1], block.sum() / len(block), rtol=1e-12)


def test_blocks_of_masks_and_numbers() -> None:
    trace = headway.trace(*make_qkv(3, "float64", tokens=(20, 20), head_dim=10))
    mask = picture(trace, "mask_1", 0, 4)
    np.testing.assert_array_equal(np.diag(mask.values), 0.6)
    np.testing.assert_array_equal(mask.hidden, np.triu(np.ones((4, 4), bool), 1))
    scores = picture(trace, "scores_1", 0, 4)
    np.testing.assert_allclose(scores.values[1, 2], trace["scores_1"].array[0, 5:10, 10:15].mean())
    query = picture(trace, "Q_1", 0, 5)
    np.testing.assert_allclose(query.values[0, 0], trace["Q_1"].array[0, :4, :2].mean())


def test_the_largest_numbers_are_added_without_a_warning() -> None:
    large = np.full((9, 9), 1.7e308)
    trace = headway.trace(np.zeros((9, 9)), np.zeros((9, 9)), large)
    assert np.isinf(picture(trace, "V_1", 0, 2).values).all()


def test_empty_pictures() -> None:
    x = np.zeros((1, 1, 0, 4))
    trace = headway.trace(x, x, x)
    assert picture(trace, "weights_1", 0, 4).values.shape == (0, 0)
    assert picture(trace, "Q_1", 0, 4).values.shape == (0, 4)
    assert picture(trace, "Q_1", 0, 4).largest == 0.0
