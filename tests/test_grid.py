"""Results against the reference over sizes, options, dtypes and memory layouts."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import numpy as np
import pytest
from helpers import (
    DTYPES,
    FULL,
    HALF,
    LSE_TOLERANCE,
    TOLERANCE,
    Array,
    assert_close,
    attend,
    dtype_of,
    lse_dtype,
    make_qkv,
    reference,
    wide_tolerance,
)
from layouts import CHOICES, LAYOUTS, WRITABLE, lay_out
from option_table import EACH_ISA
from pairwise import Row, all_pairs

import headway

HEAD_DIMS = (1, 3, 8, 17, 64, 80, 96, 128, 256)
TOKENS = (0, 1, 7, 63, 64, 65, 129, 257, 640)
OTHER_HEAD_DIMS = (2, 5, 16, 31, 33, 48, 100, 160, 192, 255, 257, 320, 384, 511, 512)


@lru_cache(maxsize=4)
def causal_inputs(dtype: str, head_dim: int, tokens: int) -> tuple[Array, Array, Array]:
    """Return q, k, v of two heads."""
    return make_qkv(1000 * head_dim + tokens, dtype, tokens=(tokens, tokens), head_dim=head_dim)


@cache
def causal_reference(dtype: str, head_dim: int, tokens: int) -> tuple[Array, Array]:
    """Return the reference's out and lse, kept for the other instruction sets and threads."""
    return reference(*causal_inputs(dtype, head_dim, tokens))


def check_causal(dtype: str, head_dim: int, tokens: int) -> None:
    """Compare a causal call on contiguous heads with the reference."""
    expected, expected_lse = causal_reference(dtype, head_dim, tokens)
    out, lse = attend(*causal_inputs(dtype, head_dim, tokens))
    assert out.dtype == dtype_of(dtype)
    assert lse.dtype == lse_dtype(dtype)
    assert_close(out, expected, TOLERANCE[dtype], "out")
    assert_close(lse, expected_lse, LSE_TOLERANCE[dtype], "lse")


@EACH_ISA
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("dtype", FULL)
def test_causal(dtype: str, head_dim: int, tokens: int, isa: str, some_threads: int) -> None:
    """Every head_dim with every number of tokens."""
    check_causal(dtype, head_dim, tokens)


@EACH_ISA
@pytest.mark.parametrize("tokens", [65, 130])
@pytest.mark.parametrize("head_dim", OTHER_HEAD_DIMS)
@pytest.mark.parametrize("dtype", FULL)
def test_head_dims_up_to_512(
    dtype: str, head_dim: int, tokens: int, isa: str, some_threads: int
) -> None:
    """Widths around every block length, up to 512."""
    check_causal(dtype, head_dim, tokens)


@EACH_ISA
@pytest.mark.parametrize("head_dim", [7, 64, 80])
@pytest.mark.parametrize("dtype", HALF)
def test_causal_in_16_bits(dtype: str, head_dim: int, isa: str, some_threads: int) -> None:
    """16-bit results at lengths around a block."""
    for tokens in (1, 63, 65, 257):
        check_causal(dtype, head_dim, tokens)


OPTIONS: dict[str, tuple[Any, ...]] = {
    "memory": tuple(LAYOUTS),
    "chosen": CHOICES,
    "head_dim": (1, 3, 8, 17, 64, 80, 96, 128, 256, 512),
    "tokens": (
        *((65, 65), (5, 130), (70, 33), (1, 100), (130, 257), (7, 7), (2, 520), (300, 64)),
        *((0, 0), (63, 63), (64, 64), (129, 129), (260, 260)),
    ),
    "align": ("end", "start", 3, -2, (-1, 40)),
    "dtype": DTYPES,
    "value_dim": (None, 1, 24, 100),
    "out": (None, "contiguous", "float32", *(name for name in WRITABLE if name != "contiguous")),
    "heads": ((4, 4), (8, 2), (8, 1)),
    "causal": (True, False),
    "layout": ("BHTD", "BTHD"),
    "return_lse": (True, False),
}
ROWS = all_pairs(OPTIONS)


def row_id(row: Row) -> str:
    """Return a readable test id for one combination."""
    return "-".join(str(value).replace(" ", "") for value in row.values())


@lru_cache(maxsize=1)
def pairwise_inputs(number: int) -> tuple[Array, Array, Array]:
    """Return q, k, v of one combination in their memory layouts."""
    row = ROWS[number]
    return lay_out(
        make_qkv(
            number,
            row["dtype"],
            batch=2,
            heads=row["heads"],
            tokens=row["tokens"],
            head_dim=row["head_dim"],
            value_dim=row["value_dim"],
        ),
        row["memory"],
        row["chosen"],
    )


@lru_cache(maxsize=1)
def pairwise_reference(number: int) -> tuple[Array, Array]:
    """Return the reference's out and lse of one combination, kept as above."""
    row = ROWS[number]
    return reference(*pairwise_inputs(number), causal=row["causal"], align=row["align"])


def empty_out(row: Row, shape: tuple[int, ...]) -> Array | None:
    """Return the array that takes the result, full of NaN, in the layout the row asks for."""
    if row["out"] is None:
        return None
    narrow = row["dtype"] in HALF and row["out"] == "float32"
    values = np.full(shape, np.nan).astype(np.float32 if narrow else dtype_of(row["dtype"]))
    return values if row["out"] == "float32" else LAYOUTS[row["out"]](values)


@EACH_ISA
@pytest.mark.parametrize("number", range(len(ROWS)), ids=[row_id(row) for row in ROWS])
def test_pairs_of_options(number: int, isa: str, some_threads: int) -> None:
    """Any two choices of different options meet in one of these calls."""
    row = ROWS[number]
    q, k, v = pairwise_inputs(number)
    expected, expected_lse = pairwise_reference(number)
    swap = row["layout"] == "BTHD"
    out = empty_out(row, expected.shape)
    result = headway.attention(
        *(x.swapaxes(1, 2) if swap else x for x in (q, k, v)),
        causal=row["causal"],
        align=row["align"],
        layout=row["layout"],
        out=out.swapaxes(1, 2) if swap and out is not None else out,
        return_lse=row["return_lse"],
    )
    if row["return_lse"]:
        result, lse = result
        assert lse.dtype == lse_dtype(row["dtype"])
        assert_close(lse, expected_lse, LSE_TOLERANCE[row["dtype"]], "lse")
    found = result.swapaxes(1, 2) if swap else result
    if out is None:
        assert result.flags.c_contiguous
        assert result.dtype == q.dtype
        out = found
    narrow = out.dtype.name == row["dtype"]
    allowed = TOLERANCE[row["dtype"]] if narrow else wide_tolerance(row["dtype"])
    assert_close(found, expected, allowed, "out")
    assert_close(out, expected, allowed, "out=")


def test_all_pairs_meet() -> None:
    """The combinations hold every pair: the generator itself is checked by counting."""
    names = list(OPTIONS)
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            met = {(repr(row[first]), repr(row[second])) for row in ROWS}
            assert len(met) == len(OPTIONS[first]) * len(OPTIONS[second]), (first, second)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("layout", ["BHTD", "BTHD"])
def test_ranks(rank: int, layout: str, dtype: str, isa: str) -> None:
    """2-D and 3-D calls drop the axes that the arrays do not have, in the lse too."""
    heads = (4, 2) if rank == 3 else (1, 1)
    q, k, v = make_qkv(7, dtype, heads=heads, tokens=(9, 20), head_dim=10, value_dim=6)
    expected, expected_lse = (x[0] if rank == 3 else x[0, 0] for x in reference(q, k, v))
    swap = rank == 3 and layout == "BTHD"
    arrays = [x[0] if rank == 3 else x[0, 0] for x in (q, k, v)]
    result, lse = attend(*(x.swapaxes(0, 1) if swap else x for x in arrays), layout=layout)
    assert result.flags.c_contiguous
    assert_close(result.swapaxes(0, 1) if swap else result, expected, TOLERANCE[dtype])
    assert_close(lse, expected_lse, LSE_TOLERANCE[dtype], "lse")


#: (Tq, Tk), align, causal
MATRICES: list[tuple[tuple[int, int], Any, bool]] = [
    ((9, 70), "end", True),
    ((70, 9), "end", True),
    ((65, 65), "start", True),
    ((5, 12), [3, -1], True),
    ((66, 33), "end", False),
    ((0, 3), "end", True),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("stage", ["scaled", "masked"])
def test_weights_and_scores(stage: str, dtype: str, isa: str, threads: int) -> None:
    """The matrices that the fused call never stores agree with the reference's."""
    for number, (tokens, align, causal) in enumerate(MATRICES):
        q, k, _ = make_qkv(number, dtype, batch=2, heads=(6, 3), tokens=tokens, head_dim=19)
        wide = q.astype(np.float64), k.astype(np.float64)
        options: dict[str, Any] = {"causal": causal, "align": align}
        weights = headway.attention_weights(q, k, **options)
        assert weights.dtype == q.dtype
        expected = headway.reference.attention_weights(*wide, **options)
        assert_close(weights, expected, TOLERANCE[dtype], "weights")
        scores = headway.attention_scores(q, k, stage=stage, **options)
        assert scores.dtype == lse_dtype(dtype)
        expected = headway.reference.attention_scores(*wide, stage=stage, **options)
        assert_close(scores, expected, LSE_TOLERANCE[dtype], "scores")
        swapped = headway.attention_weights(
            q.swapaxes(1, 2), k.swapaxes(1, 2), layout="BTHD", **options
        )
        assert_close(swapped, expected=weights, tolerance=0.0, what="weights of BTHD")


@pytest.mark.parametrize("scale", [0.0, -0.7, 1e-3, 2.5])
@pytest.mark.parametrize("dtype", FULL)
def test_scale(dtype: str, scale: float, isa: str) -> None:
    """Any finite scale; 0 weighs all visible keys alike."""
    q, k, v = make_qkv(3, dtype, tokens=(70, 130), head_dim=20)
    expected, expected_lse = reference(q, k, v, scale=scale)
    out, lse = attend(q, k, v, scale=scale)
    assert_close(out, expected, TOLERANCE[dtype], "out")
    assert_close(lse, expected_lse, LSE_TOLERANCE[dtype], "lse")


@pytest.mark.parametrize(
    ("batch", "heads", "tokens", "value_dim"),
    [
        (0, (2, 2), (3, 4), 5),
        (2, (0, 0), (3, 4), 5),
        (2, (0, 2), (3, 4), 5),
        (2, (4, 2), (0, 4), 5),
        (2, (4, 2), (3, 0), 5),
        (2, (4, 2), (0, 0), 5),
        (2, (4, 2), (3, 4), 0),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes_of_zero(
    batch: int,
    heads: tuple[int, int],
    tokens: tuple[int, int],
    value_dim: int,
    dtype: str,
    isa: str,
) -> None:
    """An axis of length 0 is no error; without keys the context is 0 and the lse -inf."""
    q, k, v = make_qkv(
        5, dtype, batch=batch, heads=heads, tokens=tokens, head_dim=6, value_dim=value_dim
    )
    out, lse = attend(q, k, v)
    assert out.shape == (batch, heads[0], tokens[0], value_dim)
    assert lse.shape == (batch, heads[0], tokens[0])
    if tokens[1] == 0:
        assert not out.any()
        assert (lse == -np.inf).all()
    else:
        assert_close(lse, reference(q, k, v)[1], LSE_TOLERANCE[dtype], "lse")
    weights = headway.attention_weights(q, k)
    assert weights.shape == (batch, heads[0], *tokens)
