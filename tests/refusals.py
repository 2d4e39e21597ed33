"""Calls that have to be refused, and what the text has to say: argument, wanted, got, fix."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from helpers import Array

import headway

Call = Callable[..., Any]

#: What takes the options of a call on unpacked arrays.
FUNCTIONS: dict[str, Call] = {
    "attention": headway.attention,
    "attention_weights": headway.attention_weights,
    "attention_scores": headway.attention_scores,
    "trace": headway.trace,
    "reference.attention": headway.reference.attention,
    "reference.attention_weights": headway.reference.attention_weights,
    "reference.attention_scores": headway.reference.attention_scores,
}


def zeros(*shape: int, dtype: Any = np.float32) -> Array:
    return np.zeros(shape, dtype)


def good() -> dict[str, Any]:
    """Return a call that passes: 4 query heads over 2 key heads, 5 queries, 7 keys."""
    return {
        "q": zeros(2, 4, 5, 8),
        "k": zeros(2, 2, 7, 8),
        "v": zeros(2, 2, 7, 6),
        "out": np.full((2, 4, 5, 6), 7.0, np.float32),
    }


@dataclass
class Refusal:
    """One wrong argument (or several that make one fault) and what has to be said about it."""

    argument: str
    wanted: str
    got: str
    fix: str
    error: type[Exception]
    change: dict[str, Any] = field(default_factory=dict)


def wrong_kind(
    argument: str, value: Any, wanted: str, got: str, fix: str, **change: Any
) -> Refusal:
    return Refusal(argument, wanted, got, fix, TypeError, {argument: value, **change})


def wrong_value(
    argument: str, value: Any, wanted: str, got: str, fix: str, **change: Any
) -> Refusal:
    return Refusal(argument, wanted, got, fix, ValueError, {argument: value, **change})


def cases(functions: Mapping[str, Call], refusals: Mapping[str, Refusal]) -> list[Any]:
    """Return every refusal with every function that has all the arguments it is about."""
    found = []
    for function in functions:
        names = set(inspect.signature(functions[function]).parameters)
        for name, refusal in refusals.items():
            about_out = "out" in (refusal.argument, *refusal.change) and "out" not in names
            if refusal.argument in names and not about_out:
                found.append(pytest.param(function, refusal, id=f"{function}: {name}"))
    return found


def assert_refused(call: Call, arguments: dict[str, Any], refusal: Refusal) -> None:
    """Fail unless the call raises what it has to, with every part of the text in its place."""
    arguments = arguments | refusal.change
    argument = arguments.pop("argument_in_text", refusal.argument)
    out = arguments.get("out")
    before = out.tobytes() if isinstance(out, np.ndarray) else None
    accepted = inspect.signature(call).parameters
    with pytest.raises(refusal.error) as caught:
        call(**{name: value for name, value in arguments.items() if name in accepted})
    text = str(caught.value)
    assert type(caught.value) is refusal.error
    assert text.startswith(f"{argument}: expected "), text
    for part in (refusal.wanted, "got ", refusal.got, "; ", refusal.fix):
        assert part in text, f"{part!r} is not in {text!r}"
    wanted, rest = text.split(", got ", 1)
    assert refusal.wanted in wanted
    assert refusal.got in rest.split("; ")[0]
    assert refusal.fix in rest.split("; ", 1)[1]
    if before is not None:
        assert out.tobytes() == before, "out was touched"
