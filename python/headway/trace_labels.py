"""What the queries and keys of a trace are called, and which batch entry of it is shown."""

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


class Labels(NamedTuple):
    """Names of the keys and of the queries of each batch entry, (B) lists each."""

    keys: list[list[str]]
    queries: list[list[str]]
    numbered: bool = False  # whether both are key positions, for want of names


def make_labels(tokens: Any, query_tokens: Any, tq: int, tk: int, offsets: Sequence[int]) -> Labels:
    """Labels from what the user names; keys are numbered where they have no names.

    A query without a name has that of the key at its position, or the position.
    """
    batch = len(offsets)
    keys = _checked("tokens", tokens, tk, batch, "key")
    queries = _checked("query_tokens", query_tokens, tq, batch, "query")
    if keys is None:
        keys = [[str(j) for j in range(tk)]] * batch
    if queries is None:
        queries = [
            [names[p] if 0 <= p < tk else str(p) for p in range(start, start + tq)]
            for names, start in zip(keys, offsets, strict=True)
        ]
    return Labels(keys, queries, tokens is None and query_tokens is None)


def _checked(name: str, tokens: Any, count: int, batch: int, what: str) -> list[list[str]] | None:
    """One list of names for each batch entry."""
    if tokens is None:
        return None
    several = f", or {batch} such lists" if batch > 1 else ""
    wanted = f"{count} strings, one for each {what}{several}"
    fix = f"pass a list of str, as in {name}=text.split()"
    if isinstance(tokens, np.ndarray) and tokens.size > batch * count:  # no list of it is made
        raise ValueError(f"{name}: expected {wanted}, got shape {tokens.shape}; {fix}")
    given = tokens.tolist() if isinstance(tokens, np.ndarray) else tokens
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
        raise TypeError(f"{name}: expected {wanted}, got {type(tokens).__name__}; {fix}")
    nested = len(given) > 0 and not isinstance(given[0], str)
    lists = list(given) if nested else [given] * batch
    for each in lists:
        if isinstance(each, (str, bytes)) or not isinstance(each, Sequence):
            raise TypeError(f"{name}: expected {wanted}, got {type(each).__name__} in it; {fix}")
        for token in each:
            if not isinstance(token, str):
                got = type(token).__name__
                raise TypeError(f"{name}: expected {wanted}, got {got} in it; {fix}")
        if len(each) != count:
            raise ValueError(f"{name}: expected {wanted}, got {len(each)}; {fix}")
    if len(lists) != batch:
        raise ValueError(f"{name}: expected {wanted}, got {len(lists)} lists; {fix}")
    return [list(each) for each in lists]


def batch_entry(batch: Any, entries: int) -> int:
    """A batch entry from 0; negative ones count from the end."""
    entry = integer("batch", batch)
    if not entries:
        raise ValueError(
            f"batch: expected an entry of the batch, got {entry} of none; "
            "trace a batch that has entries"
        )
    if not -entries <= entry < entries:
        raise ValueError(
            f"batch: expected an entry from 0 to {entries - 1}, got {entry}; "
            "pass the number of a batch entry"
        )
    return entry % entries


def integer(name: str, value: Any) -> int:
    """``value`` if it is an int."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        return operator.index(value)
    except TypeError:
        got = type(value).__name__
        raise TypeError(f"{name}: expected an int, got {got}; convert with int({name})") from None
