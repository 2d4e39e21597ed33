"""A trace as text: snapshots at three widths, dots for hidden cells, large inputs cut.

HEADWAY_WRITE_SNAPSHOTS=1 writes the snapshots anew, to be read before they are committed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import make_qkv
from hypothesis import given, settings
from hypothesis import strategies as st
from test_terminal import Stream, pretend

import headway
from headway import Trace
from headway.terminal import columns_of

DATA = Path(__file__).parent / "data" / "trace"
ESCAPE = re.compile(r"\x1b\[\d+m")


@pytest.fixture(autouse=True)
def scalar() -> Iterator[None]:
    """The text names the instruction set."""
    before = headway.isa()
    headway.set_isa("scalar")
    yield
    headway.set_isa(before)


def a_module() -> Trace:
    """Two heads with numbers that every machine multiplies exactly."""
    w = np.arange(-12, 12).reshape(4, 6) / 8
    module = headway.MultiHeadAttention(
        w, w[::-1], w / 2, num_heads=2, w_out=np.ones((6, 2)), b_out=np.array([0.5, -0.5])
    )
    x = np.array([[1, 0, 0, 1], [0, 1, 0, -1], [0, 0, 1, 1], [1, 1, 0, 0], [2, 0, -1, 0]])
    return module.trace(x / 2, tokens=["naïve", "the", "注意", "understanding", "\n"])


def a_call() -> Trace:
    """One batch entry of two, with every option, larger than what is shown."""
    q, k = (np.arange(n * 4).reshape(1, n, 4) % 7 - 3.0 for n in (20, 24))
    q, k = np.repeat(q, 2, axis=0), np.repeat(k, 1, axis=0)
    return headway.trace(
        np.stack([q, q]),
        np.stack([k, k]),
        np.stack([k, k])[..., :2],
        window=3,
        softcap=4.0,
        alibi_slopes=[0.5, 0.25],
        sinks=[0.0, 1.0],
        kv_lengths=[24, 20],
    )


TRACES = {"module": a_module, "call": a_call}


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("look", ["ascii", "signs", "color"])
@pytest.mark.parametrize("name", TRACES)
def test_snapshots(name: str, look: str, width: int) -> None:
    color, ascii = look == "color", look == "ascii"
    text = TRACES[name]().to_text(width=width, color=color, ascii=ascii, batch=-1)
    text = re.sub(r"(is\s)\d\.\de[+-]\d\d", r"\g<1>0.0e-00", text)  # rounding, by machine
    lines = [ESCAPE.sub("", line) for line in text.split("\n")]
    assert max(map(columns_of, lines)) <= width
    path = DATA / f"{name}-{look}-{width}.txt"
    if os.environ.get("HEADWAY_WRITE_SNAPSHOTS") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{text}\n", encoding="utf-8", newline="\n")
    assert f"{text}\n" == path.read_text(encoding="utf-8")


def test_color_changes_nothing_else() -> None:
    trace = a_module()
    colored = trace.to_text(width=80, color=True, ascii=True)
    assert "\x1b[1m" in colored
    assert ESCAPE.sub("", colored) == trace.to_text(width=80, color=False, ascii=True)


def test_print_takes_the_terminal_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = a_module()
    for terminal, encoding in ((False, "utf-8"), (True, "utf-8"), (True, "ascii")):
        stream = Stream(terminal, encoding)
        pretend(monkeypatch, stream)
        monkeypatch.setenv("COLUMNS", "66")
        print(trace)
        ascii = encoding == "ascii"
        wanted = trace.to_text(width=66, color=terminal, ascii=ascii)
        assert stream.getvalue() == f"{wanted}\n"
        assert stream.getvalue().isascii() == ascii
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in str(trace)


def test_every_number_is_there() -> None:
    trace = a_module()
    text = trace.to_text(width=120, color=False, ascii=True)
    for step in trace:
        assert re.search(rf"^{step.name} {re.escape(str(step.shape))}", text, re.MULTILINE), step
        if step.array.dtype == bool:
            continue
        for i, row in enumerate(step.matrix()):
            cells = [f"{value:6.2f}" for value in row]
            if step.kind == "weights":
                cells[i + 1 :] = ["     ."] * (len(cells) - i - 1)
            assert "".join(cells) in text, (step, i)
    for seen in range(1, 6):
        assert text.count(" ".join("#" * seen + "." * (5 - seen)) + "\n") == 2


def test_hidden_is_a_dot_and_zero_is_a_number() -> None:
    """A weight of 0 that is seen is a number, whatever is hidden beside it."""
    x = np.zeros((3, 2))
    mask = np.array([[0.0, 0, 0], [-1e4, 0, 0], [0, 0, 0]])
    text = headway.trace(x, x, x, mask=mask).to_text(width=80, ascii=True)
    assert re.search(r"^1 +0\.00  1\.00     \.  ", text, re.MULTILINE)
    assert "0.00  0.00" not in text.split("weights_1 (3, 3)")[1].split("Z_1")[0]


def test_wide_and_narrow_numbers() -> None:
    for scale, shown in (
        (1e-5, "1.00e-05"),
        (1.0, "  1.00"),
        (123.0, " 123.00"),
        (2e7, "2.00e+07"),
    ):
        x = np.array([[scale, 0.0], [0.0, 0.0]])
        text = headway.trace(x, x, x).to_text(width=80, ascii=True)
        line = next(line for line in text.splitlines() if line.startswith("0  "))
        assert shown in line


def test_exponents_of_three_digits_keep_apart() -> None:
    for scale in (1e-150, 1e200):
        x = np.array([[-scale, -scale], [0.0, -scale]])
        trace = headway.trace(np.zeros((2, 2)), x, x)
        text = trace.to_text(width=80, ascii=True)
        line = next(line for line in text.splitlines() if line.startswith("0  "))
        assert line.count(f" {-scale:.2e}") == 4, line
        assert max(map(columns_of, text.split("\n"))) <= 80
    large = np.full((40, 40), 1.5e308)
    text = headway.trace(np.zeros((40, 40)), np.zeros((40, 40)), large).to_text(width=80)
    assert "lie between 1.50e+308 and 1.50e+308, on average inf" in " ".join(text.split())


def test_nan_and_infinity() -> None:
    x = np.array([[1.0, 1.0], [np.nan, 1.0], [np.inf, 1.0]])
    text = headway.trace(np.ones((3, 2)), x, x).to_text(width=80, ascii=True)
    assert re.search(r"^1 +1\.00  1\.00 +nan  1\.00", text, re.MULTILINE)
    assert re.search(r"^2 +1\.00  1\.00 +inf  1\.00", text, re.MULTILINE)


def test_many_heads_are_not_all_shown() -> None:
    trace = headway.trace(*make_qkv(1, "float32", heads=(9, 3), tokens=(2, 2)))
    text = trace.to_text(width=80, ascii=True)
    assert [n for n in range(1, 10) if f"-- Head {n} --" in text] == [1, 2, 3]
    assert "-- Heads 4 to 9 --" in text
    assert 'trace["weights_4"].array' in text
    assert eval('trace["weights_4"].array').shape == (1, 2, 2)


def test_large_inputs_are_summarised() -> None:
    trace = headway.trace(*make_qkv(2, "float32", tokens=(700, 700)))
    text = trace.to_text(width=80, ascii=True)
    assert len(text.splitlines()) < 400
    assert "scores_1: 700 x 700 cells; the numbers lie between" in text
    assert "mask_1: 700 x 700 cells, 50.1% of them seen." in text
    assert "weights_2: 700 x 700 cells; the seen numbers lie between 0.00 and 1.00" in text
    low, high = trace["Q_1"].array.min(), trace["Q_1"].array.max()
    assert f"Q_1: 700 x 8 cells; the numbers lie between {low:.2f} and {high:.2f}" in " ".join(
        text.split()
    )


sizes = st.integers(0, 20)


@settings(max_examples=25)
@given(
    sizes=st.tuples(sizes, sizes, st.integers(1, 40)),
    heads=st.integers(1, 6),
    width=st.integers(40, 130),
    ascii=st.booleans(),
    words=st.text(st.characters(codec="utf-8"), max_size=30),
    scale=st.sampled_from([1e-9, 1.0, 300.0, 1e9]),
)
def test_no_line_is_too_long(
    sizes: tuple[int, int, int], heads: int, width: int, ascii: bool, words: str, scale: float
) -> None:
    tq, tk, head_dim = sizes
    q, k, v = make_qkv(3, "float64", heads=(heads, 1), tokens=(tq, tk), head_dim=head_dim)
    tokens = [words[n:] for n in range(tk)]
    options: dict[str, Any] = {"sinks": [0.0] * heads, "window": 4, "tokens": tokens}
    text = headway.trace(scale * q, scale * k, v, **options).to_text(
        width=width, color=False, ascii=ascii
    )
    assert "\x1b" not in text
    assert text.isascii() or not ascii
    assert max(map(columns_of, text.split("\n"))) <= width
