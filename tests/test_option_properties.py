"""Random combinations of all options, made up by hypothesis, against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
from helpers import (
    DTYPES,
    LSE_TOLERANCE,
    TOLERANCE,
    Array,
    assert_close,
    assert_same_bits,
    attend,
    dtype_of,
    make,
    make_qkv,
    reference,
    using,
)
from hypothesis import assume, given
from hypothesis import strategies as st
from layouts import LAYOUTS
from option_table import Options, filled, visible_keys

import headway

ISAS = st.sampled_from(headway.available_isas())
SEEDS = st.integers(0, 2**16)
MEMORY = st.sampled_from(sorted(LAYOUTS))


@st.composite
def score_options(draw: st.DrawFn, batch: int, heads: int) -> Options:
    """Return any combination of the options that need nothing but the numbers of heads."""
    options: Options = {"causal": draw(st.booleans())}
    if draw(st.booleans()):
        options["scale"] = draw(st.floats(-0.5, 0.5, width=16))
    if draw(st.booleans()):
        options["softcap"] = draw(st.sampled_from([None, 0, 0.5, 3, 50.0]))
    if draw(st.booleans()):
        side = st.integers(-1, 90)
        options["window"] = draw(st.integers(1, 200) | st.tuples(side, side))
    if draw(st.booleans()):
        shape = (batch, heads) if draw(st.booleans()) else (heads,)
        slopes = make((draw(SEEDS), 1), shape) * draw(st.sampled_from([0.0, 0.01, 0.5]))
        options["alibi_slopes"] = slopes.astype(dtype_of(draw(st.sampled_from(DTYPES))))
    if draw(st.booleans()):
        sinks = 3 * make((draw(SEEDS), 2), (heads,))
        sinks[:: draw(st.integers(1, 4))] = draw(st.sampled_from([-np.inf, 0.0, 20.0]))
        options["sinks"] = sinks.astype(dtype_of(draw(st.sampled_from(DTYPES))))
    return options


@st.composite
def masks(draw: st.DrawFn, shape: tuple[int, int, int, int]) -> Array:
    """Return a mask of either kind that broadcasts to the shape, in any layout."""
    axes = draw(st.integers(1, 4))
    sizes = tuple(draw(st.sampled_from([n, n, 1])) for n in shape)
    g = np.random.default_rng(draw(SEEDS))
    hidden = g.random(sizes) < draw(st.sampled_from([0.0, 0.1, 0.5, 0.95, 1.0]))
    start = draw(st.integers(0, sizes[3]))
    hidden[..., start : start + draw(st.integers(0, 130))] = True
    mask = ~hidden
    if draw(st.booleans()):
        numbers = g.standard_normal(sizes) * draw(st.sampled_from([0.0, 1.0, 5.0]))
        numbers[hidden] = draw(st.sampled_from([-np.inf, -np.inf, -50.0]))
        mask = numbers.astype(dtype_of(draw(st.sampled_from(DTYPES))))
    if axes == 4 and mask.size:
        mask = LAYOUTS[draw(MEMORY)](mask)  # repeated rows are another mask, as good as this one
    return mask[(0,) * (4 - axes)] if mask.size else mask


@st.composite
def problems(draw: st.DrawFn) -> tuple[Any, ...]:
    """Return (dtype, q, k, v, options): any sizes, any layouts, any combination of options."""
    dtype = draw(st.sampled_from(DTYPES))
    key_heads, batch = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    heads = key_heads * draw(st.integers(1, 3))
    tq = draw(st.integers(0, 3) | st.integers(0, 140))
    tk = draw(st.integers(0, 3) | st.integers(0, 280))
    arrays = make_qkv(
        draw(SEEDS),
        dtype,
        batch=batch,
        heads=(heads, key_heads),
        tokens=(tq, tk),
        head_dim=draw(st.integers(1, 70)),
        value_dim=draw(st.integers(0, 70)),
    )
    q, k, v = (LAYOUTS[draw(MEMORY)](x) for x in arrays)
    options = draw(score_options(batch, heads))
    place = st.integers(-tq - 3, tk + 3)
    options["align"] = draw(
        st.sampled_from(["end", "start"]) | place | st.lists(place, min_size=batch, max_size=batch)
    )
    if draw(st.booleans()):
        length = st.integers(0, tk)
        options["kv_lengths"] = draw(st.lists(length, min_size=batch, max_size=batch))
    if draw(st.booleans()):
        options["mask"] = draw(masks((batch, heads, tq, tk)))
    return dtype, q, k, v, options


def slack(q: Array, options: Options, tokens: int) -> float:
    """Return by how much the tolerance grows with scores of large magnitude.

    exp keeps their absolute error; a bias of some slope reaches it over all the tokens.
    """
    scale = abs(options.get("scale", 0.0)) * np.sqrt(q.shape[-1])
    slopes = np.abs(np.array(options.get("alibi_slopes", 0.0), np.float64)).max(initial=0.0)
    return float(max(1.0, scale) ** 2 * max(1.0, slopes * tokens / 50))


@given(isa=ISAS, threads=st.integers(1, 3), problem=problems())
def test_agrees_with_the_reference(isa: str, threads: int, problem: tuple[Any, ...]) -> None:
    """Any call gives the reference's out, lse, weights and scores."""
    dtype, q, k, v, options = problem
    with using(isa, threads):
        out, lse = attend(q, k, v, **options)
        weights = headway.attention_weights(q, k, **options)
        scores = {
            stage: headway.attention_scores(q, k, stage=stage, **options)
            for stage in ("scaled", "capped", "masked")
        }
    expected, expected_lse = reference(q, k, v, **options)
    looser = slack(q, options, q.shape[2] + k.shape[2])
    assert_close(out, expected, TOLERANCE[dtype] * looser, "out")
    assert_close(lse, expected_lse, LSE_TOLERANCE[dtype] * looser, "lse")
    wide = [np.array(x, np.float64) for x in (q, k)]
    expected = headway.reference.attention_weights(*wide, **options)
    assert_close(weights, expected, TOLERANCE[dtype] * looser, "weights")
    for stage, found in scores.items():
        expected = headway.reference.attention_scores(*wide, stage=stage, **options)
        assert_close(found, expected, LSE_TOLERANCE[dtype], f"{stage} scores")


@given(isa=ISAS, problem=problems(), bad=st.sampled_from([np.nan, np.inf, -np.inf, 3.0]))
def test_hidden_from_all_is_absent(isa: str, problem: tuple[Any, ...], bad: float) -> None:
    """Keys and values that no query of their head may see change no bit."""
    _, q, k, v, options = problem
    batch, key_heads, tk, _ = k.shape
    shape = *q.shape[:3], tk
    words = options | {"mask": four_axes(options["mask"])} if "mask" in options else options
    seen = visible_keys(shape, words).any(axis=2)
    hidden = ~seen.reshape(batch, key_heads, q.shape[1] // key_heads, tk).any(axis=2)
    assume(hidden.any())
    k, v = np.array(k), np.array(v)
    with using(isa, 2):
        out, lse = attend(q, k, v, **options)
        k[hidden], v[hidden] = bad, bad
        again, again_lse = attend(q, k, v, **options)
    assert_same_bits(again, out)
    assert_same_bits(again_lse, lse, "lse")


def four_axes(mask: Array) -> Array:
    """Return the mask with axes of 1 in front."""
    return mask.reshape((1,) * (4 - mask.ndim) + mask.shape)


@given(isa=ISAS, problem=problems(), threads=st.integers(1, 3))
def test_the_same_bits_in_any_form(isa: str, problem: tuple[Any, ...], threads: int) -> None:
    """Contiguous copies, one thread, the mask written out, no lse: the same rows."""
    _, q, k, v, options = problem
    with using(isa, threads):
        out, lse = attend(q, k, v, **options)
    if "mask" in options:
        shape = (*q.shape[:3], k.shape[2])
        options = options | {"mask": np.array(np.broadcast_to(options["mask"], shape))}
    q, k, v = (np.array(x, order="C") for x in (q, k, v))
    given_out = filled(out, np.nan)
    with using(isa, 1):
        assert_same_bits(headway.attention(q, k, v, out=given_out, **options), out)
        assert_same_bits(attend(q, k, v, **options)[1], lse, "lse")


@st.composite
def packed(draw: st.DrawFn) -> tuple[Any, ...]:
    """Return (dtype, q, k, v, offsets, options) of a packed call, empty members among them."""
    dtype = draw(st.sampled_from(DTYPES))
    key_heads, count = draw(st.integers(1, 2)), draw(st.integers(0, 5))
    heads = key_heads * draw(st.integers(1, 3))
    size = st.sampled_from([0, 1, 2, 5]) | st.integers(0, 100)
    queries = draw(st.lists(size, min_size=count, max_size=count))
    keys = queries if draw(st.booleans()) else draw(st.lists(size, min_size=count, max_size=count))
    width, seed = draw(st.integers(1, 40)), draw(SEEDS)
    q = make((seed, 1), (sum(queries), heads, width), dtype)
    k = make((seed, 2), (sum(keys), key_heads, width), dtype)
    v = make((seed, 3), (sum(keys), key_heads, draw(st.integers(0, 40))), dtype)
    kind = draw(st.sampled_from([np.int32, np.int64]))
    offsets = [np.cumsum([0, *sizes], dtype=kind) for sizes in (queries, keys)]
    if keys == queries and draw(st.booleans()):
        offsets = offsets[:1]
    options = draw(score_options(count, heads))
    place = st.integers(-20, 100)
    options["align"] = draw(
        st.sampled_from(["end", "start"]) | place | st.lists(place, min_size=count, max_size=count)
    )
    return dtype, q, k, v, offsets, options


@given(isa=ISAS, threads=st.integers(1, 3), problem=packed())
def test_packed_agrees_with_the_reference(isa: str, threads: int, problem: tuple[Any, ...]) -> None:
    """Each member of a packed call is a call of its own."""
    dtype, q, k, v, offsets, options = problem
    with using(isa, threads):
        out, lse = headway.attention_varlen(q, k, v, *offsets, return_lse=True, **options)
    assert out.shape == (*q.shape[:2], v.shape[2])
    assert lse.shape == q.shape[1::-1]
    looser = slack(q, options, 300)
    for n in range(len(offsets[0]) - 1):
        rows, keys = (slice(*cu[n : n + 2]) for cu in (offsets[0], offsets[-1]))
        own = dict(options)
        if isinstance(own["align"], list):
            own["align"] = own["align"][n]
        if np.ndim(own.get("alibi_slopes")) == 2:
            own["alibi_slopes"] = own["alibi_slopes"][n]
        arrays = (x.swapaxes(0, 1) for x in (q[rows], k[keys], v[keys]))
        expected, expected_lse = reference(*arrays, **own)
        found = out[rows].swapaxes(0, 1)
        assert_close(found, expected, TOLERANCE[dtype] * looser, f"member {n}")
        # Where an lse is near 0 its sum is near 1, and the last places of that count.
        size = np.abs(expected_lse[np.isfinite(expected_lse)]).max(initial=1e-6)
        allowed = LSE_TOLERANCE[dtype] * looser + 2 * np.finfo(lse.dtype).eps / size
        assert_close(lse[:, rows], expected_lse, allowed, f"lse of {n}")
