"""Gradients of random combinations of all options, made up by hypothesis, against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
from gradients import Step, check_step
from helpers import HALF, Array, assert_same_bits, attend, lse_dtype, make, using
from hypothesis import assume, given
from hypothesis import strategies as st
from layouts import LAYOUTS
from option_table import Options, visible_keys
from test_option_properties import ISAS, MEMORY, SEEDS, four_axes, problems, slack


@st.composite
def steps(draw: st.DrawFn) -> tuple[Step, int]:
    """Return a step of any sizes, layouts and options, and its numbers of threads."""
    dtype, q, k, v, options = draw(problems())
    threads, seed = draw(st.integers(1, 3)), draw(SEEDS)
    wide = dtype in HALF and draw(st.booleans())
    shape = (*q.shape[:3], v.shape[3])
    out_dtype = np.dtype(np.float32) if wide else q.dtype
    grad_out = make((seed, 1), shape).astype(out_dtype)
    if grad_out.size:
        grad_out = LAYOUTS[draw(MEMORY)](grad_out)
    grad_lse = make((seed, 2), shape[:3]).astype(lse_dtype(dtype)) if draw(st.booleans()) else None
    with using(draw(ISAS), threads):
        out, lse = attend(q, k, v, out=np.empty(shape, out_dtype), **options)
    return Step(q, k, v, out, lse, grad_out, grad_lse, options), threads


@given(isa=ISAS, step=steps())
def test_agrees_with_the_reference(isa: str, step: tuple[Step, int]) -> None:
    """Any call gives the reference's gradients, from an output of any instruction set."""
    made, threads = step
    looser = slack(made.q, made.options, made.q.shape[2] + made.k.shape[2])
    with using(isa, threads):
        check_step(made, made.backward(), f"{made.q.shape}", looser)


@given(isa=ISAS, step=steps(), bad=st.sampled_from([np.nan, np.inf, -np.inf, 3.0]))
def test_what_nobody_sees_is_absent(isa: str, step: tuple[Step, int], bad: float) -> None:
    """Keys that no query sees, and queries that see no key, change no bit and get 0."""
    made, threads = step
    seen = seen_in(made.q, made.k, made.options)
    empty = ~seen.any(axis=3)
    batch, key_heads, keys, _ = made.k.shape
    by_group = seen.any(axis=2).reshape(batch, key_heads, made.q.shape[1] // key_heads, keys)
    unseen = ~by_group.any(axis=2)
    assume(empty.any() or unseen.any())
    q, k, v, grad_out = (np.array(x) for x in (made.q, made.k, made.v, made.grad_out))
    q[empty], grad_out[empty], k[unseen], v[unseen] = (bad,) * 4
    with using(isa, threads):
        expected = made.backward()
        got = made.changed(q=q, k=k, v=v, grad_out=grad_out).backward()
    for name, x in got.items():
        assert_same_bits(x, expected[name], name)
    for name, nobody in (("dq", empty), ("dk", unseen), ("dv", unseen)):
        assert not got[name][nobody].any()


def seen_in(q: Array, k: Array, options: Options) -> Array:
    """(B, H, Tq, Tk) bool: may the query look at the key?"""
    if "mask" in options:
        options = options | {"mask": four_axes(options["mask"])}
    return visible_keys((*q.shape[:3], k.shape[2]), options)


@given(isa=ISAS, step=steps(), memory=MEMORY)
def test_the_same_bits_in_any_form(isa: str, step: tuple[Step, int], memory: str) -> None:
    """Contiguous copies and one thread give the same bits, the gradient of a mask, too."""
    made, threads = step
    names = ("q", "k", "v", "out", "lse", "grad_out")
    copies: dict[str, Any] = {name: np.array(getattr(made, name), order="C") for name in names}
    laid = made.changed(out=LAYOUTS[memory](copies["out"]) if made.out.size else made.out)
    copies["out"] = np.array(laid.out, order="C")
    with using(isa, threads):
        found = laid.backward()
    with using(isa, 1):
        for name, x in made.changed(**copies).backward().items():
            assert_same_bits(found[name], x, name)
