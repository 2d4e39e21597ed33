"""What queries and keys of a trace are called, and wrong arguments of its methods."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from helpers import make_qkv

import headway
from headway import Trace

WORDS = ["a", "b", "c", "d", "e"]


def traced(batch: int = 1, tokens: tuple[int, int] = (3, 5), **options: Any) -> Trace:
    return headway.trace(*make_qkv(1, "float32", batch=batch, tokens=tokens), **options)


def test_keys_are_numbered_and_queries_stand_at_keys() -> None:
    labels = traced().labels
    assert labels.keys == [["0", "1", "2", "3", "4"]]
    assert labels.queries == [["2", "3", "4"]]


def test_queries_are_called_like_the_key_at_their_position() -> None:
    assert traced(tokens=(3, 5)).labels.queries == [["2", "3", "4"]]
    assert headway.trace(*make_qkv(1, "float32", tokens=(3, 5)), tokens=WORDS).labels[:2] == (
        [WORDS],
        [["c", "d", "e"]],
    )
    before = headway.trace(*make_qkv(1, "float32", tokens=(3, 5)), tokens=WORDS, align=-1)
    assert before.labels.queries == [["-1", "a", "b"]]
    after = headway.trace(*make_qkv(1, "float32", tokens=(3, 5)), tokens=WORDS, align=4)
    assert after.labels.queries == [["e", "5", "6"]]


def test_names_of_queries_and_of_batch_entries() -> None:
    q, k, v = make_qkv(1, "float32", batch=2, tokens=(2, 3))
    lists = [["a", "b", "c"], ["x", "y", "z"]]
    labels = headway.trace(q, k, v, tokens=lists, kv_lengths=[3, 2]).labels
    assert labels[:2] == (lists, [["b", "c"], ["x", "y"]])
    labels = headway.trace(q, k, v, tokens=lists[0], query_tokens=["?", "!"]).labels
    assert labels[:2] == ([lists[0]] * 2, [["?", "!"]] * 2)
    labels = headway.trace(q, k, v, tokens=np.array(lists), query_tokens=("?", "!")).labels
    assert labels.keys == lists
    module = headway.MultiHeadAttention.init(4, 4, num_heads=2)
    labels = module.trace(np.ones((2, 3, 4), np.float32), tokens=lists).labels
    assert labels[:2] == (lists, lists)


WRONG: dict[str, tuple[Any, type[Exception], str]] = {
    "a text": ("abcde", TypeError, "got str"),
    "a number": (5, TypeError, "got int"),
    "numbers": ([1, 2, 3, 4, 5], TypeError, "got int in it"),
    "bytes": (b"abcde", TypeError, "got bytes"),
    "mixed": ([*WORDS[:4], 5], TypeError, "got int in it"),
    "nested mixed": ([WORDS, 3], TypeError, "got int in it"),
    "short": (WORDS[:4], ValueError, "got 4"),
    "none": ([], ValueError, "got 0"),
    "a short list": ([WORDS, WORDS[1:]], ValueError, "got 4"),
    "too many lists": ([WORDS] * 3, ValueError, "got 3 lists"),
}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("argument", ["tokens", "query_tokens"])
def test_wrong_names(argument: str, kind: str) -> None:
    value, error, got = WRONG[kind]
    q, k, v = make_qkv(1, "float32", batch=2, tokens=(5, 5))
    what = "key" if argument == "tokens" else "query"
    wanted = f"{argument}: expected 5 strings, one for each {what}, or 2 such lists, {got}"
    fix = f"; pass a list of str, as in {argument}=text.split()"
    with pytest.raises(error, match=f"^{re.escape(wanted)}.*{re.escape(fix)}$"):
        headway.trace(q, k, v, **{argument: value})


def test_one_entry_takes_one_list() -> None:
    q, k, v = make_qkv(1, "float32", tokens=(5, 5))
    wanted = "tokens: expected 5 strings, one for each key, got 4; pass a list of str"
    with pytest.raises(ValueError, match=f"^{wanted}"):
        headway.trace(q, k, v, tokens=WORDS[1:])


def test_wrong_batch_entries() -> None:
    trace = traced(batch=2)
    for entry in (2, -3):
        text = f"batch: expected an entry from 0 to 1, got {entry}; pass the number of a batch"
        with pytest.raises(ValueError, match=f"^{text} entry$"):
            trace.to_text(batch=entry)
    for wrong in (1.0, "0", True, None):
        with pytest.raises(TypeError, match=f"^batch: expected an int, got {type(wrong).__name__}"):
            trace.to_text(batch=wrong)


def test_an_empty_batch_has_no_entry() -> None:
    trace = traced(batch=0)
    with pytest.raises(ValueError, match="expected an entry of the batch, got 0 of none; trace a "):
        trace.to_text()


def test_wrong_widths() -> None:
    with pytest.raises(
        TypeError, match=r"^width: expected an int, got str; convert with int\(width\)$"
    ):
        traced().to_text(width="80")  # type: ignore[arg-type]


def test_the_batch_entry_is_the_one_that_is_shown() -> None:
    trace = traced(batch=2, kv_lengths=[5, 2])
    assert trace.to_text(batch=1) == trace.to_text(batch=-1) != trace.to_text(batch=0)
    assert "batch entry 2 of 2 is shown" in " ".join(trace.to_text(batch=1).split())
