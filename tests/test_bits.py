"""A row's bits do not depend on company: threads, batch, place, strides, layout, lse, out.

The first call of each test is contiguous, alone, with one thread and without the lse; every
other way of asking for the same rows has to give the very same bits.
"""

from __future__ import annotations

import numpy as np
import pytest
from helpers import DTYPES, Array, assert_same_bits, attend, lse_dtype, make_qkv
from layouts import CHOICES, LAYOUTS, WRITABLE, lay_out

import headway

SHAPES = [
    # (Tq, Tk): prefill, a chunk after a past, few queries over many keys, one query
    (1, 1),
    (9, 9),
    (130, 130),
    (517, 517),
    (40, 700),
    (5, 2300),
    (1, 2300),
    (70, 33),
]
HEADS = [(2, 2), (8, 2)]

#: (Tq, Tk) and head_dim: an odd width at every shape, the usual ones at some.
SHAPES_AND_WIDTHS = [
    *((tokens, 20) for tokens in SHAPES),
    ((130, 130), 64),
    ((517, 517), 128),
    ((40, 700), 128),
    ((5, 2300), 64),
    ((1, 2300), 128),
]


def inputs(
    dtype: str, heads: tuple[int, int], tokens: tuple[int, int], head_dim: int = 20, batch: int = 1
) -> tuple[Array, Array, Array]:
    """Return q, k, v; with the usual head_dim the widths fill no vector exactly."""
    return make_qkv(
        11,
        dtype,
        batch=batch,
        heads=heads,
        tokens=tokens,
        head_dim=head_dim,
        value_dim=24 if head_dim == 20 else head_dim,
    )


def baseline(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    """Return out and lse computed by one thread; the out of a call without the lse."""
    headway.set_num_threads(1)
    out = headway.attention(q, k, v)
    assert isinstance(out, np.ndarray)
    return out, attend(q, k, v)[1]


@pytest.mark.parametrize(("tokens", "head_dim"), SHAPES_AND_WIDTHS)
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("any_threads")
def test_threads_lse_and_repeat(
    dtype: str, heads: tuple[int, int], tokens: tuple[int, int], head_dim: int, isa: str
) -> None:
    """1, 2 and 3 threads, with the lse and without, once and again."""
    q, k, v = inputs(dtype, heads, tokens, head_dim)
    expected, expected_lse = baseline(q, k, v)
    for count in (1, 2, 3):
        headway.set_num_threads(count)
        for _ in range(2):
            assert_same_bits(headway.attention(q, k, v), expected, f"{count} threads")
            out, lse = attend(q, k, v)
            assert_same_bits(out, expected, f"{count} threads with the lse")
            assert_same_bits(lse, expected_lse, f"lse of {count} threads")


@pytest.mark.parametrize("tokens", SHAPES)
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("any_threads")
def test_place_in_a_batch(
    dtype: str, heads: tuple[int, int], tokens: tuple[int, int], isa: str
) -> None:
    """An entry alone, and at each place of a batch, with the other entries full of NaN too."""
    q, k, v = inputs(dtype, heads, tokens, batch=3)
    alone = [baseline(q[b : b + 1], k[b : b + 1], v[b : b + 1]) for b in range(3)]
    for count, order in ((1, (0, 1, 2)), (2, (2, 0, 1)), (3, (1, 2, 0))):
        headway.set_num_threads(count)
        places = list(order)
        out, lse = attend(q[places], k[places], v[places])
        for place, b in enumerate(order):
            assert_same_bits(out[place], alone[b][0][0], f"entry {b} at place {place}")
            assert_same_bits(lse[place], alone[b][1][0], f"lse of entry {b} at place {place}")
    for x in (q, k, v):
        x[1] = np.nan
    out, lse = attend(q, k, v)
    for b in (0, 2):
        assert_same_bits(out[b], alone[b][0][0], f"entry {b} beside one of NaN")
        assert_same_bits(lse[b], alone[b][1][0], f"lse of entry {b} beside one of NaN")


@pytest.mark.parametrize("tokens", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("any_threads")
def test_heads_alone(dtype: str, tokens: tuple[int, int], isa: str) -> None:
    """A head alone, in a group, and with its key head repeated gives the same rows."""
    q, k, v = inputs(dtype, (8, 2), tokens)
    expected, expected_lse = baseline(q, k, v)
    headway.set_num_threads(2)
    repeated = attend(q, np.repeat(k, 4, axis=1), np.repeat(v, 4, axis=1))
    assert_same_bits(repeated[0], expected, "key heads repeated")
    assert_same_bits(repeated[1], expected_lse, "lse of key heads repeated")
    for head in (0, 3, 5):
        out, lse = attend(q[0, head], k[0, head // 4], v[0, head // 4])
        assert_same_bits(out, expected[0, head], f"head {head} alone")
        assert_same_bits(lse, expected_lse[0, head], f"lse of head {head} alone")


@pytest.mark.parametrize("memory", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("any_threads")
def test_strides(dtype: str, memory: str, isa: str) -> None:
    """The same values in every memory layout, for one, two or all three of the inputs."""
    headway.set_num_threads(2)
    for heads, tokens, head_dim in (
        ((4, 2), (70, 70), 20),
        ((2, 2), (5, 300), 20),
        ((2, 1), (70, 70), 64),
        ((1, 1), (5, 140), 128),
    ):
        arrays = inputs(dtype, heads, tokens, head_dim, batch=2)
        for chosen in CHOICES:
            q, k, v = lay_out(arrays, memory, chosen)
            expected, expected_lse = attend(*(np.array(x, order="C") for x in (q, k, v)))
            out, lse = attend(q, k, v)
            assert_same_bits(out, expected, f"{chosen} {memory}, {head_dim}")
            assert_same_bits(lse, expected_lse, f"lse of {chosen} {memory}")


@pytest.mark.parametrize("tokens", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("any_threads")
def test_layout_names(dtype: str, tokens: tuple[int, int], isa: str) -> None:
    """Layout "BTHD" gives the bits of "BHTD", from views and from arrays made in that order."""
    q, k, v = inputs(dtype, (8, 2), tokens, batch=2)
    expected, expected_lse = baseline(q, k, v)
    views = [x.swapaxes(1, 2) for x in (q, k, v)]
    for arrays in (views, [x.copy() for x in views]):
        out, lse = attend(*arrays, layout="BTHD")
        assert_same_bits(out.swapaxes(1, 2), expected)
        assert_same_bits(lse, expected_lse, "lse")


@pytest.mark.parametrize("memory", WRITABLE)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("any_threads")
def test_out(dtype: str, memory: str, isa: str) -> None:
    """out= of any strides gets the bits of a new result, and is what is returned."""
    q, k, v = inputs(dtype, (4, 2), (70, 90), batch=2)
    expected, expected_lse = baseline(q, k, v)
    headway.set_num_threads(2)
    out = LAYOUTS[memory](np.full_like(expected, np.nan))
    returned = headway.attention(q, k, v, out=out)
    assert returned is out
    assert_same_bits(out, expected)
    lse = attend(q, k, v, out=out)[1]
    assert_same_bits(out, expected, "out with the lse")
    assert_same_bits(lse, expected_lse, "lse")


@pytest.mark.parametrize("memory", ["token_major", "step_two", "wide_rows"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_out_writes_nothing_else(dtype: str, memory: str, isa: str) -> None:
    """The gaps between the elements of a strided out= stay as they were."""
    q, k, v = inputs(dtype, (4, 2), (70, 90), batch=2)
    out = LAYOUTS[memory](np.zeros((2, 4, 70, 24), q.dtype))
    owner = out
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    before = owner.copy()
    headway.attention(q, k, v, out=out)
    out[...] = 0
    assert_same_bits(owner, before, "the memory around out")


@pytest.mark.parametrize("dtype", DTYPES)
def test_inputs_are_left_alone(dtype: str, isa: str) -> None:
    """No input is written, whatever its layout."""
    for memory in LAYOUTS:
        arrays = lay_out(inputs(dtype, (4, 2), (9, 20), batch=2), memory, "qkv")
        before = [x.copy() for x in arrays]
        attend(*arrays)
        headway.attention_weights(arrays[0], arrays[1])
        for x, kept in zip(arrays, before, strict=True):
            assert_same_bits(x, kept, memory)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("any_threads")
def test_weights_and_scores_repeat(dtype: str, isa: str) -> None:
    """Weights and scores too are the same for any thread count, layout and company."""
    q, k, _ = inputs(dtype, (4, 2), (70, 300), batch=2)
    headway.set_num_threads(1)
    weights = headway.attention_weights(q, k)
    scores = headway.attention_scores(q, k)
    assert scores.dtype == lse_dtype(dtype)
    for count in (2, 3):
        headway.set_num_threads(count)
        assert_same_bits(headway.attention_weights(q, k), weights)
        assert_same_bits(headway.attention_scores(q, k), scores)
    assert_same_bits(headway.attention_weights(q[1:], k[1:]), weights[1:])
    assert_same_bits(headway.attention_scores(q[1:], k[1:]), scores[1:])
