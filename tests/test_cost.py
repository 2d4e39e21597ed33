"""What ``cost`` says by itself: growth, tables, pictures, and what it refuses."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import headway
from headway import Cost, cost, cost_plot

SIZES: dict[str, Any] = {"batch": 2, "num_tokens": 64, "d_in": 48, "d_out": 24, "num_heads": 4}


def some() -> list[Cost]:
    return [
        cost(**SIZES),
        cost(**SIZES, num_kv_heads=2, out_proj=True, qkv_bias=True, dtype=np.float16),
        cost(**SIZES, stage="stacked", out_proj=True, dtype="bfloat16"),
        cost(**SIZES | {"num_heads": 1}, stage="single"),
    ]


@pytest.mark.parametrize("n", range(4))
def test_a_scaled_cost_is_that_of_the_larger_module(n: int) -> None:
    one = some()[n]
    given = {
        "qkv_bias": one.num_biases > 0,
        "out_proj": one.out_width > 0,
        "dtype": one.dtype,
        "num_kv_heads": one.num_kv_heads,
    }
    many = "stacked" if one.stage == "single" else one.stage
    twice_kv = {"num_kv_heads": 2 * one.num_kv_heads}
    for factors, sizes, stage in (
        ({"num_tokens": 3}, {"num_tokens": 192}, one.stage),
        ({"width": 2}, {"d_in": 96, "d_out": 48}, one.stage),
        ({"num_heads": 2}, {"d_out": 48, "num_heads": 2 * one.num_heads, **twice_kv}, many),
        ({"split": 2}, {"num_heads": 2 * one.num_heads, **twice_kv}, many),
    ):
        asked = {**SIZES, "num_heads": one.num_heads, **given, **sizes, "stage": stage}
        assert one.scaled(**factors) == cost(**asked)


def test_growth_is_that_of_the_formulas() -> None:
    growth = cost(**SIZES, out_proj=False).growth()
    for name, tokens, width, heads, split in (
        ("num_parameters", 1, 4, 2, 1),
        ("weight_bytes", 1, 4, 2, 1),
        ("activation_bytes", 2, 2, 2, 1),
        ("kv_cache_bytes", 2, 2, 2, 1),
        ("score_bytes", 4, 1, 2, 2),
    ):
        found = growth[name]
        assert found == {"num_tokens": tokens, "width": width, "num_heads": heads, "split": split}
    assert 2 < growth["multiply_adds"]["num_tokens"] < growth["dense_multiply_adds"]["num_tokens"]
    assert growth["multiply_adds"]["num_heads"] == growth["dense_multiply_adds"]["num_heads"] == 2
    long = cost(**SIZES | {"num_tokens": 10**9}).growth()
    assert long["multiply_adds"]["num_tokens"] == pytest.approx(4)


def test_stacked_heads_hold_one_head_at_a_time() -> None:
    stacked, efficient = (cost(**SIZES, stage=stage) for stage in ("stacked", "efficient"))
    assert stacked.parts == efficient.parts
    assert stacked.activation_bytes < efficient.activation_bytes
    assert stacked.scaled(split=2).activation_bytes < stacked.activation_bytes


def test_sizes_may_be_as_large_as_they_like() -> None:
    huge = cost(batch=10**6, num_tokens=10**9, d_in=10**5, d_out=10**5, num_heads=1000)
    assert huge.dense_multiply_adds == 10**15 * 3 * 10**10 + 2 * 10**6 * 10**18 * 10**5
    assert str(huge)


def test_numpy_integers_are_plain_ones_in_the_result() -> None:
    sizes = {name: np.int32(size) for name, size in SIZES.items()}
    assert json.dumps(cost(**sizes).to_dict()) == json.dumps(cost(**SIZES).to_dict())


# The table ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", range(4))
def test_the_table_holds_every_figure(n: int) -> None:
    one = some()[n]
    text = str(one)
    assert max(map(len, text.splitlines())) <= 82
    assert text.startswith(f"{one.stage}: batch 2, 64 tokens, d_in 48, d_out 24, ")
    assert ("output" in text.split("\n\n")[0]) == (one.out_width > 0)
    for figure in ("num_parameters", "weight_bytes", "activation_bytes", "score_bytes"):
        assert f"{getattr(one, figure):,}" in text
    for part in one.parts.values():
        assert f"{part.multiply_adds:,}" in text
        assert f"{part.dense_multiply_adds:,}" in text
    assert "masked products counted" in text


def test_the_table_as_it_stands() -> None:
    text = str(cost(batch=1, num_tokens=4, d_in=6, d_out=6, num_heads=2, stage="stacked"))
    assert text.split("\n\n")[:3] == [
        "stacked: batch 1, 4 tokens, d_in 6, d_out 6, 2 heads of 3, float32",
        "product          weights  multiply-adds  dense\n"
        "Q, K, V: x @ w       108            432    432\n"
        "scores: Q @ K.T        0             60     96\n"
        "Z: weights @ V         0             60     96\n"
        "total                108            552    624",
        "figure                now  x tokens  x width  x heads  x split\n"
        "weights               108         1        4        2        -\n"
        "weights, bytes        432         1        4        2        -\n"
        "multiply-adds         552      2.35     3.57        2        -\n"
        "multiply-adds, dense  624      2.62     3.38        2        -\n"
        "activations, bytes    240         2        2      1.4        -\n"
        "KV cache, bytes       192         2        2        2        -\n"
        "scores, bytes         128         4        1        2        -",
    ]


# The picture --------------------------------------------------------------------------------------


def test_the_picture_shows_parts_and_growth(tmp_path: Any) -> None:
    pytest.importorskip("matplotlib")
    one = cost(**SIZES, num_kv_heads=2, out_proj=True)
    figure = one.plot()
    parts, *growths = figure.axes
    names = [label.get_text() for label in parts.get_yticklabels()]
    assert names == ["Q, K, V", "scores", "Z", "output"]
    widths = [bar.get_width() for bar in parts.patches]
    found = one.parts.values()
    assert widths[:4] == [part.multiply_adds for part in found]
    assert widths[4:] == [part.dense_multiply_adds - part.multiply_adds for part in found]
    assert len(growths) == len(cost_plot.GROWTH)
    for axes, name in zip(growths, cost_plot.GROWTH, strict=True):
        larger = one.scaled(**{name: 16})
        for line, attribute in zip(axes.lines, cost_plot.LINES, strict=True):
            last = getattr(larger, attribute) / getattr(one, attribute)
            assert line.get_ydata()[-1] == last <= axes.get_ylim()[1]
    figure.savefig(tmp_path / "cost.png")
    assert (tmp_path / "cost.png").stat().st_size > 10_000


def test_the_picture_takes_numbers_beyond_64_bits() -> None:
    pytest.importorskip("matplotlib")
    figure = cost(batch=1, num_tokens=10**40, d_in=10**5, d_out=10**5, num_heads=1000).plot()
    figure.canvas.draw()
    assert figure.axes[0].patches[0].get_width() == 3e50


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(cost_plot, "import_module", absent)
    with pytest.raises(ImportError, match=r"matplotlib: pip install 'headway\[plot\]'"):
        cost(**SIZES).plot()


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({"batch": 0}, ValueError, "batch: expected at least 1, got 0"),
        ({"num_tokens": 1.5}, TypeError, "num_tokens: expected an int, got float"),
        ({"d_in": True}, TypeError, "d_in: expected an int, got bool"),
        ({"d_out": 25}, ValueError, "d_out: expected a multiple of num_heads=4, got 25"),
        ({"num_heads": -1}, ValueError, "num_heads: expected at least 1"),
        ({"num_kv_heads": 3}, ValueError, "num_kv_heads: expected a divisor of num_heads=4"),
        ({"dtype": "int8"}, TypeError, "dtype: expected float32, float64, float16 or bfloat16"),
        ({"stage": "fast"}, ValueError, 'stage: expected one of "single", "stacked", "efficient"'),
        ({"stage": None}, TypeError, "stage: expected one of .* got None; pass one of these"),
        ({"stage": "single"}, ValueError, 'num_heads: expected 1 .* got 4; pass stage="stacked"'),
        (
            {"stage": "single", "num_heads": 1, "out_proj": True},
            ValueError,
            'out_proj: expected False with stage="single", got True; pass stage="efficient"',
        ),
        (
            {"stage": "stacked", "num_kv_heads": 2},
            ValueError,
            'num_kv_heads: expected 4 with stage="stacked", .* got 2; pass stage="efficient"',
        ),
    ],
)
def test_wrong_sizes_are_refused(given: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        cost(**SIZES | given)


def test_wrong_factors_and_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match=r"split: expected a divisor of every head_dim \(6\)"):
        cost(**SIZES).scaled(split=4)
    with pytest.raises(ValueError, match="width: expected at least 1, got 0"):
        cost(**SIZES).scaled(width=0)
    module = headway.MultiHeadAttention.init(4, 4, num_heads=2)
    with pytest.raises(ValueError, match="batch: expected at least 1, got 0"):
        module.cost(0, 3)
    with pytest.raises(TypeError, match="num_tokens: expected an int, got str"):
        module.cost(1, "3")  # type: ignore[arg-type]
