"""HTML and SVG from Python calls: names, attributes, children; what is text is escaped."""

import html
from collections.abc import Iterable


class Markup(str):
    """Text that is HTML already, and is not escaped again."""

    __slots__ = ()


_VOID = {"meta", "br", "hr", "img", "link"}  # elements of HTML that have no end tag

Child = str | Iterable["Child"]


def element(name: str, /, *children: Child, **attributes: str | float | bool | None) -> Markup:
    """One element.

    Attributes: ``class_`` is "class", an underscore becomes a hyphen; None and False leave the
    attribute out, True writes it without a value, a number is written short.
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{markup(children)}</{name}>")


def markup(child: Child) -> Markup:
    """A child, or several one after another, as HTML."""
    if isinstance(child, Markup):
        return child
    if isinstance(child, str):
        return Markup(html.escape(child, quote=False))
    return Markup("".join(markup(each) for each in child))


def _attribute(key: str, value: str | float | bool | None) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    if value is True:
        return f" {name}"
    text = value if isinstance(value, str) else f"{value:.6g}"
    return f' {name}="{html.escape(text)}"'
