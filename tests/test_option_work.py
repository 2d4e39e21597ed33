"""Work follows what is visible: keys hidden from a whole tile of queries are not computed.

Processor time of one thread, the least of several calls, and bounds with much room.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import Array, make

import headway

TOKENS, SEEN = 8192, 128

pytestmark = pytest.mark.usefixtures("any_threads")


def seconds(call: Callable[[], object]) -> float:
    """Return the least processor time of three calls."""
    found = []
    for _ in range(3):
        before = time.thread_time()
        call()
        found.append(time.thread_time() - before)
    return min(found)


def arrays(tokens: int, rows: int, dtype: str = "float32") -> tuple[Array, Array, Array]:
    """Return q (1, 1, rows, 64), k and v (1, 1, T, 64)."""
    q, k, v = (make(n, (1, 1, t, 64), dtype) for n, t in enumerate((rows, tokens, tokens)))
    return q, k, v


def part_of_full(call: Callable[..., object], **options: Any) -> float:
    """Return the time of a call with these options as a part of the one without."""
    headway.set_num_threads(1)
    return seconds(lambda: call(**options)) / seconds(call)


KEYS = np.arange(TOKENS)
FEW: dict[str, dict[str, Any]] = {
    "window": {"window": SEEN},
    "two-sided": {"window": (SEEN // 2, SEEN // 2), "causal": False},
    "lengths": {"kv_lengths": [SEEN], "align": "start"},
    "lengths-alone": {"kv_lengths": [SEEN], "causal": False},
    "first-keys": {"mask": (KEYS < SEEN)[None, None, None]},
    "last-keys": {"mask": (KEYS >= TOKENS - SEEN)[None, None, None], "causal": False},
    "before-the-keys": {"align": SEEN - TOKENS},
}


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_prefill(dtype: str, name: str) -> None:
    """128 of 8,192 keys: a thirtieth of the causal half, allowed to cost a fifth of it.

    In bfloat16 the rest may be so fast that looking through a mask is a larger part.
    """
    q, k, v = arrays(TOKENS, TOKENS, dtype)
    part = part_of_full(lambda **options: headway.attention(q, k, v, **options), **FEW[name])
    allowed = 0.2 if dtype == "float32" else 0.5
    assert part < allowed, f"{part:.3f} of the full call"


@pytest.mark.parametrize("name", ["window", "lengths-alone", "first-keys", "last-keys"])
def test_a_chunk(name: str) -> None:
    """The last 64 queries over many keys."""
    q, k, v = arrays(TOKENS, 64)
    part = part_of_full(lambda **options: headway.attention(q, k, v, **options), **FEW[name])
    assert part < 0.4, f"{part:.3f} of the full call"


def test_a_packed_window() -> None:
    """One member, with and without a window."""
    q, k, v = (x[0].swapaxes(0, 1) for x in arrays(TOKENS, TOKENS))
    cu = np.array([0, TOKENS])
    part = part_of_full(
        lambda **options: headway.attention_varlen(q, k, v, cu, **options), window=SEEN
    )
    assert part < 0.2, f"{part:.3f} of the full call"


def test_packed_members_cost_their_own_work() -> None:
    """A long member and 99 of one token: about the long one alone, not 100 of it."""
    headway.set_num_threads(1)
    q, k, v = (x[0].swapaxes(0, 1) for x in arrays(1099, 1099))
    cu = np.array([0, *range(1000, 1100)])
    packed = seconds(lambda: headway.attention_varlen(q, k, v, cu))
    alone = seconds(lambda: headway.attention_varlen(q[:1000], k[:1000], v[:1000], cu[:2]))
    assert packed < 2.5 * alone, f"{packed / alone:.2f} times the long member"
