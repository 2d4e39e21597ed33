"""Figures of a trace: one scale for all weights, hatching where hidden, tokens, sinks; bertviz."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import make_qkv

import headway
from headway import Trace, plotting

WORDS = ["the", "$x_1$", "a-rather-long-word", "\n", "end"]


def a_call(**options: Any) -> Trace:
    return headway.trace(*make_qkv(1, "float32", tokens=(5, 5)), tokens=WORDS, **options)


def drawn(trace: Trace, batch: int = 0) -> Any:
    """The figure, drawn."""
    figure = pytest.importorskip("matplotlib.figure").Figure(layout="constrained")
    plotting.draw(trace, batch, figure)
    figure.canvas.draw()
    return figure


def titled(figure: Any, title: str) -> Any:
    """The axes of this title."""
    (axes,) = [axes for axes in figure.axes if axes.get_title().split("\n")[0] == title]
    return axes


def test_every_object_of_the_way_has_a_picture() -> None:
    module = headway.MultiHeadAttention.init(4, 6, num_heads=2, out_proj=True)
    trace = module.trace(np.ones((5, 4), np.float32))
    figure = drawn(trace)
    for n in (1, 2):
        for kind in ("Q", "K", "V", "scores", "mask", "weights"):
            shown = titled(figure, f"{kind}_{n}").images[0].get_array()
            expected = trace[f"{kind}_{n}"].array.astype(float)
            np.testing.assert_array_equal(shown[~shown.mask], expected[~shown.mask])
    for name in ("Z", "output"):
        np.testing.assert_array_equal(titled(figure, name).images[0].get_array(), trace[name])
    assert figure.get_suptitle().startswith("MultiHeadAttention(d_in=4, d_out=6, num_heads=2, ")
    assert f"{trace.difference:.1e}" in figure.get_suptitle()


def test_weights_have_one_scale_and_hidden_cells_are_hatched() -> None:
    trace = a_call()
    figure = drawn(trace)
    for n in (1, 2):
        axes = titled(figure, f"weights of head {n}")
        (image,) = axes.images
        assert image.get_clim() == (0.0, 1.0)
        shown = image.get_array()
        np.testing.assert_array_equal(shown.mask, np.triu(np.ones((5, 5), bool), 1))
        np.testing.assert_array_equal(
            shown[~shown.mask], trace[f"weights_{n}"].array[0][~shown.mask]
        )
        assert [patch.get_hatch() for patch in axes.patches] == ["////"]
    mask = titled(figure, "mask of head 1; hidden cells are hatched")
    np.testing.assert_array_equal(mask.images[0].get_array().mask, shown.mask)


def test_the_scale_does_not_follow_the_largest_weight() -> None:
    x = np.zeros((4, 2))
    trace = headway.trace(x, x, x, causal=False)
    assert titled(drawn(trace), "weights of head 1").images[0].get_clim() == (0.0, 1.0)


def test_tokens_stand_on_both_axes() -> None:
    axes = titled(drawn(a_call()), "weights of head 2")
    names = ["the", r"\$x_1\$", "a-rather-lo…", r"'\n'", "end"]
    assert [label.get_text() for label in axes.get_xticklabels()] == names
    assert [label.get_text() for label in axes.get_yticklabels()] == names


def test_the_sink_has_a_column_of_its_own() -> None:
    trace = a_call(sinks=[1.0, -1.0])
    axes = titled(drawn(trace), "weights of head 1")
    assert axes.get_xticklabels()[-1].get_text() == "sink"
    shown = axes.images[0].get_array()
    assert shown.shape == (5, 7)
    assert shown.mask[:, 5].all()
    np.testing.assert_allclose(shown[:, 6], trace["sink_weights_1"].array[0, :, 0], rtol=1e-6)


def test_large_and_empty_calls() -> None:
    large = headway.trace(*make_qkv(2, "float32", heads=(20, 4), tokens=(600, 700)))
    axes = titled(drawn(large), "weights of head 16")
    assert axes.images[0].get_array().shape == (512, 512)
    assert len(axes.get_xticklabels()) <= 24
    empty = headway.trace(*make_qkv(3, "float32", tokens=(0, 0)))
    drawn(empty)
    drawn(headway.trace(*make_qkv(3, "float32", heads=(0, 0))))


def test_the_batch_entry_is_the_one_that_is_shown() -> None:
    q, k, v = make_qkv(4, "float32", batch=2)
    trace = headway.trace(q, k, v)
    for batch in (0, 1):
        shown = titled(drawn(trace, batch), "scores_2").images[0].get_array()
        np.testing.assert_array_equal(shown, trace["scores_2"].array[batch])


def test_plot_gives_a_figure_of_pyplot() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure = a_call().plot(batch=-1)
    assert figure.number in pyplot.get_fignums()
    assert titled(figure, "Q_1")
    pyplot.close(figure)
    with pytest.raises(ValueError, match="batch: expected an entry from 0 to 0, got 1; pass"):
        a_call().plot(batch=1)


def test_a_picture_is_written_without_a_screen(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    x = np.ones((2, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trace = headway.trace(x, x, x, tokens=["注意", "\U0010fffd"])
        plotting.save_picture(trace, 0, str(tmp_path / "picture"))
    assert (tmp_path / "picture").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("method", "package", "extra"),
    [("plot", "matplotlib", "'headway[plot]'"), ("to_bertviz", "torch", "torch")],
)
def test_an_absent_package_is_named(
    method: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [*(n for n in sys.modules if n.startswith(f"{package}.")), package]:
        monkeypatch.setitem(sys.modules, name, None)
    text = f"^{method}: expected the package {package}, which is not installed; install it with"
    with pytest.raises(ImportError, match=text) as told:
        getattr(a_call(), method)()
    assert str(told.value).endswith(f"pip install {extra}")


def test_nothing_of_others_is_imported_before_it_is_needed() -> None:
    code = (
        "import sys, numpy, headway\n"
        "x = numpy.ones((2, 2))\n"
        "trace = headway.trace(x, x, x)\n"
        "str(trace), trace.to_html()\n"
        "assert not {'matplotlib', 'torch', 'html5lib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# bertviz ------------------------------------------------------------------------------------------


def test_bertviz_gets_a_tensor_of_each_layer_and_the_tokens() -> None:
    torch = pytest.importorskip("torch")
    q, k, v = make_qkv(5, "bfloat16", batch=2, heads=(4, 2), tokens=(5, 5))
    trace = headway.trace(q, k, v, tokens=[WORDS, WORDS[::-1]])
    attention, tokens = trace.to_bertviz(batch=1)
    assert isinstance(attention, tuple)
    (layer,) = attention
    assert (layer.dtype, layer.shape) == (torch.float32, (1, 4, 5, 5))
    assert tokens == WORDS[::-1]
    for n in range(4):
        np.testing.assert_array_equal(layer[0, n].numpy(), trace[f"weights_{n + 1}"].array[1])
    layer[...] = 0
    assert trace["weights_1"].array.any()


def test_bertviz_draws_as_many_queries_as_keys() -> None:
    pytest.importorskip("torch")
    trace = headway.trace(*make_qkv(6, "float32", tokens=(3, 5)))
    with pytest.raises(ValueError, match="to_bertviz: expected as many queries as keys, got 3 and"):
        trace.to_bertviz()
