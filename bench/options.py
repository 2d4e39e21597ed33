"""The options that rows of kind "options" are asked for, and how many pairs they leave.

Masks hide one place in 64, so that no tile of keys can be left out or taken whole and the work is
almost that of the plain call; key 0 stays, so that every query sees a key.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

EVERY, FIRST = 64, 37
"""A mask hides key j where j (for pairs: j plus the query's number) is `FIRST` modulo `EVERY`."""


@dataclass(frozen=True)
class Options:
    """What a call is asked for beside the causal rule."""

    mask: str = ""
    """ "keys": bool (1, 1, 1, Tk); "pairs": bool (1, 1, Tq, Tk); "bias": float (1, 1, Tq, Tk)."""
    window: int | None = None
    """How many keys before its own a query sees."""
    softcap: float = 0.0
    alibi: bool = False
    sinks: bool = False
    length: int | None = None
    """Valid keys; query 0 then stands at key 0."""
    dropout: float = 0.0
    """Probability with which a weight is dropped; the seed is 0."""


PLAIN = Options()

OPTIONS: dict[str, Options] = {
    "plain": PLAIN,
    "key-mask": Options(mask="keys"),
    "bool-mask": Options(mask="pairs"),
    "float-mask": Options(mask="bias"),
    "window": Options(window=512),
    "softcap": Options(softcap=30.0),
    "alibi": Options(alibi=True),
    "sinks": Options(sinks=True),
    "lengths": Options(length=900),
    "all": Options(mask="keys", window=512, softcap=30.0, alibi=True, sinks=True),
    "window-128": Options(window=127),
}

TRAINED: dict[str, Options] = {
    **{name: OPTIONS[name] for name in ("window", "float-mask", "alibi")},
    "dropout": Options(dropout=0.1),
}
"""Those of rows with gradients."""

EVERY_OPTION = OPTIONS | TRAINED

TITLES = {
    "plain": "causal, no option",
    "key-mask": "bool mask (1, 1, 1, Tk)",
    "bool-mask": "bool mask (1, 1, Tq, Tk)",
    "float-mask": "float mask (1, 1, Tq, Tk)",
    "window": "window (512, 0)",
    "softcap": "soft cap 30",
    "alibi": "ALiBi",
    "sinks": "sinks",
    "lengths": "kv_lengths 900, align start",
    "all": "window (512, 0), soft cap 30, ALiBi, sinks, bool mask (1, 1, 1, Tk)",
    "window-128": "window 128",
    "dropout": "dropout 0.1",
}


def hidden_below(end: int, first: int) -> int:
    """How many of the keys 0 to end - 1 are `first` modulo `EVERY`."""
    return max(end - first % EVERY + EVERY - 1, 0) // EVERY


@cache
def allowed_pairs(num_queries: int, num_keys: int, options: Options) -> int:
    """How many (query, key) pairs the causal rule and the options leave."""
    past = 0 if options.length is not None else num_keys - num_queries
    valid = num_keys if options.length is None else options.length
    pairs = 0
    for query in range(num_queries):
        end = min(past + query + 1, valid)
        start = 0 if options.window is None else max(past + query - options.window, 0)
        if end <= start:
            continue
        pairs += end - start
        if options.mask in ("keys", "pairs"):
            first = FIRST if options.mask == "keys" else FIRST - query
            pairs -= hidden_below(end, first) - hidden_below(start, first)
    return pairs
