"""Gradients to the bit: the same for any number of threads, batch, place, strides and layout."""

from __future__ import annotations

import numpy as np
import pytest
from gradients import NAMES, Step, step_of
from helpers import DTYPES, Array, assert_same_bits
from layouts import LAYOUTS
from option_table import COMPANY, EACH_ISA, Problem, entry_of, head_of

import headway

#: (Tq, Tk), D: a prefill, a chunk, one query; many keys for few queries.
SIZES = [((70, 150), 12), ((5, 150), 20), ((1, 150), 64), ((4, 1100), 8)]

OF_QUERIES = ("q", "out", "lse", "grad_out", "grad_lse")

pytestmark = [pytest.mark.usefixtures("any_threads"), EACH_ISA]


def steps(dtype: str, name: str, sizes: list[tuple[tuple[int, int], int]]) -> list[Step]:
    """Return steps of these sizes with the options of this name."""
    return [
        step_of(
            Problem(dtype, tokens=tokens, head_dim=width, value_dim=width + 3 * (width % 8 > 0)),
            COMPANY[name],
        )
        for tokens, width in sizes
    ]


def baseline(step: Step) -> dict[str, Array]:
    """Return the gradients computed by one thread."""
    headway.set_num_threads(1)
    return step.backward()


def assert_all_same(got: dict[str, Array], expected: dict[str, Array], what: str) -> None:
    assert got.keys() == expected.keys()
    for name, x in got.items():
        assert_same_bits(x, expected[name], f"{name}, {what}")


@pytest.mark.parametrize("name", COMPANY)
@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_and_repeat(dtype: str, name: str, isa: str, turn: int) -> None:
    """2 and 3 threads, and once again one; many rows and many keys by turns."""
    for step in steps(dtype, name, [SIZES[3 * (turn % 2)]]):
        expected = baseline(step)
        for count in (2, 3, 1):
            headway.set_num_threads(count)
            assert_all_same(step.backward(), expected, f"{step.q.shape}, {count} threads")


@pytest.mark.parametrize("name", COMPANY)
@pytest.mark.parametrize("dtype", DTYPES)
def test_place_in_a_batch(dtype: str, name: str, isa: str, turn: int) -> None:
    """An entry alone and in a batch, at another place, and beside another full of NaN.

    A prefill and one query by turns.
    """
    for step in steps(dtype, name, [SIZES[2 * (turn % 2)]]):
        alone = [baseline(entry_step(step, b)) for b in range(2)]
        expected = step.backward()
        for part in NAMES:
            for b in range(2):
                assert_same_bits(expected[part][b], alone[b][part][0], f"{part} of entry {b}")
        headway.set_num_threads(2)
        for beside in (0, 1):
            changed = {x: getattr(step, x).copy() for x in ("q", "k", "v", "grad_out", "out")}
            for x in changed.values():
                x[beside] = np.nan
            got = step.changed(**changed).backward()
            for part in NAMES:
                what = f"{part} beside an entry of NaN"
                assert_same_bits(got[part][1 - beside], expected[part][1 - beside], what)
        if len(step.options.get("mask", ())) == 2 and "dmask" in expected:
            for b in range(2):  # a mask for each entry; where it is broadcast, within the entry
                assert_same_bits(expected["dmask"][b], alone[b]["dmask"][0], f"dmask of entry {b}")


def entry_step(step: Step, b: int) -> Step:
    """Return the step of one batch entry."""
    one = slice(b, b + 1)
    arrays = {
        name: getattr(step, name)[one]
        for name in ("q", "k", "v", "out", "lse", "grad_out", "grad_lse")
    }
    return step.changed(**arrays, options=entry_of(step.options, b))


@pytest.mark.parametrize("dtype", DTYPES)
def test_order_of_a_batch(dtype: str, isa: str) -> None:
    """Entries in another order, with more threads than entries."""
    step = step_of(Problem(dtype, 3, tokens=(130, 130), head_dim=20), ("softcap",))
    expected = baseline(step)
    headway.set_num_threads(3)
    order = [2, 0, 1]
    names = ("q", "k", "v", "out", "lse", "grad_out", "grad_lse")
    got = step.changed(**{name: getattr(step, name)[order] for name in names}).backward()
    for part in NAMES:
        assert_same_bits(got[part], expected[part][order], part)


@pytest.mark.parametrize("name", COMPANY)
@pytest.mark.parametrize("dtype", DTYPES)
def test_heads_alone(dtype: str, name: str, isa: str, turn: int) -> None:
    """A head's dq alone; a prefill and a chunk by turns."""
    for step in steps(dtype, name, [SIZES[turn % 2]]):
        expected = baseline(step)
        headway.set_num_threads(2)
        for h in (1, 2):
            one, group = slice(h, h + 1), slice(h // 2, h // 2 + 1)
            arrays = {x: getattr(step, x)[:, one] for x in OF_QUERIES}
            arrays |= {"k": step.k[:, group], "v": step.v[:, group]}
            got = step.changed(**arrays, options=head_of(step.options, h)).backward()
            assert_same_bits(got["dq"], expected["dq"][:, one], f"dq of head {h} alone")


@pytest.mark.parametrize("tokens", [(130, 130), (300, 33), (33, 300), (1, 40)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_and_groups(dtype: str, tokens: tuple[int, int], isa: str) -> None:
    """1, 2 and 3 threads; a group's dk and dv without the other groups."""
    step = step_of(Problem(dtype, tokens=tokens, head_dim=64), ())
    expected = baseline(step)
    for count in (2, 3):
        headway.set_num_threads(count)
        assert_all_same(step.backward(), expected, f"{count} threads")
    for g in range(2):
        pair, group = slice(2 * g, 2 * g + 2), slice(g, g + 1)
        arrays = {x: getattr(step, x)[:, pair] for x in OF_QUERIES}
        arrays |= {"k": step.k[:, group], "v": step.v[:, group]}
        got = step.changed(**arrays).backward()
        for part, rows in zip(NAMES, (pair, group, group), strict=True):
            assert_same_bits(got[part], expected[part][:, rows], f"{part} of group {g} alone")


@pytest.mark.parametrize("memory", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_strides(dtype: str, memory: str, isa: str, turn: int) -> None:
    """The same values in every memory layout, for each of the arrays and for all, by turns."""
    names = ("q", "k", "v", "grad_out", "out")
    choices = [*((name,) for name in names), names]
    for n, chosen in list(enumerate(choices))[turn % 2 :: 2]:
        tokens, width = SIZES[(n + turn // 2) % 3]
        step = step_of(Problem(dtype, tokens=tokens, head_dim=width), ("softcap", "sinks"))
        laid = step.changed(**{name: LAYOUTS[memory](getattr(step, name)) for name in chosen})
        kept = {name: getattr(laid, name).copy() for name in names}
        expected = step.changed(**{name: np.array(kept[name], order="C") for name in names})
        assert_all_same(laid.backward(), baseline(expected), f"{chosen} {memory}")
        for name in names:
            assert_same_bits(getattr(laid, name), kept[name], f"{name} was written")


@pytest.mark.parametrize("dtype", DTYPES)
def test_strides_of_the_lse(dtype: str, isa: str) -> None:
    """lse and grad_lse as views of any strides, unaligned, and broadcast."""
    step = step_of(Problem(dtype, tokens=(70, 90)), ("lengths", "alibi"))
    expected = baseline(step)
    assert step.grad_lse is not None
    for memory in ("fortran", "step_two", "odd_address", "reversed_last", "read_only"):
        lse, grad_lse = (
            LAYOUTS[memory](x[..., None])[..., 0]
            if memory != "step_two"
            else np.repeat(x, 2, 2)[..., ::2]
            for x in (step.lse, step.grad_lse)
        )
        got = step.changed(lse=lse, grad_lse=grad_lse).backward()
        assert_all_same(got, expected, memory)
    one = np.broadcast_to(step.grad_lse[:1, :1, :1], step.lse.shape)
    got = step.changed(grad_lse=one).backward()
    assert_all_same(got, step.changed(grad_lse=one.copy()).backward(), "broadcast")


@pytest.mark.parametrize("dtype", DTYPES)
def test_layout_names(dtype: str, isa: str) -> None:
    """Layout "BTHD" gives the bits of "BHTD", from views and from arrays made in that order."""
    step = step_of(Problem(dtype, tokens=(70, 90)), ("float-mask", "sinks"))
    expected = baseline(step)
    *arrays, lse = step.arrays
    views = [x.swapaxes(1, 2) for x in arrays]
    for given in (views, [x.copy() for x in views]):
        found = headway.attention_backward(
            *given, lse, grad_lse=step.grad_lse, layout="BTHD", **step.options
        )
        for part, x in zip(NAMES, found, strict=True):
            assert x.flags.c_contiguous
            assert_same_bits(x.swapaxes(1, 2), expected[part], part)
