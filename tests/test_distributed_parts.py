"""The cuts of a ring call, cell by cell, and the way of every message; all without MPI."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.distributed import positions, ring_traffic
from headway.distributed._parts import Part, Sight, parts
from headway.distributed._plan import Plan
from headway.options import FAR, check_window

SHARDINGS = ("zigzag", "contiguous", "striped")


@st.composite
def calls(draw: Any) -> dict[str, Any]:
    tokens = draw(st.integers(0, 40))
    causal = draw(st.booleans())
    side = st.integers(-1, 12)
    window = draw(st.none() | st.integers(1, 12) | st.tuples(side, side))
    cuts = None
    if draw(st.booleans()):
        inner = draw(st.lists(st.integers(0, tokens), max_size=5))
        cuts = np.array([0, *sorted(inner), tokens])
    return {
        "num_tokens": tokens,
        "size": draw(st.integers(1, 6)),
        "sharding": draw(st.sampled_from(SHARDINGS)),
        "causal": causal,
        "window": window,
        "cu_seqlens": cuts,
    }


def sight(call: dict[str, Any], biased: bool = False) -> Sight:
    left, right = check_window(call["window"], call["causal"])
    return Sight(left, right, biased, call["cu_seqlens"])


def visible(call: dict[str, Any]) -> Any:
    """(T, T): who sees whom in the whole sequence."""
    at = np.arange(call["num_tokens"])
    left, right = check_window(call["window"], call["causal"])
    ahead = at[:, None] - at
    seen = (ahead <= left) & (-ahead <= right)
    if call["cu_seqlens"] is not None:
        number = np.searchsorted(call["cu_seqlens"], at, "right")
        seen &= number[:, None] == number
    return seen


def cells(part: Part) -> Any:
    """(queries, keys, j - i - align) of the cells that `attention` computes for a part."""
    left, right = check_window(part.window, part.causal)
    i = np.arange(part.queries.stop - part.queries.start)[:, None]
    j = np.arange(part.keys.stop - part.keys.start)
    after = j - i - part.align
    inside = (after <= right) & (-after <= left)
    rows, columns = np.nonzero(inside)
    return rows + part.queries.start, columns + part.keys.start, after[inside]


@given(calls(), st.booleans())
def test_every_visible_cell_is_in_one_part(call: dict[str, Any], biased: bool) -> None:
    tokens, size, sharding = call["num_tokens"], call["size"], call["sharding"]
    seen = visible(call)
    met = np.zeros((tokens, tokens), int)
    plan = Plan(0, size, tokens, sharding, sight(call, biased))
    layout = sharding if size > 1 else "contiguous"
    for rank in range(size):
        own = positions(rank, size, tokens, sharding=layout)
        for owner in range(size):
            keys = positions(owner, size, tokens, sharding=layout)
            found = list(parts(plan.segments(rank), plan.segments(owner), plan.sight))
            assert plan.needs(rank, owner) == bool(seen[np.ix_(own, keys)].any()) == bool(found)
            for part in found:
                rows, columns, after = cells(part)
                assert rows.size, "a part without a cell"
                met[own[rows], keys[columns]] += 1
                if biased:
                    distance = np.abs(own[rows] - keys[columns])
                    assert (part.stride * np.abs(after) + part.shift == distance).all()
    assert (met == seen).all()


@given(calls())
def test_every_block_and_gradient_arrives(call: dict[str, Any]) -> None:
    """What one rank sends, another one expects, in the same step and order; nothing else moves."""
    size = call["size"]
    each = [Plan(r, size, call["num_tokens"], call["sharding"], sight(call)) for r in range(size)]
    for step in range(1, size):
        sent = Counter((r, to, owner) for r in range(size) for to, owner in each[r].blocks_to(step))
        wanted = Counter(
            (found[0], r, found[1])
            for r in range(size)
            if (found := each[r].block_from(step)) is not None
        )
        assert wanted == sent
        for sender, _, owner in sent:  # the sender has it
            assert owner == sender or each[sender].at_hand(step - 1) == owner
        for rank in range(size):
            assert (each[rank].block_from(step) is None) == (each[rank].at_hand(step) is None)
    for step in range(1, size + 1):
        handed = {(r, *to) for r in range(size) if (to := each[r].gradient_to(step - 1))}
        for rank in range(size):
            before = (rank - 1) % size
            owner = each[rank].gradient_from(step)
            assert (owner is not None) == ((before, rank, False) in handed)
            last = each[rank].gradient_home(step - 1)
            assert (last is not None) == any(to == rank and home for _, to, home in handed)
            assert last is None or (last, rank, True) in handed


@given(calls())
def test_traffic_is_rows_of_the_blocks_seen(call: dict[str, Any]) -> None:
    """The formula, from the matrix of who sees whom."""
    size, tokens = call["size"], call["num_tokens"]
    numbers = 2 * 3 * (4 + 5)
    rows = [positions(r, size, tokens, sharding=call["sharding"]) for r in range(size)]
    seen = visible(call)
    needs = [[bool(seen[np.ix_(a, b)].any()) for b in rows] for a in rows]
    received = [
        sum(numbers * 4 * rows[s].size for s in range(size) if s != r and needs[r][s])
        for r in range(size)
    ]
    shape = {"num_kv_heads": 3, "head_dim": 4, "v_head_dim": 5, "batch": 2}
    forward = ring_traffic(**call, **shape)
    assert forward.received == received
    assert sum(forward.sent) == sum(received)
    both = ring_traffic(**call, **shape, backward=True)
    moved = sum(both.received) - sum(received)
    assert moved == sum(received)  # a float32 gradient for each block of float32


@pytest.mark.parametrize("size", [2, 4, 8])
def test_zigzag_is_even_in_every_step(size: int) -> None:
    """The most cells of any rank, summed over the steps, against an even share of all."""
    tokens = 64 * size
    each = [Plan(r, size, tokens, "zigzag", Sight(FAR, 0)) for r in range(size)]
    longest = 0
    for step in range(size):
        work = [
            sum(
                cells(part)[0].size
                for part in parts(p.segments(p.rank), p.segments((p.rank - step) % size), p.sight)
            )
            for p in each
        ]
        longest += max(work)
    assert longest <= 1.01 * (tokens * (tokens + 1) / 2) / size


@pytest.mark.parametrize(
    ("changed", "kind", "text"),
    [
        ({"size": 0}, ValueError, "size: expected 1 or more, got 0"),
        ({"num_tokens": -1}, ValueError, "num_tokens: expected 0 or more, got -1"),
        ({"head_dim": 1.5}, TypeError, "head_dim: expected an int, got 1.5 (float); pass the"),
        ({"causal": 1}, TypeError, "causal: expected True or False"),
        ({"sharding": "ring"}, ValueError, "sharding: expected"),
        ({"cu_seqlens": [0, 3]}, ValueError, "cu_seqlens: expected integer offsets from 0 to 8"),
    ],
)
def test_traffic_refuses(changed: dict[str, Any], kind: type[Exception], text: str) -> None:
    good: dict[str, Any] = {"num_tokens": 8, "size": 2, "num_kv_heads": 1, "head_dim": 4}
    with pytest.raises(kind) as caught:
        ring_traffic(**{**good, **changed})
    assert text in str(caught.value)
