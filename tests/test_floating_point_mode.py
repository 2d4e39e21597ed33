"""The caller's rounding mode and treatment of subnormal numbers: neither used nor changed."""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from helpers import (
    DTYPES,
    assert_same_bits,
    attend,
    make,
    make_qkv,
    multiplies_pairs,
    run_python,
)

import headway

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64",
    reason="this machine: its floating-point environment has another layout",
)

#: Bits of the control and status register of x86-64's vector unit (MXCSR).
MODES = {"upward": 0x4000, "downward": 0x2000, "to-zero": 0x6000, "flush-to-zero": 0x8040}
CONTROL_BITS = 0xFFC0


def control() -> int:
    """Return the control bits of this thread's register; the sticky status bits are left out."""
    environment = (ctypes.c_uint32 * 8)()
    assert ctypes.CDLL(None).fegetenv(environment) == 0
    return int(environment[7]) & CONTROL_BITS


@contextmanager
def mode(bits: int) -> Iterator[None]:
    """Set these control bits in this thread, and put back what there was."""
    library = ctypes.CDLL(None)
    before, changed = (ctypes.c_uint32 * 8)(), (ctypes.c_uint32 * 8)()
    assert library.fegetenv(before) == 0
    assert library.fegetenv(changed) == 0
    changed[7] |= bits
    library.fesetenv(changed)
    try:
        yield
    finally:
        library.fesetenv(before)


@pytest.mark.parametrize("bits", MODES.values(), ids=MODES.keys())
@pytest.mark.parametrize("dtype", DTYPES)
def test_results_do_not_depend_on_the_mode(
    dtype: str, bits: int, isa: str, some_threads: int
) -> None:
    """The same bits in every mode, subnormal values included, and the mode is still set after."""
    q, k, v = make_qkv(1, dtype, heads=(4, 2), tokens=(70, 130), head_dim=20)
    smallest = {"float64": 5e-324, "float32": 1e-45, "float16": 6e-8, "bfloat16": 9.2e-41}
    v[0, 0] = smallest[dtype]
    expected, expected_lse = attend(q, k, v)
    assert (expected[0, :2] != 0).any() or multiplies_pairs(dtype)
    with mode(bits):
        before = control()
        out, lse = attend(q, k, v)
        weights = headway.attention_weights(q, k)
        after = control()
    assert before & bits == bits
    assert after == before
    assert_same_bits(out, expected)
    assert_same_bits(lse, expected_lse, "lse")
    assert_same_bits(weights, headway.attention_weights(q, k), "weights")


@pytest.mark.parametrize("bits", MODES.values(), ids=MODES.keys())
@pytest.mark.parametrize("dtype", DTYPES)
def test_nor_does_a_projection(dtype: str, bits: int, isa: str) -> None:
    """Packed and multiplied in any mode, subnormal weights included."""
    weight, bias, x = make(1, (70, 130), dtype), make(2, (130,), dtype), make(3, (20, 70), dtype)
    weight.view(f"u{weight.itemsize}")[:, :9] = 1  # the smallest number
    bias[:9] = 0
    expected = headway.Projection(weight, bias)(x)
    with mode(bits):
        got = headway.Projection(weight, bias)(x)
    assert_same_bits(got, expected)


FRESH = """
import ctypes, json, sys
import numpy as np

library = ctypes.CDLL(None)
environment = (ctypes.c_uint32 * 8)()
library.fegetenv(environment)
environment[7] |= int(sys.argv[1])
library.fesetenv(environment)
import headway

library.fegetenv(environment)
headway.set_num_threads(3)
g = np.random.default_rng(1)
q, k, v = (g.standard_normal((1, 8, 200, 16)).astype(np.float32) for _ in range(3))
v[0, 0].view(np.uint32)[...] = 1  # the smallest number, written as such in any mode
out = headway.attention(q, k, v)
print(json.dumps([environment[7] & 0xffc0, out.view(np.uint32).ravel().tolist()]))
"""


def test_threads_made_in_another_mode() -> None:
    """Threads that start while the caller flushes to zero compute as all others do.

    Import leaves the mode alone, whether it is the usual one or another.
    """
    usual = run_python(FRESH, "0")
    flushing = run_python(FRESH, str(MODES["flush-to-zero"]))
    assert usual[0] == 0x1F80
    assert flushing[0] == 0x1F80 | MODES["flush-to-zero"]
    g = np.random.default_rng(1)
    q, k, v = (g.standard_normal((1, 8, 200, 16)).astype(np.float32) for _ in range(3))
    v[0, 0].view(np.uint32)[...] = 1
    expected = headway.attention(q, k, v).view(np.uint32).ravel().tolist()
    assert usual[1] == expected
    assert flushing[1] == expected
