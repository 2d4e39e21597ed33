"""HTML from Python calls: what is text is escaped, what is HTML is not."""

from __future__ import annotations

from headway.markup import Markup, element, markup


def test_elements() -> None:
    assert element("p") == "<p></p>"
    assert element("p", "a", element("b", "c"), "d") == "<p>a<b>c</b>d</p>"
    assert element("p", (element("i", str(n)) for n in range(2))) == "<p><i>0</i><i>1</i></p>"
    assert element("meta", charset="utf-8") == '<meta charset="utf-8">'


def test_attributes() -> None:
    given = element("a", class_="x", aria_label="y", hidden=True, lang=None, width=1.5, id=False)
    assert given == '<a class="x" aria-label="y" hidden width="1.5"></a>'
    assert element("rect", x=2.0, y=1 / 3, width=12) == (
        '<rect x="2" y="0.333333" width="12"></rect>'
    )
    assert element("meta", name="a") == '<meta name="a">'


def test_text_is_escaped_once() -> None:
    text = "<b>&\"'</b>"
    assert element("p", text) == "<p>&lt;b&gt;&amp;\"'&lt;/b&gt;</p>"
    assert element("p", title=text) == ('<p title="&lt;b&gt;&amp;&quot;&#x27;&lt;/b&gt;"></p>')
    assert element("p", Markup("<i>")) == "<p><i></p>"
    assert markup([Markup("<i>"), "<"]) == "<i>&lt;"
    assert isinstance(markup("x"), Markup)
