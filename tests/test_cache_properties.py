"""Caches that hypothesis makes up: any kind, dtype, sizes, pieces and options."""

from __future__ import annotations

from typing import Any

import numpy as np
from cache_kinds import QUANTISED, STORED, Direct, Sequences, as_stored, feed_randomly, source_of
from helpers import (
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
from hypothesis import given, settings
from hypothesis import strategies as st
from option_table import Options, filled
from test_option_properties import masks, score_options, slack

import headway
from headway import KVCache

ISAS = st.sampled_from(headway.available_isas())
SEEDS = st.integers(0, 2**16)
KINDS = st.sampled_from(["plain", "growing", "ring", "wrapped"]) | st.integers(1, 70).map(
    lambda size: f"paged-{size}"
)

#: Key lengths, widths and pieces: short histories, and those of several spans of 1,024 keys.
SHORT = {"tokens": 150, "width": 200, "most": 40}
LONG = {"tokens": 2600, "width": 10, "most": 700}


@st.composite
def histories(draw: st.DrawFn, sizes: dict[str, int]) -> tuple[Any, ...]:
    """Return (dtype, q, k, v, lengths); the longest sequence is as long as k and v."""
    dtype = draw(st.sampled_from(STORED))
    batch, key_heads = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    group = draw(st.integers(1, 4) | st.sampled_from([7, 9]))
    queries = draw(st.just(1) | st.integers(1, 9))
    least = 1 if sizes is SHORT else 900
    tokens = draw(st.integers(least, sizes["tokens"]))
    lengths = draw(st.lists(st.integers(0, tokens), min_size=batch, max_size=batch))
    lengths[draw(st.integers(0, batch - 1))] = tokens
    q, k, v = make_qkv(
        draw(SEEDS),
        source_of(dtype),
        batch=batch,
        heads=(group * key_heads, key_heads),
        tokens=(queries, tokens),
        head_dim=draw(st.integers(1, sizes["width"])),
        value_dim=draw(st.integers(1, sizes["width"])),
    )
    return dtype, q, k, v, lengths


def new_cache(draw: st.DrawFn, kind: str, dtype: str, k: Array, v: Array, most: int) -> Direct:
    """Return a cache for these tokens; a "wrapped" ring has a random window."""
    batch, heads, tokens, width = k.shape
    if kind != "wrapped":
        return Sequences(kind, tokens, (batch, heads, width, v.shape[3]), dtype)
    window = draw(st.integers(1, tokens))
    capacity = window + most - 1 + draw(st.integers(0, 5))
    sizes = {"v_head_dim": v.shape[3], "window": window}
    return Direct(KVCache(batch, heads, capacity, width, dtype=dtype, **sizes))


@st.composite
def filled_caches(draw: st.DrawFn, sizes: dict[str, int]) -> tuple[Any, ...]:
    """Return (history, cache, options as given, options for the whole history)."""
    history = dtype, q, k, v, lengths = draw(histories(sizes))
    kind, most = draw(KINDS), max(draw(st.integers(1, sizes["most"])), q.shape[2])
    if sizes is LONG:
        most = max(most, 300)
    cache = new_cache(draw, kind, dtype, k, v, most)
    feed_randomly(cache, k, v, lengths, most, draw(SEEDS))
    options = draw(score_options(q.shape[0], q.shape[1]))
    if draw(st.booleans()):
        options["mask"] = draw(masks((*q.shape[:3], k.shape[2])))
    window = options.pop("window", None)
    if kind == "wrapped":  # no query may see more than the window, nor what is overwritten
        width = cache.cache.window
        whole = dict(options, window=(width - 1, -1))
        if window is not None:
            left = draw(st.integers(0, width - 1))
            narrow = draw(st.sampled_from([left + 1, (left, 4), (left, -1)]))
            options["window"] = whole["window"] = narrow
        return history, cache, options, whole
    if kind != "ring":  # a ring's own window is as long as the history
        if window is not None:
            options["window"] = window
        place = st.integers(-q.shape[2] - 3, k.shape[2] + 3)
        places = place | st.lists(place, min_size=len(q), max_size=len(q))
        options["align"] = draw(st.sampled_from(["end", "start"]) | places)
    return history, cache, options, options


def check(isa: str, threads: int, made: tuple[Any, ...]) -> None:
    """Compare with the reference on the history, as it is stored."""
    (dtype, q, k, v, lengths), cache, options, whole = made
    with using(isa, threads):
        out, lse = cache.attend(q, **options)
        if dtype not in QUANTISED:
            same = attend(q, k, v, kv_lengths=lengths, **whole)
            assert_same_bits(out, same[0], "without a cache")
            assert_same_bits(lse, same[1], "lse without a cache")
    expected = reference(q, *as_stored(dtype, k, v), kv_lengths=lengths, **whole)
    name, allowed = q.dtype.name, slack(q, whole, k.shape[2])
    assert_close(out, expected[0], TOLERANCE[name] * allowed, "out")
    assert_close(lse, expected[1], LSE_TOLERANCE[name] * allowed, "lse")


@given(isa=ISAS, threads=st.integers(1, 3), made=filled_caches(SHORT))
@settings(max_examples=150)
def test_agrees_with_the_reference(isa: str, threads: int, made: tuple[Any, ...]) -> None:
    """Any cache gives what the reference makes of the history of each sequence."""
    check(isa, threads, made)


@given(isa=ISAS, threads=st.integers(1, 3), made=filled_caches(LONG))
@settings(max_examples=60)
def test_several_spans(isa: str, threads: int, made: tuple[Any, ...]) -> None:
    """Histories of 900 to 2,600 tokens."""
    check(isa, threads, made)


@st.composite
def placements(draw: st.DrawFn) -> tuple[Any, ...]:
    """Return (kind, place, batch, threads, most, seed, neighbours): where a sequence may live."""
    batch = draw(st.integers(1, 5))
    return (
        draw(KINDS.filter(lambda kind: kind != "wrapped")),
        draw(st.integers(0, batch - 1)),
        batch,
        draw(st.integers(1, 4)),
        draw(st.integers(1, 200)),
        draw(SEEDS),
        draw(st.sampled_from(["random", "nan", "empty"])),
    )


def placed(history: tuple[Any, ...], placement: tuple[Any, ...]) -> Direct:
    """Return a cache that has the first sequence of a history at some place among others."""
    dtype, _, k, v, lengths = history
    kind, place, batch, _, most, seed, neighbours = placement
    tokens, g = k.shape[2], np.random.default_rng(seed)
    shape = (batch, k.shape[1], k.shape[3], v.shape[3])
    cache = Sequences(kind, tokens, shape, dtype)
    others = [int(n) for n in g.integers(0, tokens + 1, batch)]
    if neighbours == "empty":
        others = [0] * batch
    others[place] = lengths[0]
    arrays = []
    for x in (k, v):
        many = np.repeat(x[:1], batch, axis=0)[:, :, ::-1].copy()
        if neighbours == "nan":
            many = filled(many, np.nan)
        many[place] = x[0]
        arrays.append(many)
    feed_randomly(cache, arrays[0], arrays[1], others, most, seed)
    return cache


@st.composite
def few_options(draw: st.DrawFn, heads: int) -> Options:
    """Return options that fit any batch."""
    options: Options = draw(score_options(1, heads))
    if np.ndim(options.get("alibi_slopes")) == 2:
        options["alibi_slopes"] = options["alibi_slopes"][0]
    options.pop("window", None)
    return options


@given(isa=ISAS, data=st.data(), long=st.booleans())
@settings(max_examples=80)
def test_bits_do_not_depend_on_company(isa: str, data: st.DataObject, long: bool) -> None:
    """Nor on the kind of cache, the pages, the pieces, the batch, the place or the threads."""
    history = data.draw(histories(LONG if long else SHORT))
    q, length = history[1], history[4][0]
    options = data.draw(few_options(q.shape[1]))
    alone = placed(history, ("plain", 0, 1, 1, 3000, 0, "random"))
    with using(isa, 1):
        expected = alone.attend(q[:1], **options)
    for _ in range(3):
        placement = data.draw(placements())
        cache = placed(history, placement)
        place, batch, threads = placement[1:4]
        queries = np.concatenate([filled(q[:1], np.nan)] * batch)
        queries[place] = q[0]
        with using(isa, threads):
            out, lse = cache.attend(queries, **options)
        what = f"{placement}, {length} tokens"
        assert_same_bits(out[place : place + 1], expected[0], what)
        assert_same_bits(lse[place : place + 1], expected[1], f"lse, {what}")
