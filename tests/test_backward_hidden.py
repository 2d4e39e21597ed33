"""What a query may not see reaches no gradient by way of it; what it sees cannot be missed."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import numpy as np
import pytest
from gradients import NAMES, Step, check_step, step_of
from helpers import DTYPES, Array, assert_same_bits, make
from option_table import EACH_ISA, HIDING, Problem, visible_keys
from poisons import POISONS, check_nan, poison

import headway

#: (Tq, Tk), D: a prefill of more than one tile, a chunk, one query, queries before the first key.
SIZES = [((70, 150), 12), ((5, 150), 64), ((1, 150), 8), ((130, 100), 8)]
SMALL = ("window", "lengths", "softcap", "float-mask-and-all", "bool-mask-and-all")

pytestmark = EACH_ISA


def steps(
    dtype: str, name: str, sizes: list[tuple[tuple[int, int], int]] = SIZES
) -> list[tuple[Step, Array]]:
    """Return a step of each of these sizes with these options, and what is visible in it."""
    found = []
    for tokens, width in sizes:
        problem = Problem(dtype, tokens=tokens, head_dim=width)
        step = step_of(problem, HIDING.get(name, (name,)))
        found.append((step, visible_keys(problem.shape, step.options)))
    return found


def places(count: int) -> list[slice]:
    """Return the tokens that are changed at once: one, the first ones, a tile, the last ones."""
    return [
        *(slice(count // 3, count // 3 + 1), slice(0, count // 3)),
        *(slice(64, 128), slice(max(count - 30, 0), count)),
    ]


def of_heads(rows: Array, step: Step) -> Array:
    """(B, Hkv, T) bool from (B, H, T): those that any query head of the group says."""
    batch, _, tokens = rows.shape
    grouped: Array = rows.reshape(batch, step.k.shape[1], -1, tokens).any(axis=2)
    return grouped


def assert_same_but(
    got: dict[str, Array], clean: dict[str, Array], queries: Array, keys: Array, what: str
) -> None:
    """Fail unless dq is the same but for these (B,H,Tq), dk and dv but for these (B,Hkv,Tk)."""
    for name, changed in zip(NAMES, (queries, keys, keys), strict=True):
        assert_same_bits(got[name][~changed], clean[name][~changed], f"{name}, {what}")


@pytest.mark.parametrize("name", HIDING)
@pytest.mark.parametrize("dtype", DTYPES)
def test_hidden_keys_change_nothing(dtype: str, name: str, isa: str, turn: int) -> None:
    """Keys and values turned into anything: rows that may not see them keep their gradients.

    What those rows add to the other keys stays as it was, too. Two of the sizes by turns.
    """
    kinds, arrays, found = cycle(POISONS), cycle(("kv", "k", "kv", "v")), 0
    for step, seen in steps(dtype, name, SIZES[turn % 2 :: 2]):
        clean = step.backward()
        for keys, which in zip(places(seen.shape[3]), arrays, strict=False):
            touched = seen[..., keys].any(axis=3)
            mixed = of_heads((seen & touched[..., None]).any(axis=2), step)
            changed, kind = {x: getattr(step, x).copy() for x in which}, next(kinds)
            for x in changed.values():
                poison(x[:, :, keys], kind)
            got = step.changed(**changed).backward()
            assert_same_but(got, clean, touched, mixed, f"{kind} in {which} at {keys}")
            found += np.count_nonzero(~touched)
    assert found >= 20


@pytest.mark.parametrize("name", HIDING)
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_nobody_sees_gets_zero_and_gives_nothing(
    dtype: str, name: str, isa: str, turn: int
) -> None:
    """NaN in keys that no query sees, and in all that belongs to queries that see no key.

    The last of the sizes, and one of the others by turns.
    """
    found = 0
    for step, seen in steps(dtype, name, [SIZES[turn % 3], SIZES[3]]):
        unseen = ~of_heads(seen.any(axis=2), step)
        empty = ~seen.any(axis=3)
        clean = step.backward()
        changed = {x: getattr(step, x).copy() for x in ("q", "k", "v", "grad_out", "grad_lse")}
        for x in ("k", "v"):
            changed[x][unseen] = np.nan
        for x in ("q", "grad_out"):
            changed[x][empty] = np.nan
        if "sinks" not in step.options:  # a query that sees no key still sees its sink
            changed["grad_lse"][empty] = np.nan
        got = step.changed(**changed).backward()
        assert not got["dq"][empty].any()
        assert not got["dk"][unseen].any()
        assert not got["dv"][unseen].any()
        for part, x in got.items():
            assert_same_bits(x, clean[part], f"{part}, {step.q.shape}")
        check_step(step, got, f"{step.q.shape}")
        found += np.count_nonzero(unseen) + np.count_nonzero(empty)
    assert found > 0 or name in ("bool-mask-alone", "padding-mask", "float-mask-alone")


@pytest.mark.parametrize("name", [*HIDING, "softcap", "alibi", "sinks"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_visible_nan_is_seen(dtype: str, name: str, isa: str, turn: int) -> None:
    """A NaN makes NaN exactly the gradients that it reaches.

    In q, grad_out, out or the lse of a query: its dq, and dk of the keys that it sees. In a key
    or a value: dq of the queries that see it, and dk of all that they see. dv does not depend on
    values, nor on out; on grad_out by columns. A prefill and a chunk by turns.
    """
    for step, seen in steps(dtype, name, [SIZES[turn % 2]]):
        clean = step.backward()
        _, _, queries, keys = seen.shape
        for which, n in zip(
            ("q", "grad_out", "out", "grad_lse"), cycle((queries // 2, 0)), strict=False
        ):
            rows = np.zeros(seen.shape[:3], bool)
            rows[1, 3, n] = seen[1, 3, n].any()
            check_reached(step, clean, seen, rows, which, (1, 3, n))
        for which, n in (("k", 0), ("k", keys // 3), ("k", keys - 1), ("v", keys // 3)):
            rows = np.zeros(seen.shape[:3], bool)
            rows[0, :2] = seen[0, :2, :, n]
            check_reached(step, clean, seen, rows, which, (0, 0, n))


def check_reached(
    step: Step, clean: dict[str, Array], seen: Array, rows: Array, which: str, place: Any
) -> None:
    """Put one NaN into an array at (b, h, token); `rows` are the queries that see it."""
    bad = getattr(step, which).copy()
    bad[(*place, -1) if bad.ndim == 4 else place] = np.nan
    changed = {which: bad}
    if which in ("q", "k"):  # as the forward pass would give them
        changed |= {"out": step.out.copy(), "lse": step.lse.copy()}
        changed["out"][rows] = changed["lse"][rows] = np.nan
    elif which == "v":
        changed["out"] = step.out.copy()
        changed["out"][rows, -1] = np.nan
    got = step.changed(**changed).backward()
    what = f"a NaN in {which} at {place}"
    keys = of_heads((seen & rows[..., None]).any(axis=2), step)
    check_nan(got["dq"], clean["dq"], spread(rows, got["dq"]), f"dq, {what}")
    check_nan(got["dk"], clean["dk"], spread(keys, got["dk"]), f"dk, {what}")
    reached = spread(keys, got["dv"])
    if which == "grad_out":
        reached = reached & (np.arange(reached.shape[3]) == reached.shape[3] - 1)
    elif which not in ("q", "k"):
        reached = np.zeros_like(reached)
    check_nan(got["dv"], clean["dv"], reached, f"dv, {what}")


def spread(rows: Array, x: Array) -> Array:
    """(B, H, T, W) bool from (B, H, T)."""
    return np.broadcast_to(rows[..., None], x.shape)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("dtype", DTYPES)
def test_hidden_queries_of_a_key_change_nothing(dtype: str, name: str, isa: str) -> None:
    """Whatever stands in queries that do not see a key leaves its dk and dv as they were."""
    kinds = cycle(POISONS)
    for step, seen in steps(dtype, name):
        clean = step.backward()
        for rows in places(seen.shape[2])[::2]:
            touched = np.zeros(seen.shape[:3], bool)
            touched[:, :, rows] = True
            reached = of_heads((seen & touched[..., None]).any(axis=2), step)
            changed = {x: getattr(step, x).copy() for x in ("q", "grad_out", "out", "grad_lse")}
            for x in changed.values():
                poison(x[:, :, rows], next(kinds))
            got = step.changed(**changed).backward()
            assert_same_but(got, clean, touched, reached, f"queries {rows}")


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_nan_in_a_mask(dtype: str, isa: str) -> None:
    """It reaches the query that sees it, the keys that this query sees, and their dmask."""
    for step, seen in steps(dtype, "float-mask"):
        clean = step.backward()
        rows = np.zeros(seen.shape[:3], bool)
        key = int(np.flatnonzero(seen[1, 1, -1])[0])
        rows[1, 1, -1] = True
        mask = step.options["mask"].copy()
        mask[1, 1, -1, key] = np.nan
        lse, out = step.lse.copy(), step.out.copy()
        lse[rows] = out[rows] = np.nan
        got = step.changed(lse=lse, out=out, options=step.options | {"mask": mask}).backward()
        check_nan(got["dmask"], clean["dmask"], seen & rows[..., None], "dmask")
        keys = of_heads((seen & rows[..., None]).any(axis=2), step)
        for name, reached in zip(NAMES, (rows, keys, keys), strict=True):
            check_nan(got[name], clean[name], spread(reached, got[name]), name)
    assert headway.isa() == isa


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("blind", [32, 64, 100])
def test_gradients_of_rows_that_a_mask_leaves_nothing(dtype: str, blind: int, isa: str) -> None:
    """Rows of whole panels, after a call that saw all: what that left in memory is not read."""
    tokens = 150
    q, k, v, grad_out = (make((n, blind), (1, tokens, 8), dtype) for n in range(4))
    mask = np.ones((tokens, tokens), bool)

    def gradients(grad_out: Array) -> tuple[Array, ...]:
        options: dict[str, Any] = {"mask": mask, "causal": False}
        out, lse = headway.attention(q, k, v, return_lse=True, **options)
        return headway.attention_backward(grad_out, q, k, v, out, lse, **options)

    gradients(grad_out)
    mask[blind:] = False
    wanted = gradients(grad_out)
    for value in (np.nan, np.inf):
        poisoned = grad_out.copy()
        poisoned[:, blind:] = value
        for got, clean in zip(gradients(poisoned), wanted, strict=True):
            assert_same_bits(got, clean)
