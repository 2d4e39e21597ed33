"""The options of an attention call by name: values that fit a problem, and what they hide.

Every mask has four axes, so that a part of a call can be asked for with :func:`part_of` and
:func:`entry_of`. What is visible is worked out here from the words of the documentation, apart
from the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from helpers import Array, dtype_of, make

import headway

Options = dict[str, Any]

#: The fixtures "isa" and "threads" as the innermost loops: a problem is made once for all.
EACH_ISA = pytest.mark.parametrize("isa", headway.available_isas(), indirect=True)
EACH_COUNT = pytest.mark.parametrize(
    "threads", [1, 2], ids=["1-thread", "2-threads"], indirect=True
)


@dataclass(frozen=True)
class Problem:
    """Sizes, dtype and seed of a call."""

    dtype: str = "float32"
    batch: int = 2
    heads: tuple[int, int] = (4, 2)
    tokens: tuple[int, int] = (70, 150)
    head_dim: int = 12
    value_dim: int = 9
    seed: int = 0

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, H, Tq, Tk)."""
        return (self.batch, self.heads[0], *self.tokens)

    def arrays(self) -> tuple[Array, Array, Array]:
        """Return q, k and v, contiguous: the same numbers in every dtype."""
        q, k, v = (x.copy() for x in _arrays(self))
        return q, k, v

    def numbers(self, which: int, shape: tuple[int, ...]) -> Array:
        """Return normal random numbers cut to multiples of 1/32, which every dtype holds."""
        return (np.round(make((self.seed, which), shape) * 32) / 32).astype(dtype_of(self.dtype))

    def options(self, names: Iterable[str]) -> Options:
        """Return the options of these names with values that fit, arrays read-only."""
        return dict(_options(self, tuple(names)))

    def hidden_at_random(self, shape: tuple[int, ...], share: float) -> Array:
        """(…, Tk) bool: this share of the elements, and in each row a run of a third of the keys.

        The run is the same for 64 rows, so that whole tiles are hidden.
        """
        keys = shape[-1]
        g = np.random.default_rng((self.seed, 4))
        hidden = g.random(shape) < share
        for place in np.ndindex(*shape[:-1]):
            start = (97 * (sum(place[:-1]) + place[-1] // 64)) % max(keys, 1)
            hidden[place][start : start + keys // 3] = True
        return hidden


@lru_cache(maxsize=64)
def _arrays(p: Problem) -> tuple[Array, Array, Array]:
    (batch, heads, tq, tk), key_heads = p.shape, p.heads[1]
    return (
        p.numbers(1, (batch, heads, tq, p.head_dim)),
        p.numbers(2, (batch, key_heads, tk, p.head_dim)),
        p.numbers(3, (batch, key_heads, tk, p.value_dim)),
    )


@lru_cache(maxsize=16)
def _options(p: Problem, names: tuple[str, ...]) -> Options:
    found: Options = {}
    for name in names:
        made = OPTIONS[name](p)
        assert not found.keys() & made.keys(), f"{name} is given twice"
        found |= made
    for value in found.values():
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
    return found


def _float_mask(p: Problem) -> Options:
    mask = p.numbers(5, p.shape)
    mask[p.hidden_at_random(p.shape, 0.2)] = -np.inf
    return {"mask": mask}


def _entry_starts(p: Problem) -> Options:
    tq, tk = p.tokens
    return {"align": [(tk - tq, tk // 3, -2)[b % 3] for b in range(p.batch)]}


OPTIONS: dict[str, Callable[[Problem], Options]] = {
    "bool-mask": lambda p: {"mask": ~p.hidden_at_random((1, *p.shape[1:]), 0.3)},
    "padding-mask": lambda p: {"mask": ~p.hidden_at_random((p.batch, 1, 1, p.tokens[1]), 0.1)},
    "float-mask": _float_mask,
    "row-mask": lambda p: {"mask": make((p.seed, 6), (p.batch, 1, 1, p.tokens[1]), "float64")},
    "window": lambda p: {"window": 1 + p.tokens[1] // 5},
    "two-sided": lambda p: {"window": (p.tokens[1] // 6, 3)},
    "softcap": lambda p: {"softcap": 1.5},
    "alibi": lambda p: {"alibi_slopes": 2.0 ** -np.arange(1, p.heads[0] + 1)},
    "batch-alibi": lambda p: {"alibi_slopes": 0.1 * make((p.seed, 7), p.shape[:2], "float32")},
    "sinks": lambda p: {"sinks": make((p.seed, 8), (p.heads[0],), "float32") + 1},
    "lengths": lambda p: {
        "kv_lengths": [(p.tokens[1] * part) // 7 for part in (5, 7, 2)][: p.batch]
    },
    "start": lambda p: {"align": "start"},
    "int-align": lambda p: {"align": p.tokens[1] // 2},
    "entry-aligns": _entry_starts,
    "all-keys": lambda p: {"causal": False},
    "scale": lambda p: {"scale": 0.7},
    "dropout": lambda p: {"dropout": 0.3, "seed": 2**40 + p.seed},
}

#: Options that hide keys, alone and together.
HIDING: dict[str, tuple[str, ...]] = {
    "causal": (),
    "start": ("start",),
    "entry-aligns": ("entry-aligns",),
    "bool-mask": ("bool-mask",),
    "bool-mask-alone": ("bool-mask", "all-keys"),
    "padding-mask": ("padding-mask", "all-keys"),
    "float-mask": ("float-mask",),
    "float-mask-alone": ("float-mask", "all-keys"),
    "window": ("window",),
    "left-and-right": ("two-sided", "all-keys"),
    "lengths": ("lengths",),
    "lengths-alone": ("lengths", "all-keys"),
    "window-and-lengths": ("window", "lengths", "alibi"),
    "bool-mask-and-all": ("bool-mask", "window", "softcap", "alibi", "sinks", "lengths"),
    "float-mask-and-all": (
        *("float-mask", "two-sided", "softcap", "batch-alibi", "sinks", "entry-aligns"),
        *("all-keys", "scale"),
    ),
}

#: Every option at least once, alone, and the two sets of many.
COMPANY: dict[str, tuple[str, ...]] = HIDING | {
    name: (name,) for name in ("row-mask", "softcap", "alibi", "batch-alibi", "sinks")
}


def visible_keys(shape: tuple[int, int, int, int], options: Options) -> Array:
    """(B, H, Tq, Tk) bool: may query i look at key j?"""
    batch, _, tq, tk = shape
    causal, key = options.get("causal", True), np.arange(tk)
    place = np.add.outer(starts_of(shape, options), np.arange(tq))
    back = place[..., None] - key  # how far behind the query
    seen = key < np.array(options.get("kv_lengths", [tk] * batch))[:, None, None]
    seen = np.broadcast_to(seen, back.shape).copy()
    left, right = window_of(options.get("window"), causal)
    if left >= 0:
        seen &= back <= left
    if right >= 0:
        seen &= back >= -right
    everywhere = np.broadcast_to(seen[:, None], shape).copy()
    mask = options.get("mask")
    if mask is not None:
        everywhere &= mask if mask.dtype == bool else mask != -np.inf
    return everywhere


def starts_of(shape: tuple[int, int, int, int], options: Options) -> list[int]:
    """Return, per batch entry, the key position at which query 0 stands."""
    batch, _, tq, tk = shape
    align = options.get("align", "end")
    if align == "end":
        return [int(n) - tq for n in options.get("kv_lengths", [tk] * batch)]
    if align == "start":
        return [0] * batch
    return [align] * batch if isinstance(align, int) else list(align)


def window_of(window: int | tuple[int, int] | None, causal: bool) -> tuple[int, int]:
    """Return (left, right) of a window with the causal rule in it; -1 is no limit."""
    if window is None:
        window = -1, -1
    elif isinstance(window, int):
        window = window - 1, -1
    return window[0], 0 if causal else window[1]


def part_of(options: Options, rows: slice, keys: slice, align: str | list[int]) -> Options:
    """Return the options of a call with some of the queries and keys, aligned like this."""
    part = options | {"align": align}
    if "mask" in options:
        mask = options["mask"]
        mask = mask[:, :, rows] if mask.shape[2] > 1 else mask
        part["mask"] = mask[..., keys] if mask.shape[3] > 1 else mask
    return part


def entry_of(options: Options, b: int) -> Options:
    """Return the options of a call with one of the batch entries."""
    part = dict(options)
    one = slice(b, b + 1)
    if len(options.get("mask", ())) > 1:
        part["mask"] = options["mask"][one]
    if np.ndim(options.get("alibi_slopes")) == 2:
        part["alibi_slopes"] = options["alibi_slopes"][one]
    for name in ("kv_lengths", "align"):
        if isinstance(options.get(name), list):
            part[name] = options[name][one]
    return part


def head_of(options: Options, h: int) -> Options:
    """Return the options of a call with one of the query heads."""
    part, one = dict(options), slice(h, h + 1)
    if "mask" in options and options["mask"].shape[1] > 1:
        part["mask"] = options["mask"][:, one]
    for name in ("alibi_slopes", "sinks"):
        if name in options:
            part[name] = options[name][..., one]
    return part


def filled(x: Array, value: float) -> Array:
    """Return an array of the same shape and dtype that holds one number everywhere."""
    return np.full(x.shape, value).astype(dtype_of(x.dtype.name))
