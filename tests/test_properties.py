"""Laws of attention on inputs that hypothesis makes up."""

from __future__ import annotations

from typing import Any

import numpy as np
from helpers import (
    DTYPES,
    FULL,
    LSE_TOLERANCE,
    TOLERANCE,
    Array,
    assert_close,
    assert_same_bits,
    attend,
    make_qkv,
    reference,
    using,
)
from hypothesis import given
from hypothesis import strategies as st
from layouts import LAYOUTS

import headway

ISAS = st.sampled_from(headway.available_isas())
SEEDS = st.integers(0, 2**16)


@st.composite
def problems(draw: st.DrawFn, dtypes: tuple[str, ...] = DTYPES) -> tuple[Any, ...]:
    """Return (dtype, q, k, v, options): any sizes, an alignment, and a layout per input."""
    dtype = draw(st.sampled_from(dtypes))
    key_heads = draw(st.integers(1, 3))
    tokens = draw(st.integers(0, 150)), draw(st.integers(0, 300))
    batch = draw(st.integers(1, 3))
    arrays = make_qkv(
        draw(SEEDS),
        dtype,
        batch=batch,
        heads=(key_heads * draw(st.integers(1, 4)), key_heads),
        tokens=tokens,
        head_dim=draw(st.integers(1, 70)),
        value_dim=draw(st.integers(0, 70)),
    )
    q, k, v = (LAYOUTS[draw(st.sampled_from(sorted(LAYOUTS)))](x) for x in arrays)
    place = st.integers(-tokens[0] - 3, tokens[1] + 3)
    align = draw(
        st.sampled_from(["end", "start"]) | place | st.lists(place, min_size=batch, max_size=batch)
    )
    options: dict[str, Any] = {"align": align, "causal": draw(st.booleans())}
    if draw(st.booleans()):
        options["scale"] = draw(st.floats(-2, 2, width=16))
    return dtype, q, k, v, options


@given(isa=ISAS, threads=st.integers(1, 3), problem=problems())
def test_agrees_with_the_reference(isa: str, threads: int, problem: tuple[Any, ...]) -> None:
    """Any call gives the reference's out, lse and weights."""
    dtype, q, k, v, options = problem
    with using(isa, threads):
        out, lse = attend(q, k, v, **options)
        weights = headway.attention_weights(q, k, **options)
    expected, expected_lse = reference(q, k, v, **options)
    # A scale of 2 on many columns makes scores of some 100: exp keeps their absolute error.
    looser = max(1.0, abs(options.get("scale", 0.0)) * np.sqrt(q.shape[-1])) ** 2
    assert_close(out, expected, TOLERANCE[dtype] * looser, "out")
    assert_close(lse, expected_lse, LSE_TOLERANCE[dtype], "lse")
    wide = [np.array(x, np.float64) for x in (q, k)]
    expected = headway.reference.attention_weights(*wide, **options)
    assert_close(weights, expected, TOLERANCE[dtype] * looser, "weights")


@given(isa=ISAS, problem=problems())
def test_results_lie_between_the_visible_values(isa: str, problem: tuple[Any, ...]) -> None:
    """A context vector is a mean: it lies within the range of the values, column by column."""
    dtype, q, k, v, options = problem
    with using(isa, 2):
        out = headway.attention(q, k, v, **options).astype(np.float64)
    if k.shape[2] == 0:
        assert not out.any()
        return
    values = np.repeat(np.array(v, np.float64), q.shape[1] // k.shape[1], axis=1)
    slack = TOLERANCE[dtype] * np.abs(values).max(initial=0)
    # Rows that see nothing are 0, so 0 counts as a value.
    low = np.minimum(values.min(axis=2, keepdims=True), 0)
    high = np.maximum(values.max(axis=2, keepdims=True), 0)
    assert (out >= low - slack).all()
    assert (out <= high + slack).all()


@given(isa=ISAS, problem=problems(), order=st.randoms(use_true_random=False))
def test_heads_may_be_reordered(isa: str, problem: tuple[Any, ...], order: Any) -> None:
    """Key heads in another order, with their groups, give the same rows in that order."""
    _, q, k, v, options = problem
    places = list(range(k.shape[1]))
    order.shuffle(places)
    group = q.shape[1] // k.shape[1]
    queries = [place * group + n for place in places for n in range(group)]
    with using(isa, 2):
        out, lse = attend(q, k, v, **options)
        moved, moved_lse = attend(q[:, queries], k[:, places], v[:, places], **options)
    assert_same_bits(moved, out[:, queries])
    assert_same_bits(moved_lse, lse[:, queries], "lse")


@given(isa=ISAS, problem=problems(), extra=st.integers(1, 100), filler=st.sampled_from("nif"))
def test_keys_hidden_by_causality(
    isa: str, problem: tuple[Any, ...], extra: int, filler: str
) -> None:
    """Keys behind the last position that any query sees change no bit."""
    _, q, k, v, options = problem
    batch, _, queries, _ = q.shape
    starts: list[int] = [k.shape[2] - queries] * batch
    if isinstance(options["align"], list):
        # An entry that stands further on would see keys that are added: it stays behind them.
        starts = [min(start, k.shape[2] - queries) for start in options["align"]]
    options = {**options, "causal": True, "align": starts}
    with using(isa, 2):
        out, lse = attend(q, k, v, **options)
        value = {"n": np.nan, "i": np.inf, "f": 3.0}[filler]
        longer = [
            np.concatenate([x, np.full((*x.shape[:2], extra, x.shape[3]), value, x.dtype)], axis=2)
            for x in (k, v)
        ]
        again, again_lse = attend(q, *longer, **options)
    assert_same_bits(again, out)
    assert_same_bits(again_lse, lse, "lse")


@given(isa=ISAS, seed=SEEDS, shift=st.integers(-60, 60), dtype=st.sampled_from(FULL))
def test_a_common_score_cancels(isa: str, seed: int, shift: int, dtype: str) -> None:
    """One more column, constant in k, adds the same to all scores of a query: only lse moves."""
    q, k, v = make_qkv(seed, dtype, heads=(4, 2), tokens=(40, 130), head_dim=15, value_dim=7)
    with using(isa, 2):
        out, lse = attend(q, k, v, scale=0.25)
        longer_q = np.concatenate([q, np.full_like(q[..., :1], shift)], axis=-1)
        longer_k = np.concatenate([k, np.full_like(k[..., :1], 4)], axis=-1)
        moved, moved_lse = attend(longer_q, longer_k, v, scale=0.25)
    assert_close(moved, out.astype(np.float64), 4 * TOLERANCE[dtype])
    tolerance = 4 * LSE_TOLERANCE[dtype]
    assert_close(moved_lse, lse.astype(np.float64) + shift, tolerance, "lse")


@given(isa=ISAS, problem=problems(FULL))
def test_linear_in_the_values(isa: str, problem: tuple[Any, ...]) -> None:
    """Doubled values double the result exactly; weights times values give it."""
    dtype, q, k, v, options = problem
    with using(isa, 2):
        out = headway.attention(q, k, v, **options)
        doubled = headway.attention(q, k, 2 * v, **options)
        weights = headway.attention_weights(q, k, **options)
    assert_same_bits(doubled, 2 * out)
    product = weights.astype(np.float64) @ np.repeat(
        np.array(v, np.float64), q.shape[1] // k.shape[1], axis=1
    )
    assert np.abs(out - product).max(initial=0) <= 4 * TOLERANCE[dtype] * scale_of(v)
    total = weights.astype(np.float64).sum(axis=-1)
    assert (np.isclose(total, 1, rtol=1e-5) | (total == 0)).all()


@given(isa=ISAS, seed=SEEDS, dtype=st.sampled_from(DTYPES), rows=st.integers(1, 40))
def test_keys_may_be_reordered(isa: str, seed: int, dtype: str, rows: int) -> None:
    """Without the causal rule the order of the keys matters to the rounding only."""
    q, k, v = make_qkv(seed, dtype, heads=(2, 1), tokens=(rows, 150), head_dim=9)
    order = np.random.default_rng(seed).permutation(150)
    with using(isa, 2):
        out, lse = attend(q, k, v, causal=False)
        moved, moved_lse = attend(q, k[:, :, order], v[:, :, order], causal=False)
    assert_close(moved, out.astype(np.float64), TOLERANCE[dtype])
    assert_close(moved_lse, lse.astype(np.float64), LSE_TOLERANCE[dtype], "lse")


def scale_of(x: Array) -> float:
    """Return the largest magnitude in x, at least 1."""
    return max(1.0, float(np.abs(x.astype(np.float64)).max(initial=0)))
