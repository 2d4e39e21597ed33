"""Every refused option: the exception, a text with argument, wanted, got and fix."""

from __future__ import annotations

import inspect

import ml_dtypes
import numpy as np
import pytest
from refusals import FUNCTIONS, Refusal, assert_refused, cases, good, wrong_kind, wrong_value, zeros

from headway import Trace

SCORES = (2, 4, 5, 7)
MASK = "bool, float32, float64, float16 or bfloat16"
TO_BOOL = "mask.astype(bool), True where the query may attend"
AXES = "np.asarray(mask)"
BROADCAST = "a shape that broadcasts to (2, 4, 5, 7), (batch, heads, queries, keys)"
LENGTH_1 = "axes of length 1"
WINDOW = "a number of keys, 1 or more, or (left, right)"
WINDOW_FIX = "pass e.g. window=128, or window=(127, 0)"
LENGTHS = "2 ints from 0 to 7, the valid keys of each batch entry"
LENGTHS_FIX = "pass one int for each batch entry"
SLOPES = "shape (4,) or (2, 4), one number for each head"
MAKE_SLOPES = "headway.alibi_slopes(4)"
NO_BIAS = "pass 0 for a head without a bias"
NO_SINK = "pass -inf for a head without a sink"
REAL = "real numbers"
NEW_OUT = "make it with np.empty((2, 4, 5, 6), np.float32)"
BFLOAT16 = {name: zeros(*x.shape, dtype=ml_dtypes.bfloat16) for name, x in good().items()}
FLOAT64 = {name: zeros(*x.shape, dtype="f8") for name, x in good().items()}
SHARED = zeros(2, 4, 5, 14)
SHARED_HEADS = zeros(2, 4, 5, 6)

REFUSALS: dict[str, Refusal] = {
    # Masks
    **{
        f"mask {dtype}": wrong_kind("mask", zeros(*SCORES, dtype=dtype), MASK, dtype, TO_BOOL)
        for dtype in ("int8", "uint8", "int32", "int64", "uint64")
    },
    "mask complex": wrong_kind("mask", zeros(7, dtype="c8"), MASK, "complex64", "mask.real"),
    "mask object": wrong_kind(
        "mask", zeros(7, dtype=object), MASK, "object", "mask.astype(np.float32)"
    ),
    "mask text": wrong_kind("mask", zeros(7, dtype="U1"), MASK, "str", "mask.astype(bool)"),
    "mask date": wrong_kind("mask", zeros(7, dtype="M8[s]"), MASK, "datetime64", "astype(bool)"),
    "mask long double": wrong_kind(
        "mask", zeros(7, dtype=np.longdouble), MASK, np.dtype(np.longdouble).name,
        "mask.astype(np.float32)",
    ),
    "mask float8": wrong_kind(
        "mask", zeros(7, dtype=ml_dtypes.float8_e5m2), MASK, "float8_e5m2",
        "mask.astype(np.float32)",
    ),
    "mask swapped": wrong_kind(
        "mask", zeros(7, dtype=">f4"), "native byte order", "byte-swapped float32",
        "mask.astype(mask.dtype.newbyteorder('='))",
    ),
    "mask masked": wrong_kind(
        "mask", np.ma.zeros(7, bool), "without a mask", "a masked array", "mask.filled(0)"
    ),
    "mask list": wrong_kind("mask", [True] * 7, f"an array of {MASK}", "list", AXES),
    "mask True": wrong_kind("mask", True, f"an array of {MASK}", "bool", AXES),
    "mask text name": wrong_kind("mask", "causal", f"an array of {MASK}", "str", AXES),
    "mask short": wrong_value("mask", zeros(6, dtype="?"), BROADCAST, "(6,)", LENGTH_1),
    "mask (B, Tk)": wrong_value("mask", zeros(2, 7, dtype="?"), BROADCAST, "(2, 7)", LENGTH_1),
    "mask (Hkv, Tq, Tk)": wrong_value("mask", zeros(2, 5, 7), BROADCAST, "(2, 5, 7)", LENGTH_1),
    "mask 5-D": wrong_value(
        "mask", zeros(1, 1, 1, 1, 7), BROADCAST, "(1, 1, 1, 1, 7)", LENGTH_1
    ),
    "mask turned": wrong_value(
        "mask", zeros(2, 5, 4, 7), BROADCAST, "(2, 5, 4, 7)", LENGTH_1, layout="BTHD",
        q=zeros(2, 5, 4, 8), k=zeros(2, 7, 2, 8), v=zeros(2, 7, 2, 6), out=zeros(2, 5, 4, 6),
    ),
    "mask 3-D": wrong_value(
        "mask", zeros(1, 4, 5, 7), "broadcasts to (4, 5, 7), (heads, queries, keys)",
        "(1, 4, 5, 7)", LENGTH_1,
        q=zeros(4, 5, 8), k=zeros(2, 7, 8), v=zeros(2, 7, 6), out=zeros(4, 5, 6),
    ),
    "mask 2-D": wrong_value(
        "mask", zeros(1, 5, 7), "broadcasts to (5, 7), (queries, keys)", "(1, 5, 7)", LENGTH_1,
        q=zeros(5, 8), k=zeros(7, 8), v=zeros(7, 6), out=zeros(5, 6),
    ),
    # Windows
    "window 0": wrong_value("window", 0, WINDOW, "0", WINDOW_FIX),
    "window -1": wrong_value("window", -1, WINDOW, "-1", WINDOW_FIX),
    "window array 0": wrong_value("window", np.int64(0), WINDOW, "0", WINDOW_FIX),
    "window (-2, 0)": wrong_value("window", (-2, 0), "-1 or more each", "(-2, 0)", WINDOW_FIX),
    "window (0, -2)": wrong_value("window", [0, -2], "-1 or more each", "(0, -2)", WINDOW_FIX),
    "window 1 number": wrong_value("window", (3,), WINDOW, "1 numbers", WINDOW_FIX),
    "window 3 numbers": wrong_value("window", range(3), WINDOW, "3 numbers", WINDOW_FIX),
    "window float": wrong_kind("window", 3.0, WINDOW, "3.0 (float)", WINDOW_FIX),
    "window bool": wrong_kind("window", True, WINDOW, "True (bool)", WINDOW_FIX),
    "window floats": wrong_kind("window", (1.0, 0), WINDOW, "(1.0, 0) (tuple)", WINDOW_FIX),
    "window None": wrong_kind("window", (None, 0), WINDOW, "(None, 0) (tuple)", WINDOW_FIX),
    "window text": wrong_kind("window", "all", WINDOW, "'all' (str)", WINDOW_FIX),
    "window 2-D": wrong_kind("window", zeros(1, 2, dtype=int), WINDOW, "ndarray", WINDOW_FIX),
    "window NumPy floats": wrong_kind("window", np.ones(2), WINDOW, "ndarray", WINDOW_FIX),
    # Soft cap
    "softcap bool": wrong_kind("softcap", True, "a real number or None", "True (bool)", "float("),
    "softcap text": wrong_kind("softcap", "5", "a real number or None", "'5' (str)", "float("),
    "softcap array": wrong_kind("softcap", zeros(1), "a real number or None", "ndarray", "float("),
    "softcap negative": wrong_value("softcap", -1.0, "0 or more", "-1.0", "pass None"),
    "softcap NaN": wrong_value("softcap", np.nan, "a finite number", "nan", "pass None"),
    "softcap inf": wrong_value("softcap", np.inf, "a finite number", "inf", "pass None"),
    "softcap too large": wrong_value("softcap", 10**400, "a finite number", "inf", "pass None"),
    # Slopes
    "slopes number": wrong_kind("alibi_slopes", 0.5, "a NumPy array", "float", "np.asarray("),
    "slopes text": wrong_kind("alibi_slopes", "abcd", "a NumPy array", "str", "np.asarray("),
    "slopes bool": wrong_kind("alibi_slopes", [True] * 4, REAL, "bool", "np.asarray("),
    "slopes complex": wrong_kind("alibi_slopes", [1j] * 4, REAL, "complex128", "np.asarray("),
    "slopes object": wrong_kind("alibi_slopes", [None] * 4, REAL, "object", "np.asarray("),
    "slopes ragged": wrong_kind("alibi_slopes", [[1], [1, 2]], REAL, "[[1], [1, 2]]", "np.asarray"),
    "slopes masked": wrong_kind("alibi_slopes", np.ma.ones(4), "without", "masked", "filled(0)"),
    "slopes 3": wrong_value("alibi_slopes", zeros(3), SLOPES, "(3,)", MAKE_SLOPES),
    "slopes (4, 2)": wrong_value("alibi_slopes", zeros(4, 2), SLOPES, "(4, 2)", MAKE_SLOPES),
    "slopes (1, 4)": wrong_value("alibi_slopes", zeros(1, 4), SLOPES, "(1, 4)", MAKE_SLOPES),
    "slopes 0-D": wrong_value("alibi_slopes", np.float32(1), SLOPES, "()", MAKE_SLOPES),
    "slopes NaN": wrong_value(
        "alibi_slopes", [0, 0, np.nan, 0], "finite in float32", "nan", NO_BIAS
    ),
    "slopes inf": wrong_value(
        "alibi_slopes", [0, 0, -np.inf, 0], "finite in float64", "-inf", NO_BIAS, **FLOAT64
    ),
    "slopes too large": wrong_value(
        "alibi_slopes", [0, 1e39, 0, 0], "finite in float32", "1e+39", NO_BIAS, **BFLOAT16
    ),
    # Sinks
    "sinks number": wrong_kind("sinks", 0.5, "a NumPy array", "float", "np.asarray("),
    "sinks bool": wrong_kind("sinks", zeros(4, dtype="?"), REAL, "bool", "np.asarray(sinks"),
    "sinks complex": wrong_kind("sinks", zeros(4, dtype="c8"), REAL, "complex64", "np.asarray("),
    "sinks date": wrong_kind("sinks", zeros(4, dtype="M8[s]"), REAL, "datetime64", "np.asarray("),
    "sinks text": wrong_kind("sinks", ["1"] * 4, REAL, "str", "np.asarray(sinks, np.float32)"),
    "sinks 2 heads": wrong_value("sinks", zeros(2), "shape (4,)", "(2,)", NO_SINK),
    "sinks (2, 4)": wrong_value("sinks", zeros(2, 4), "shape (4,)", "(2, 4)", NO_SINK),
    "sinks NaN": wrong_value("sinks", [0, np.nan, 0, 0], "-inf or numbers", "nan", NO_SINK),
    "sinks inf": wrong_value("sinks", [0, 0, 0, np.inf], "-inf or numbers", "inf", NO_SINK),
    "sinks too large": wrong_value("sinks", [0, 0, 1e39, 0], "in float32", "1e+39", NO_SINK),
    # Lengths
    "lengths int": wrong_kind("kv_lengths", 3, LENGTHS, "3 (int)", LENGTHS_FIX),
    "lengths floats": wrong_kind("kv_lengths", [1.0, 2.0], LENGTHS, "[1.0, 2.0]", LENGTHS_FIX),
    "lengths bools": wrong_kind("kv_lengths", [True, True], LENGTHS, "[True, True]", LENGTHS_FIX),
    "lengths text": wrong_kind("kv_lengths", "ab", LENGTHS, "'ab' (str)", LENGTHS_FIX),
    "lengths mask": wrong_kind("kv_lengths", np.ones(2, bool), LENGTHS, "ndarray", LENGTHS_FIX),
    "lengths 0-D": wrong_kind("kv_lengths", np.array(3), LENGTHS, "ndarray", LENGTHS_FIX),
    "lengths 2-D": wrong_kind(
        "kv_lengths", np.ones((2, 1), int), LENGTHS, "ndarray", LENGTHS_FIX
    ),
    "lengths masked": wrong_kind(
        "kv_lengths", np.ma.ones(2, int), LENGTHS, "(MaskedArray)", LENGTHS_FIX
    ),
    "lengths 3 ints": wrong_value("kv_lengths", [1, 2, 3], LENGTHS, "3 ints", LENGTHS_FIX),
    "lengths none": wrong_value("kv_lengths", np.ones(0, int), LENGTHS, "0 ints", LENGTHS_FIX),
    "lengths -1": wrong_value("kv_lengths", [7, -1], LENGTHS, "-1 for entry 1", "at most"),
    "lengths 8": wrong_value("kv_lengths", [8, 0], LENGTHS, "8 for entry 0", "at most"),
    # Output
    "out is in the mask": wrong_value(
        "out", SHARED[..., :6], "memory that no input uses", "overlaps mask", NEW_OUT,
        mask=SHARED[..., 5:12],
    ),
    "out is in the bool mask": wrong_value(
        "out", SHARED[..., :6], "memory that no input uses", "overlaps mask", NEW_OUT,
        mask=SHARED.view("?")[..., :7],
    ),
    "out is in the slopes": wrong_value(
        "out", SHARED_HEADS, "memory that no input uses", "overlaps alibi_slopes", NEW_OUT,
        alibi_slopes=SHARED_HEADS[:, :, 0, 0],
    ),
    "out is in the sinks": wrong_value(
        "out", SHARED_HEADS, "memory that no input uses", "overlaps sinks", NEW_OUT,
        sinks=SHARED_HEADS[1, :, 4, 5],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("function", "refusal"), cases(FUNCTIONS, REFUSALS))
def test_refused_with_a_text_that_helps(function: str, refusal: Refusal) -> None:
    assert_refused(FUNCTIONS[function], good(), refusal)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_numbers_at_the_edge_raise_no_flag(function: str) -> None:
    """Rounded to 0 or to no sink in float32, without a word even where NumPy's errors raise."""
    arguments = {name: x for name, x in good().items() if name != "out"}
    if "v" not in inspect.signature(FUNCTIONS[function]).parameters:
        del arguments["v"]
    edges = {"alibi_slopes": [1e-50, -1e-320, 0, 3e38], "sinks": [-1e300, 1e-310, -np.inf, 0]}
    with np.errstate(all="raise"):
        result = FUNCTIONS[function](**arguments, **edges)
    result = result[-1].array if isinstance(result, Trace) else result
    assert not np.isnan(result).any()
