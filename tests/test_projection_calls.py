"""Projection: what it refuses and how it says so, its attributes, copies, threads, interruption."""

from __future__ import annotations

import copy
import os
import pickle
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import DTYPES, Array, assert_same_bits, dtype_of, in_threads, make
from interruption import assert_interruptible

import headway
from headway import Projection

F32 = np.float32


def zeros(*shape: int, dtype: Any = F32) -> Array:
    return np.zeros(shape, dtype)


def plain() -> Projection:
    return Projection(zeros(6, 4), zeros(4))


# Refusals -----------------------------------------------------------------------------------------
BF16 = np.dtype(ml_dtypes.bfloat16)
SHARED = zeros(3, 12)
NEW_OUT = "make it with np.empty((3, 4), np.float32)"
ROLLING = np.lib.stride_tricks.as_strided(zeros(30), (3, 4), (8, 4))

BUILDING: dict[str, tuple[type[Exception], tuple[Any, ...], str]] = {
    "a list": (
        TypeError, ([[1.0]],),
        "weight: expected a NumPy array or an object with __dlpack__ or __array__, got list; "
        "convert with np.asarray(weight, dtype=np.float32)",
    ),
    "integers": (
        TypeError, (zeros(2, 2, dtype="i8"),),
        "weight: expected float32, float64, float16 or bfloat16, got int64; "
        "convert with weight.astype(np.float32)",
    ),
    "one axis": (
        ValueError, (zeros(6),),
        "weight: expected a matrix (d_in, d_out), both at least 1, got shape (6,); "
        "a torch Linear stores the transpose of it",
    ),
    "d_in 0": (
        ValueError, (zeros(0, 4),),
        "weight: expected a matrix (d_in, d_out), both at least 1, got shape (0, 4); "
        "a torch Linear stores the transpose of it",
    ),
    "bias float64": (
        TypeError, (zeros(6, 4), zeros(4, dtype="f8")),
        "bias: expected float32 like weight, got float64; convert with bias.astype(np.float32)",
    ),
    "bias of d_in": (
        ValueError, (zeros(6, 4), zeros(6)),
        "bias: expected shape (4,), got (6,); one number for each column of weight",
    ),
}  # fmt: skip

CALLING: dict[str, tuple[type[Exception], Any, Any, str]] = {
    "a number": (
        TypeError, 1.5, None,
        "x: expected a NumPy array or an object with __dlpack__ or __array__, got float; "
        "convert with np.asarray(x, dtype=np.float32)",
    ),
    "float64": (
        TypeError, zeros(3, 6, dtype="f8"), None,
        "x: expected float32 like weight, got float64; convert with x.astype(np.float32)",
    ),
    "no axis": (
        ValueError, zeros(), None,
        "x: expected shape (..., 6), one axis at least, got shape (); pass a row as x[None]",
    ),
    "width": (
        ValueError, zeros(3, 4), None,
        "x: expected 6 numbers per row (last axis) like the rows of weight, got 4 in shape (3, 4); "
        "a torch Linear stores the transpose of weight",
    ),
    "out list": (
        TypeError, zeros(3, 6), [1.0],
        f"out: expected a NumPy array without a mask, got list; {NEW_OUT}",
    ),
    "out float64": (
        TypeError, zeros(3, 6), zeros(3, 4, dtype="f8"),
        f"out: expected float32 like x, got float64; {NEW_OUT}",
    ),
    "out shape": (
        ValueError, zeros(3, 6), zeros(3, 6),
        f"out: expected shape (3, 4), got (3, 6); {NEW_OUT}",
    ),
    "out read-only": (
        ValueError, zeros(3, 6), np.broadcast_to(zeros(4), (3, 4)),
        f"out: expected a writeable array, got a read-only one; {NEW_OUT}",
    ),
    "out is in x": (
        ValueError, SHARED[:, :6], SHARED[:, 5:9],
        f"out: expected memory that no input uses, got an array that overlaps x; {NEW_OUT}",
    ),
    "out rolls": (
        ValueError, zeros(3, 6), ROLLING,
        "out: expected a place in memory for each element, got an array whose elements overlap "
        f"(strides (8, 4)); {NEW_OUT}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BUILDING)
def test_refused_weights(name: str) -> None:
    error, arguments, text = BUILDING[name]
    with pytest.raises(error) as caught:
        Projection(*arguments)
    assert str(caught.value) == text


@pytest.mark.parametrize("name", CALLING)
def test_refused_calls(name: str) -> None:
    error, x, out, text = CALLING[name]
    before = out.tobytes() if isinstance(out, np.ndarray) else None
    with pytest.raises(error) as caught:
        plain()(x, out=out)
    assert str(caught.value) == text
    assert before is None or out.tobytes() == before


def test_refused_calls_of_16_bits() -> None:
    project = Projection(zeros(6, 4, dtype=BF16))
    with pytest.raises(TypeError) as caught:
        project(zeros(3, 6))
    assert str(caught.value) == (
        "x: expected bfloat16 like weight, got float32; convert with x.astype('bfloat16')"
    )
    with pytest.raises(TypeError) as caught:
        project(zeros(3, 6, dtype=BF16), out=zeros(3, 4, dtype="f2"))
    assert str(caught.value) == (
        "out: expected bfloat16 like x, or float32, got float16; "
        "make it with np.empty((3, 4), x.dtype)"
    )


def test_out_is_a_keyword() -> None:
    with pytest.raises(TypeError, match="positional"):
        plain()(zeros(3, 6), zeros(3, 4))  # type: ignore[call-arg]


def test_out_may_lie_between_the_rows_of_x() -> None:
    both = make(1, (5, 10), "float32")
    project = Projection(make(2, (6, 4), "float32"))
    expected = project(both[:, :6].copy())
    project(both[:, :6], out=both[:, 6:])
    assert_same_bits(both[:, 6:], expected)


# Attributes and copies ----------------------------------------------------------------------------


def test_attributes() -> None:
    weight, bias = make(1, (6, 4), "float64"), make(2, (4,), "float64")
    project = Projection(np.asfortranarray(weight), bias)
    assert (project.d_in, project.d_out, project.num_parameters) == (6, 4, 28)
    assert project.dtype == np.float64
    assert repr(project) == (
        "Projection(d_in=6, d_out=4, bias=True, dtype=float64, num_parameters=28)"
    )
    assert Projection(weight).bias is None
    expected, kept = project(weight.T[:3, :].repeat(2, 1)[:, :6]), weight.copy()
    weight[...] = bias[...] = 0  # it was copied in
    assert_same_bits(project.weight, kept)
    assert_same_bits(project(kept.T[:3, :].repeat(2, 1)[:, :6]), expected)
    for array in (project.weight, project.bias):
        assert array is not None
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True
    for name in ("weight", "bias", "d_in", "dtype"):
        with pytest.raises(AttributeError):
            setattr(project, name, None)


@pytest.mark.parametrize("dtype", DTYPES)
def test_copies_and_pickles(dtype: str) -> None:
    project = Projection(make(1, (70, 90), dtype), make(2, (90,), dtype))
    x = make(3, (9, 70), dtype)
    expected = project(x)
    dumped = pickle.dumps(project)
    assert len(dumped) < project.num_parameters * dtype_of(dtype).itemsize + 2000
    for other in (copy.copy(project), copy.deepcopy(project), pickle.loads(dumped)):
        assert type(other) is Projection
        assert repr(other) == repr(project)
        assert_same_bits(other.weight, project.weight)
        assert_same_bits(other(x), expected)


def test_out_of_a_subclass_is_filled_as_memory() -> None:
    class Deaf(np.ndarray):  # type: ignore[type-arg]
        def __setitem__(self, *_: Any) -> None:
            raise AssertionError("out[...] = was called")

    project, x = Projection(make(1, (6, 4), "float32")), make(2, (3, 6), "float32")
    for memory in (zeros(3, 8)[:, ::2], zeros(3, 4), zeros(4, 3).T):
        out = memory.view(Deaf)
        assert project(x, out=out) is out
        assert_same_bits(np.array(memory), project(x))


@pytest.mark.parametrize("shape", [(2**46, 1), (2**58, 1), (2**31, 2**27, 1), (2**60, 1)])
def test_a_result_no_machine_can_hold(shape: tuple[int, ...]) -> None:
    project = Projection(np.ones((1, 1024), F32))
    with pytest.raises(MemoryError, match=re.escape(str((*shape[:-1], 1024)))):
        project(np.broadcast_to(F32(1), shape))


def test_foreign_arrays_are_read() -> None:
    class Foreign:
        def __array__(self, *_: Any, **__: Any) -> Array:
            return np.eye(2, dtype=F32)

    project = Projection(Foreign(), np.arange(2, dtype=F32))
    np.testing.assert_array_equal(project(Foreign()), [[1, 1], [0, 2]])


# Threads ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("any_threads")
def test_many_threads_and_instruction_sets_at_once() -> None:
    """The first calls pack at the same time, others change ISA and threads meanwhile."""
    before = headway.isa()
    weight, x = make(1, (130, 300), "float32"), make(2, (20, 130), "float32")
    expected = []
    for name in headway.available_isas():
        headway.set_isa(name)
        expected.append(Projection(weight)(x).tobytes())
    for _ in range(20):
        project = Projection(weight)

        def compute(project: Projection = project) -> None:
            for _ in range(5):
                assert project(x).tobytes() in expected

        def change() -> None:
            for n in range(20):
                headway.set_num_threads(1 + n % 3)
                headway.set_isa(headway.available_isas()[n % len(expected)])
                headway.release_memory()

        try:
            in_threads([compute, compute, compute, change])
        finally:
            headway.set_isa(before)


def test_the_weight_is_packed_for_the_isa_in_use() -> None:
    before = headway.isa()
    project, x = Projection(make(1, (33, 50), "float32")), make(2, (4, 33), "float32")
    try:
        for _ in range(2):
            for name in headway.available_isas():
                headway.set_isa(name)
                assert_same_bits(project(x), Projection(project.weight)(x), name)
    finally:
        headway.set_isa(before)


INTERRUPT = """
import json, sys
import numpy as np
import headway

headway.set_num_threads(int(sys.argv[1]))
g = np.random.default_rng(1)
project = headway.Projection(g.standard_normal((2**16, 64), np.float32))
x = g.standard_normal((7, 2**16), np.float32)
expected = project(x)
long = np.broadcast_to(x[0], (2**18, 2**16))  # 2 TFLOP
print("ready", flush=True)
try:
    project(long)
    print("finished", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
print(json.dumps(project(x).tobytes() == expected.tobytes()))
"""


@pytest.mark.skipif(os.name != "posix", reason="this machine: has no SIGINT")
@pytest.mark.parametrize("threads", ["1", "2"])
def test_ctrl_c(threads: str) -> None:
    """SIGINT during a call of seconds raises KeyboardInterrupt soon; the next call works."""
    assert_interruptible(INTERRUPT, threads)
