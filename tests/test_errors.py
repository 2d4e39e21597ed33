"""Every refused call: the exception, a text with argument, wanted, got and fix, `out` untouched."""

from __future__ import annotations

import inspect
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from refusals import FUNCTIONS, Refusal, assert_refused, cases, good, wrong_kind, wrong_value, zeros

F32 = np.float32


class Unreadable:
    """An array of a device that NumPy cannot reach."""

    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError("it lies on another device")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


FOUR = "float32, float64, float16 or bfloat16"
NO_ARRAY = "a NumPy array or an object with __dlpack__ or __array__"
AS_ARRAY = "np.asarray({name}, dtype=np.float32)"
GROUP = "pass one key head for each group of query heads"
OFFSET = '"end", "start", an int or 2 ints'
OFFSET_FIX = "pass the key position at which query 0 stands"
NAMES_FIX = "pass one of these names"
NEW_OUT = "make it with np.empty((2, 4, 5, 6), np.float32)"
SHARED = np.zeros((2, 4, 5, 14), F32)

REFUSALS: dict[str, Refusal] = {
    # Kinds of objects and dtypes, for each of the three arrays
    **{
        f"{name} {what}": wrong_kind(name, value, wanted, got, fix.format(name=name))
        for name, shape in (("q", (2, 4, 5, 8)), ("k", (2, 2, 7, 8)), ("v", (2, 2, 7, 6)))
        for what, value, wanted, got, fix in (
            ("list", zeros(*shape).tolist(), NO_ARRAY, "list", AS_ARRAY),
            ("None", None, NO_ARRAY, "NoneType", AS_ARRAY),
            ("number", 1.5, NO_ARRAY, "float", AS_ARRAY),
            ("text", "q", NO_ARRAY, "str", AS_ARRAY),
            ("on a device", Unreadable(), "NumPy can read", "Unreadable (it lies", "convert it"),
            ("masked", np.ma.zeros(shape, F32), "without a mask", "masked", "{name}.filled(0)"),
            ("swapped", zeros(*shape, dtype=">f4"), "native byte order", "byte-swapped float32",
             "{name}.astype({name}.dtype.newbyteorder('='))"),
            ("integer", zeros(*shape, dtype="i8"), FOUR, "int64", "{name}.astype(np.float32)"),
            ("boolean", zeros(*shape, dtype="?"), FOUR, "bool", "{name}.astype(np.float32)"),
            ("object", zeros(*shape, dtype=object), FOUR, "object", "{name}.astype(np.float32)"),
            ("complex", zeros(*shape, dtype="c8"), FOUR, "complex64", "{name}.real"),
            ("text array", zeros(*shape, dtype="S4"), FOUR, "bytes", "{name}.astype(np.float32)"),
        )
    },
    "k float64": wrong_kind(
        "k", zeros(2, 2, 7, 8, dtype="f8"), "float32 like q", "float64", "k.astype(np.float32)"
    ),
    "v float16": wrong_kind(
        "v", zeros(2, 2, 7, 6, dtype="f2"), "float32 like q", "float16", "v.astype(np.float32)"
    ),
    "q bfloat16": Refusal(
        "k", "bfloat16 like q", "float32", "k.astype(q.dtype)", TypeError,
        {"q": zeros(2, 4, 5, 8, dtype=ml_dtypes.bfloat16)},
    ),
    # Ranks and shapes
    "q 1-D": wrong_value("q", zeros(8), "2, 3 or 4 axes", "shape (8,)", "q[None, :]"),
    "q 0-D": wrong_value("q", zeros(), "2, 3 or 4 axes", "shape ()", "add axes"),
    "q scalar": wrong_value("q", F32(1), "2, 3 or 4 axes", "shape ()", "add axes"),
    "q 5-D": wrong_value(
        "q", zeros(1, 2, 4, 5, 8), "2, 3 or 4 axes", "shape (1, 2, 4, 5, 8)", "reshape"
    ),
    "k 3-D": wrong_value(
        "k", zeros(2, 7, 8), "4 axes like q", "3 in shape (2, 7, 8)", "the same axes"
    ),
    "v 2-D": wrong_value("v", zeros(7, 6), "4 axes like q", "2 in shape (7, 6)", "the same axes"),
    "head_dim 0": wrong_value(
        "q", zeros(2, 4, 5, 0), "at least 1", "0 in shape (2, 4, 5, 0)", "drop empty heads",
        k=zeros(2, 2, 7, 0),
    ),
    "k batch": wrong_value(
        "k", zeros(3, 2, 7, 8), "batch 2 like q", "3 in shape (3, 2, 7, 8)", "np.broadcast_to(k"
    ),
    "v batch": wrong_value(
        "v", zeros(1, 2, 7, 6), "batch 2 like q", "1 in shape (1, 2, 7, 6)", "np.broadcast_to(v"
    ),
    "k head_dim": wrong_value(
        "k", zeros(2, 2, 7, 9), "head_dim 8 like q", "9 in shape (2, 2, 7, 9)", "equally long"
    ),
    "k heads 3": wrong_value(
        "k", zeros(2, 3, 7, 8), "divides the 4 heads of q", "3 in shape", GROUP,
        v=zeros(2, 3, 7, 6),
    ),
    "k heads 8": wrong_value(
        "k", zeros(2, 8, 7, 8), "divides the 4 heads of q", "8 in shape", GROUP,
        v=zeros(2, 8, 7, 6),
    ),
    "k heads 0": wrong_value(
        "k", zeros(2, 0, 7, 8), "at least 1 head for the 4 heads of q", "0 in shape", GROUP,
        v=zeros(2, 0, 7, 6),
    ),
    "v heads": wrong_value(
        "v", zeros(2, 4, 7, 6), "2 heads like k", "4 in shape (2, 4, 7, 6)", "one value head"
    ),
    "v tokens": wrong_value(
        "v", zeros(2, 2, 6, 6), "7 tokens like k", "6 in shape (2, 2, 6, 6)", "one value for each"
    ),
    "layout taken wrong": wrong_value(
        "layout", "BTHD", "divides the 5 heads of q", "7 in shape", GROUP, argument_in_text="k"
    ),
    # Options
    "causal number": wrong_kind("causal", 1, "True or False", "1 (int)", "bool(causal)"),
    "causal None": wrong_kind("causal", None, "True or False", "None", "bool(causal)"),
    "return_lse text": wrong_kind(
        "return_lse", "yes", "True or False", "'yes' (str)", "bool(return_lse)"
    ),
    "layout name": wrong_value("layout", "TBHD", '"BHTD" or "BTHD"', "'TBHD'", NAMES_FIX),
    "layout case": wrong_value("layout", "bhtd", '"BHTD" or "BTHD"', "'bhtd'", NAMES_FIX),
    "layout None": wrong_kind("layout", None, '"BHTD" or "BTHD"', "NoneType", NAMES_FIX),
    "stage name": wrong_value("stage", "raw", '"scaled", "capped" or "masked"', "'raw'", NAMES_FIX),
    "stage number": wrong_kind("stage", 1, '"scaled", "capped" or "masked"', "int", NAMES_FIX),
    "scale bool": wrong_kind("scale", True, "a real number or None", "True (bool)", "float(scale)"),
    "scale text": wrong_kind("scale", "1", "a real number or None", "'1' (str)", "float(scale)"),
    "scale complex": wrong_kind("scale", 1j, "a real number", "complex", "float(scale)"),
    "scale array": wrong_kind("scale", zeros(2), "a real number", "ndarray", "float(scale)"),
    "scale NaN": wrong_value("scale", np.nan, "a finite number", "nan", "pass None"),
    "scale inf": wrong_value("scale", -np.inf, "a finite number", "-inf", "pass None"),
    "scale float32 inf": wrong_value("scale", F32(np.inf), "a finite number", "inf", "pass None"),
    "scale too large": wrong_value("scale", 10**400, "a finite number", "inf", "pass None"),
    "align name": wrong_value("align", "middle", OFFSET, "'middle'", OFFSET_FIX),
    "align bool": wrong_kind("align", True, OFFSET, "True (bool)", OFFSET_FIX),
    "align NumPy bool": wrong_kind("align", np.True_, OFFSET, "True", OFFSET_FIX),
    "align float": wrong_kind("align", 1.0, OFFSET, "1.0 (float)", OFFSET_FIX),
    "align None": wrong_kind("align", None, OFFSET, "None", OFFSET_FIX),
    "align floats": wrong_kind("align", np.ones(2), OFFSET, "array([1., 1.])", OFFSET_FIX),
    "align date": wrong_kind("align", np.datetime64(1, "ns"), OFFSET, "datetime64", OFFSET_FIX),
    "align dates": wrong_kind("align", np.zeros(2, "M8[ns]"), OFFSET, "datetime64", OFFSET_FIX),
    "align times": wrong_kind("align", np.zeros(2, "m8[ns]"), OFFSET, "timedelta64", OFFSET_FIX),
    "align masked": wrong_kind("align", np.ma.zeros(2, int), OFFSET, "masked_array", OFFSET_FIX),
    "align masked 0-D": wrong_kind("align", np.ma.array(1), OFFSET, "Masked", OFFSET_FIX),
    "align NumPy float": wrong_kind("align", np.float32(1), OFFSET, "float32", OFFSET_FIX),
    "align 0-D float": wrong_kind("align", np.array(1.0), OFFSET, "array(1.)", OFFSET_FIX),
    "align bools": wrong_kind("align", [True, False], OFFSET, "[True, False]", OFFSET_FIX),
    "align bytes": wrong_kind("align", b"ab", OFFSET, "b'ab'", OFFSET_FIX),
    "align nested": wrong_kind("align", [[1, 2]], OFFSET, "[[1, 2]]", OFFSET_FIX),
    "align 3 ints": wrong_value("align", [1, 2, 3], OFFSET, "3 ints", OFFSET_FIX),
    "align 1 int": wrong_value("align", np.array([1]), OFFSET, "1 ints", OFFSET_FIX),
    "align 2-D": wrong_value("align", np.ones((2, 1), int), OFFSET, "shape (2, 1)", OFFSET_FIX),
    # Output
    "out list": wrong_kind("out", [0.0], "a NumPy array", "list", NEW_OUT),
    "out masked": wrong_kind(
        "out", np.ma.zeros((2, 4, 5, 6), F32), "without a mask", "MaskedArray", NEW_OUT
    ),
    "out float64": wrong_kind(
        "out", zeros(2, 4, 5, 6, dtype="f8"), "float32 like q", "float64", NEW_OUT
    ),
    "out swapped": wrong_kind(
        "out", zeros(2, 4, 5, 6, dtype=">f4"), "float32 like q", "byte-swapped float32", NEW_OUT
    ),
    "out for float64": Refusal(
        "out", "float64 like q", "float32", "np.empty((2, 4, 5, 6), np.float64)", TypeError,
        {name: good()[name].astype("f8") for name in "qkv"},
    ),
    "out for float16": Refusal(
        "out", "float16 like q, or float32", "float64", "np.empty((2, 4, 5, 6), np.float16)",
        TypeError,
        {name: good()[name].astype("f2") for name in "qkv"}
        | {"out": zeros(2, 4, 5, 6, dtype="f8")},
    ),
    "out for bfloat16": Refusal(
        "out", "bfloat16 like q, or float32", "float16", "np.empty((2, 4, 5, 6), q.dtype)",
        TypeError,
        {name: good()[name].astype(ml_dtypes.bfloat16) for name in "qkv"}
        | {"out": zeros(2, 4, 5, 6, dtype="f2")},
    ),
    "out shape": wrong_value("out", zeros(2, 4, 5, 8), "(2, 4, 5, 6)", "(2, 4, 5, 8)", NEW_OUT),
    "out rank": wrong_value("out", zeros(4, 5, 6), "(2, 4, 5, 6)", "(4, 5, 6)", NEW_OUT),
    "out read-only": wrong_value(
        "out", np.broadcast_to(zeros(2, 4, 5, 6), (2, 4, 5, 6)), "writeable", "read-only", NEW_OUT
    ),
    "out is in q": wrong_value(
        "out", SHARED[..., 2:8], "memory that no input uses", "overlaps q", NEW_OUT,
        q=SHARED[..., :8],
    ),
    "out is in k": wrong_value(
        "out", SHARED[..., :6], "memory that no input uses", "overlaps k", NEW_OUT,
        k=SHARED.reshape(-1)[:224].reshape(2, 2, 7, 8),
    ),
    "out is in v": wrong_value(
        "out", SHARED[..., :6], "memory that no input uses", "overlaps v", NEW_OUT,
        v=SHARED.reshape(-1)[-168:].reshape(2, 2, 7, 6)[:, :, ::-1],
    ),
    "out repeats": wrong_value(
        "out", np.lib.stride_tricks.as_strided(zeros(4, 5, 6), (2, 4, 5, 6), (0, 120, 24, 4)),
        "a place in memory for each element", "overlap (strides (0, 120, 24, 4))", NEW_OUT,
    ),
    "out rolls": wrong_value(
        "out", np.lib.stride_tricks.as_strided(zeros(300), (2, 4, 5, 6), (480, 120, 20, 4)),
        "a place in memory for each element", "overlap (strides (480, 120, 20, 4))", NEW_OUT,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("function", "refusal"), cases(FUNCTIONS, REFUSALS))
def test_refused_with_a_text_that_helps(function: str, refusal: Refusal) -> None:
    assert_refused(FUNCTIONS[function], good(), refusal)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_options_are_keywords_and_known(function: str) -> None:
    call = FUNCTIONS[function]
    arrays = [good()[name] for name in "qkv" if name in inspect.signature(call).parameters]
    with pytest.raises(TypeError, match="positional"):
        call(*arrays, True)
    for option in ("training", "no_such_option"):
        with pytest.raises(TypeError, match=option):
            call(*arrays, **{option: None})
