"""A trace as a page: valid, alone, escaped, of bounded size, with values and words in it."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import make_qkv

import headway
from headway import Trace

TOKENS = ["<script>alert(1)</script>", "\"a'&amp;", "\x00\x1b[1m\ud800\ufffe", "注意 😀", "\n", ""]


def a_module(**options: Any) -> Trace:
    module = headway.MultiHeadAttention.init(5, 8, num_heads=2, out_proj=True, qkv_bias=True)
    x = np.random.default_rng(0).standard_normal((6, 5), dtype=np.float32)
    return module.trace(x, tokens=TOKENS)


def a_call() -> Trace:
    q, k, v = make_qkv(1, "bfloat16", batch=2, heads=(4, 2), tokens=(5, 9), value_dim=3)
    options: dict[str, Any] = {"softcap": 2.0, "window": 3, "kv_lengths": [9, 2]}
    slopes = headway.alibi_slopes(4)
    return headway.trace(q, k, v, alibi_slopes=slopes, sinks=[0.0, 1.0, 2.0, -np.inf], **options)


def a_large_call() -> Trace:
    return headway.trace(*make_qkv(2, "float32", heads=(20, 5), tokens=(300, 400)))


def an_empty_call() -> Trace:
    return headway.trace(*make_qkv(3, "float64", tokens=(0, 0)))


def a_call_with_nan() -> Trace:
    q, k, v = make_qkv(4, "float32")
    q[..., 2, 0], k[..., 3, 0], v[..., 1, 0] = np.nan, np.inf, -np.inf
    return headway.trace(q, k, v)


def a_call_of_nothing_else() -> Trace:
    q, k, v = make_qkv(4, "float64", tokens=(3, 3))
    return headway.trace(q * np.nan, k, v * np.nan)


TRACES = {
    make.__name__: make
    for make in (
        *(a_module, a_call, a_large_call, an_empty_call),
        *(a_call_with_nan, a_call_of_nothing_else),
    )
}


class Elements(HTMLParser):
    """Every element of a page with its attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


@pytest.fixture(params=TRACES, scope="module")
def trace(request: pytest.FixtureRequest) -> Trace:
    return TRACES[request.param]()


def test_the_page_is_valid(trace: Trace) -> None:
    html5lib = pytest.importorskip("html5lib")
    html5lib.HTMLParser(strict=True).parse(trace.to_html())


def test_the_validator_sees_a_fault() -> None:
    html5lib = pytest.importorskip("html5lib")
    trace = a_module()
    html5lib.HTMLParser(strict=True).parseFragment(trace._repr_html_())
    with pytest.raises(html5lib.html5parser.ParseError):
        html5lib.HTMLParser(strict=True).parse(trace.to_html().replace("</figure>", "", 1))


def test_the_page_stands_alone(trace: Trace) -> None:
    page = trace.to_html()
    assert page.startswith("<!DOCTYPE html>\n")
    assert not re.search(r"https?:|//[a-z]|@import|javascript:|data:", page)
    elements = Elements(page)
    tags = {tag for tag, _ in elements.found}
    assert not tags & {"script", "link", "img", "iframe", "object", "use", "image"}
    for _, attributes in elements.found:
        assert not {"src", "href", "xlink:href"} & attributes.keys()
        assert not any(name.startswith("on") for name in attributes)
    ids = [attributes["id"] for _, attributes in elements.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"url\((.*?)\)", page)) <= {f"#{name}" for name in ids}


def test_every_picture_has_words(trace: Trace) -> None:
    for attributes in Elements(trace.to_html()).named("svg"):
        described = attributes.get("role") == "img" and attributes.get("aria-label")
        assert described or attributes.get("aria-hidden") == "true"


def test_the_page_has_a_bounded_size(trace: Trace) -> None:
    page = trace.to_html()
    assert len(page) < 1_500_000
    assert page.count("<rect") < 9000


def test_tokens_are_escaped() -> None:
    page = a_module().to_html()
    assert "<script" not in page
    assert "alert(1)" in page
    shown = {text for text in Elements(page).text if text.strip()}
    assert {"<script>alert(1)</script>", "\"a'&amp;", r"'\n'", "''"} <= shown
    assert r"'\x00\x1b[1m\ud800\ufffe'" in shown
    page.encode("utf-8")


def test_the_words_of_the_page() -> None:
    trace = a_module()
    text = " ".join(Elements(trace.to_html()).text)
    for step in trace:
        for part in (step.name, str(step.shape), step.formula, step.about):
            assert part in text, (step, part)
    assert repr(trace.difference)[:3] in text
    assert "They agree." in text
    assert "Options" not in text
    assert "softcap=2.0, alibi_slopes (4,)" in a_call().to_html()


def titles(page: str, class_: str) -> list[str]:
    """What is shown where the pointer rests on a cell of a picture of this class."""
    pictures = re.findall(rf'<svg[^>]*class="{class_}".*?</svg>', page, re.DOTALL)
    return [text for each in pictures for text in re.findall(r"<title>(.*?)</title>", each)]


def test_every_seen_weight_is_shown_where_the_pointer_rests() -> None:
    x = np.random.default_rng(1).standard_normal((4, 3))
    trace = headway.trace(x, x, x, tokens=["a", "b", "c", "d"])
    found = titles(trace.to_html(), "large")
    weights = trace["weights_1"].array
    expected = [
        f'query "{"abcd"[i]}" ({i}), key "{"abcd"[j]}" ({j}): {weights[i, j]:.3f}'
        for i in range(4)
        for j in range(i + 1)
    ]
    assert found == ["hidden", *(text.replace('"', '"') for text in expected)]
    small = titles(trace.to_html(), "small")
    assert f'query "b" (1), column 2: {x[1, 2]:.3g}' in small
    assert small.count("hidden") == 2


def test_names_of_wide_letters_have_room() -> None:
    x = np.ones((2, 2))
    page = headway.trace(x, x, x, tokens=["注意力机制", "注意力机制是什么"]).to_html()
    names = re.findall(r'<text x="([\d.]+)" y="[\d.]+" class="row">(.*?)</text>', page)
    end = f"{8 + 6.6 * 11 - 6:.6g}"  # eleven columns: five letters of two, and the dots
    assert names == [(end, "注意力机制"), (end, "注意力机制…")]


def test_hidden_cells_have_no_number() -> None:
    trace = headway.trace(np.ones((3, 2)), np.ones((3, 2)), np.ones((3, 2)))
    page = trace.to_html()
    numbers = re.findall(r"<td>([^<(]+)</td>", page.split("numbers")[-1].split("</table>")[0])
    assert numbers == ["1.000", "·", "·", "0.500", "0.500", "·", "0.333", "0.333", "0.333"]


def test_the_sink_has_a_column() -> None:
    trace = a_call()
    page = trace.to_html()
    share = trace["sink_weights_2"].array[0]
    for i, value in enumerate(share[:, 0].tolist(), start=4):
        assert f"query {i}, the sink: {value:.3f}" in page
    assert page.count('<th scope="col">sink</th>') == 4
    assert "the sink" not in a_module().to_html()


def test_what_a_large_page_leaves_out_is_said() -> None:
    page = a_large_call().to_html()
    assert "The way of heads 5 to 20 is the same" in page
    assert "The first 16 of 20 heads are drawn." in page
    assert "300 queries and 400 keys are drawn in blocks" in page
    assert re.search(r"queries \d+ to \d+, keys \d+ to \d+: 0\.\d{3}", page)


def test_a_notebook_gets_the_page_without_its_frame() -> None:
    fragment = a_module()._repr_html_()
    assert fragment is not None
    assert fragment.startswith('<div class="headway"><style>')
    assert "<html" not in fragment
    assert "<body" not in fragment
    style = fragment.split("<style>")[1].split("</style>")[0]
    style = re.sub(r"@media[^{]*\{((?:[^{}]*\{[^{}]*\})*)\s*\}", r"\1", style)
    for selectors in re.findall(r"([^{}]+)\{", style):
        for selector in selectors.split(","):
            assert selector.strip().startswith(".headway"), selector


def test_an_empty_batch_has_no_picture() -> None:
    x = np.zeros((0, 2, 3, 4))
    trace = headway.trace(x, x, x)
    assert trace._repr_html_() is None
    assert str(trace) == "Trace of attention(q, k, v): an empty batch."


def test_a_wrong_kernel_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    true = headway.attention
    monkeypatch.setattr("headway.tracing.attention", lambda *a, **b: true(*a, **b) + 0.25)
    assert '<span class="bad">They do not agree.</span>' in a_call().to_html()


def test_the_batch_entry_is_the_one_that_is_shown() -> None:
    trace = a_call()
    assert trace.to_html(batch=1) == trace.to_html(batch=-1) != trace.to_html(batch=0)
    assert "batch entry 2 of 2 is shown" in trace.to_html(batch=1)
    with pytest.raises(ValueError, match="batch: expected an entry from 0 to 1, got 2; pass"):
        trace.to_html(batch=2)


def test_the_page_is_written(tmp_path: Path) -> None:
    trace, path = a_module(), tmp_path / "page.html"
    assert trace.to_html(path) == trace.to_html(str(path)) == trace.to_html()
    assert path.read_bytes().decode("utf-8") == trace.to_html()
    with pytest.raises(FileNotFoundError):
        trace.to_html(tmp_path / "none" / "page.html")
