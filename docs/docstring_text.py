"""Docstrings as Markdown: what the reference changes before it reads them as numpydoc.

* Roles such as :func:`attention` become links; ``::`` is one colon, for the indented block after it
  is code in Markdown, too.
* Types such as ``array, (B, H, Tq, D)`` are to be shown as they are, not read as expressions: an
  invisible character keeps them from that.
* Defaults that are constants of their module are shown by value, and no annotation stands in for a
  type that the docstring leaves to another one ("as in ...").
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

import griffe

ROLE = re.compile(r":(?:func|class|meth|mod|attr|data):`~?([\w.]+)`")
LITERAL = re.compile(r"::[ ]*$", re.MULTILINE)
NAMED = re.compile(r"^([\w*][\w*, ]* : )(?!\w+(?:, (?:optional|default .*))?$)", re.MULTILINE)
RETURNED = re.compile(r"^(Returns\n-+\n)(?=[^\n:]+ [^\n:]+$)", re.MULTILINE)
WORD_JOINER = "\u2060"


def public_names() -> set[str]:
    """``headway.__all__``, read without importing the package."""
    source = Path(__file__).parent.parent / "python" / "headway" / "__init__.py"
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    raise ValueError(f"{source.name}: expected a list __all__")


PUBLIC = public_names()


def link(role: re.Match[str]) -> str:
    """A link to a public name of the package; the name alone for any other."""
    name = role[1].removeprefix("headway.")
    public = name.partition(".")[0] in PUBLIC
    return f"[`{role[1]}`][headway.{name}]" if public else f"`{role[1]}`"


@cache
def constants(source: Path) -> dict[str, str]:
    """Private constants of a module, by name, as they are written: ``_A, _B = 1, 2`` gives two."""
    found: dict[str, str] = {}
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                names: list[ast.expr] = [target]
                values = [node.value]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    names, values = target.elts, node.value.elts
                for name, value in zip(names, values, strict=True):
                    if isinstance(name, ast.Name) and isinstance(value, ast.Constant):
                        found[name.id] = ast.unparse(value)
    return found


class DocstringText(griffe.Extension):  # type: ignore[misc, unused-ignore]
    """Rewrites each docstring and each signature when it is read."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every object that was read."""
        if obj.docstring is not None:
            text = LITERAL.sub(":", ROLE.sub(link, obj.docstring.value))
            text = NAMED.sub(rf"\1{WORD_JOINER}", text)
            obj.docstring.value = RETURNED.sub(rf"\1{WORD_JOINER}", text)

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        """Called for every function and method."""
        if isinstance(func.filepath, Path):
            for parameter in func.parameters:
                known = constants(func.filepath)
                parameter.default = known.get(str(parameter.default), parameter.default)
                parameter.annotation = None
