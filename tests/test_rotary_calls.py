"""rotary_embedding: views, out=, in place; several threads; interruption."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from helpers import (
    DTYPES,
    HALF,
    Array,
    LendsByDLPack,
    assert_same_bits,
    in_threads,
    make,
)
from interruption import assert_interruptible
from layouts import LAYOUTS, WRITABLE

import headway

F32 = np.float32


def zeros(*shape: int, dtype: Any = F32) -> Array:
    return np.zeros(shape, dtype)


# Views, out= and in place -------------------------------------------------------------------------


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_views(dtype: str, layout: str, interleaved: bool, threads: int) -> None:
    """Any strides give the same bits, for x, for `out` and for both at once."""
    x = LAYOUTS[layout](make(1, (2, 3, 9, 10), dtype))
    options: dict[str, Any] = {"interleaved": interleaved, "rotary_dim": 6}
    before = x.copy()
    expected = headway.rotary_embedding(before, 3, **options)
    got = headway.rotary_embedding(x, 3, **options)
    assert_same_bits(got, expected)
    assert_same_bits(x.copy(), before, "x")
    assert got.flags.c_contiguous
    if layout not in WRITABLE:
        return
    out = LAYOUTS[layout](np.zeros_like(before))
    assert headway.rotary_embedding(before, 3, out=out, **options) is out
    assert_same_bits(out.copy(), expected, "out")
    assert headway.rotary_embedding(x, 3, out=x, **options) is x
    assert_same_bits(x.copy(), expected, "in place")


@pytest.mark.parametrize("layout", ["BHTD", "BTHD"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_in_place_writes_nothing_else(dtype: str, layout: str, isa: str, threads: int) -> None:
    """Queries and keys as views of one projection, (B, T, 3, H, D): values stay as they are."""
    packed = make(2, (2, 150, 3, 4, 24), dtype)
    before = packed.copy()
    for part in (0, 1):
        view = packed[:, :, part]
        view = view if layout == "BTHD" else view.swapaxes(1, 2)
        expected = headway.rotary_embedding(view.copy(), 7, layout=layout)
        assert headway.rotary_embedding(view, 7, layout=layout, out=view) is view
        assert_same_bits(view.copy(), expected)
    assert_same_bits(packed[:, :, 2].copy(), before[:, :, 2].copy(), "values")


def test_in_place_by_another_view() -> None:
    """The same elements in the same places count as x, whatever object stands for them."""
    x = make(3, (2, 3, 5, 8), "float32")
    expected = headway.rotary_embedding(x, 1)
    out = x[:]
    assert headway.rotary_embedding(LendsByDLPack(x), 1, out=out) is out
    assert_same_bits(x, expected)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", HALF)
def test_out_in_float32(dtype: str, interleaved: bool, isa: str) -> None:
    """The result unrounded: that of the same numbers in float32."""
    x = make(4, (2, 3, 9, 38), dtype)
    options: dict[str, Any] = {"interleaved": interleaved, "rotary_dim": 36}
    out = zeros(*x.shape)
    headway.rotary_embedding(x, 3, out=out, **options)
    assert_same_bits(out, headway.rotary_embedding(x.astype(F32), 3, **options))
    assert_same_bits(out.astype(x.dtype), headway.rotary_embedding(x, 3, **options))


def test_out_beside_x_in_one_piece_of_memory() -> None:
    both = make(5, (7, 16), "float32")
    expected = headway.rotary_embedding(both[:, :8].copy(), 0)
    headway.rotary_embedding(both[:, :8], 0, out=both[:, 8:])
    assert_same_bits(both[:, 8:].copy(), expected)


def test_the_reference_fills_out() -> None:
    x = make(6, (3, 5, 8), "float16")
    expected = headway.reference.rotary_embedding(x, 2, layout="BTHD")
    out = zeros(3, 5, 8, dtype="f2")[:, ::-1]
    assert headway.reference.rotary_embedding(x, 2, layout="BTHD", out=out) is out
    assert_same_bits(out.copy(), expected)
    assert headway.reference.rotary_embedding(x, 2, layout="BTHD", out=x) is x
    assert_same_bits(x, expected)


# Threads and interruption -------------------------------------------------------------------------


def test_calls_from_several_threads() -> None:
    x = make(7, (2, 8, 200, 64), "float32")
    expected = [headway.rotary_embedding(x, first) for first in range(4)]

    def call(first: int) -> None:
        for _ in range(5):
            assert_same_bits(headway.rotary_embedding(x, first), expected[first])

    in_threads([lambda first=first: call(first) for first in range(4)])  # type: ignore[misc]


INTERRUPT = """
import json, sys
import numpy as np
import headway

headway.set_num_threads(int(sys.argv[1]))
x = np.ones((4, 50, 64), np.float32)
expected = headway.rotary_embedding(x, 0)
long = np.zeros((2**26, 2), np.float16)
far = np.broadcast_to(np.int64(2**61), 2**26)  # by way of the standard library, which takes longer
print("ready", flush=True)
try:
    headway.rotary_embedding(long, far, out=long)
    print("finished", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
print(json.dumps(headway.rotary_embedding(x, 0).tobytes() == expected.tobytes()))
"""


@pytest.mark.skipif(os.name != "posix", reason="this machine: has no SIGINT")
@pytest.mark.parametrize("threads", ["1", "2"])
def test_ctrl_c(threads: str) -> None:
    """SIGINT during a call of seconds raises KeyboardInterrupt soon; the next call works."""
    assert_interruptible(INTERRUPT, threads)
