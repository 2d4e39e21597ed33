"""The arguments of attention_varlen: what is refused, with which text, and what is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import LendsByDLPack, make
from refusals import Refusal, assert_refused, cases, wrong_kind, wrong_value, zeros

import headway

Call = Callable[..., Any]
FUNCTIONS: dict[str, Call] = {
    "attention_varlen": headway.attention_varlen,
    "reference.attention_varlen": headway.reference.attention_varlen,
}
LENGTHS_Q, LENGTHS_K = (2, 0, 3), (4, 1, 2)
CU_Q, CU_K = [0, 2, 2, 5], [0, 4, 5, 7]


def packed() -> dict[str, Any]:
    """Return a call that passes: 3 sequences, 5 queries, 7 keys, 4 query heads over 2 key heads."""
    return {
        "q": make(1, (5, 4, 8), "float32"),
        "k": make(2, (7, 2, 8), "float32"),
        "v": make(3, (7, 2, 6), "float32"),
        "cu_seqlens_q": CU_Q,
        "cu_seqlens_k": CU_K,
        "out": np.full((5, 4, 6), 7.0, np.float32),
    }


OF_Q = "integer offsets from 0 to 5, the tokens of q"
OF_K = "integer offsets from 0 to 7, the tokens of k"
SUM = "np.cumsum([0, *lengths])"
CONCATENATE = "np.concatenate"
OFFSET = '"end", "start", an int or 3 ints (one for each sequence)'
OFFSET_FIX = "pass the key position at which query 0 stands"
NEW_OUT = "make it with np.empty((5, 4, 6), np.float32)"
SHARED = zeros(7, 4, 8)


def wrong_cut(value: Any, got: str) -> Refusal:
    return wrong_value("cu_seqlens_q", value, OF_Q, got, SUM)


def no_cut(value: Any, got: str) -> Refusal:
    return wrong_kind("cu_seqlens_q", value, OF_Q, got, SUM)


REFUSALS: dict[str, Refusal] = {
    # Offsets
    "cu floats": no_cut(np.array(CU_Q, float), "float64"),
    "cu float list": no_cut([0.0, 5.0], "float64"),
    "cu bools": no_cut(np.array([False, True]), "bool"),
    "cu bool list": no_cut([False, True], "bool"),
    "cu objects": no_cut(np.array(CU_Q, object), "object"),
    "cu huge": no_cut([0, 10**30, 5], "object"),
    "cu text": no_cut("05", "str"),
    "cu None": no_cut(None, "NoneType"),
    "cu int": no_cut(5, "int"),
    "cu ragged": no_cut([[0], [2, 5]], "list"),
    "cu masked": no_cut(np.ma.array(CU_Q), "MaskedArray"),
    "cu 2-D": wrong_cut([CU_Q], "shape (1, 4)"),
    "cu 0-D": wrong_cut(np.array(5), "shape ()"),
    "cu empty": wrong_cut([], "shape (0,)"),
    "cu empty array": wrong_cut(np.zeros(0, np.int32), "shape (0,)"),
    "cu begins with 1": wrong_cut([1, 2, 2, 5], "1 as the first one"),
    "cu begins below 0": wrong_cut([-1, 2, 2, 5], "-1 as the first one"),
    "cu falls": wrong_cut([0, 3, 2, 5], "2 after 3"),
    "cu falls unsigned": wrong_cut(np.array([0, 3, 2, 5], np.uint64), "2 after 3"),
    "cu wraps": wrong_cut(np.array([0, 2**63, 2, 5], np.uint64), f"2 after {2**63}"),
    "cu ends early": wrong_cut([0, 2, 2, 4], "4 as the last one"),
    "cu ends late": wrong_cut([0, 2, 2, 6], "6 as the last one"),
    "cu only 0": wrong_cut([0], "0 as the last one"),
    "cu lengths": wrong_cut(LENGTHS_Q, "2 as the first one"),
    "cu_k ends early": wrong_value("cu_seqlens_k", [0, 4, 5, 6], OF_K, "6 as the last one", SUM),
    "cu_k floats": wrong_kind("cu_seqlens_k", np.array(CU_K, float), OF_K, "float64", SUM),
    "cu_k count": wrong_value(
        "cu_seqlens_k", [0, 4, 7], "4 offsets like cu_seqlens_q", "3", "repeat an offset"
    ),
    "cu_k missing": wrong_value(
        "cu_seqlens_k", None, OF_K, "None, for those of q, up to 5", "pass the offsets of k"
    ),
    # Arrays
    "q 4-D": wrong_value(
        "q", zeros(1, 5, 4, 8), "3 axes, (total_q, heads, head_dim)", "(1, 5, 4, 8)", CONCATENATE
    ),
    "q 2-D": wrong_value("q", zeros(5, 8), "3 axes", "(5, 8)", CONCATENATE),
    "q list": wrong_kind("q", [zeros(5, 4, 8)], "a NumPy array", "list", "np.asarray(q"),
    "q integer": wrong_kind("q", zeros(5, 4, 8, dtype=int), "float32", "int64", "q.astype("),
    "k 4-D": wrong_value("k", zeros(1, 7, 2, 8), "3 axes like q", "4", "the same axes"),
    "k float64": wrong_kind(
        "k", zeros(7, 2, 8, dtype="f8"), "float32 like q", "float64", "k.astype(np.float32)"
    ),
    "k heads": wrong_value(
        "k", zeros(7, 3, 8), "divides the 4 heads of q", "3", "one key head", v=zeros(7, 3, 6)
    ),
    "v tokens": wrong_value("v", zeros(6, 2, 6), "7 tokens like k", "6", "one value for each key"),
    # Options
    "causal": wrong_kind("causal", 1, "True or False", "1 (int)", "bool(causal)"),
    "return_lse": wrong_kind("return_lse", 1, "True or False", "1 (int)", "bool(return_lse)"),
    "scale": wrong_value("scale", np.inf, "a finite number", "inf", "pass None"),
    "align name": wrong_value("align", "middle", OFFSET, "'middle'", OFFSET_FIX),
    "align 2 ints": wrong_value("align", [0, 1], OFFSET, "2 ints", OFFSET_FIX),
    "align float": wrong_kind("align", 1.0, OFFSET, "1.0 (float)", OFFSET_FIX),
    "window": wrong_value("window", 0, "1 or more", "0", "pass e.g. window=128"),
    "softcap": wrong_value("softcap", -1, "0 or more", "-1.0", "pass None"),
    "slopes": wrong_value(
        "alibi_slopes", zeros(2, 4), "shape (4,) or (3, 4)", "(2, 4)", "headway.alibi_slopes(4)"
    ),
    "sinks": wrong_value("sinks", zeros(3, 4), "shape (4,)", "(3, 4)", "pass -inf"),
    # Output
    "out shape": wrong_value("out", zeros(5, 4, 8), "(5, 4, 6)", "(5, 4, 8)", NEW_OUT),
    "out float64": wrong_kind("out", zeros(5, 4, 6, dtype="f8"), "float32", "float64", NEW_OUT),
    "out is in q": wrong_value(
        "out", SHARED[:5, :, 2:], "memory that no input uses", "overlaps q", NEW_OUT, q=SHARED[2:]
    ),
    "out is in the sinks": wrong_value(
        "out", SHARED[:5, :, 2:], "memory that no input uses", "overlaps sinks", NEW_OUT,
        sinks=SHARED[0, :, 2],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("function", "refusal"), cases(FUNCTIONS, REFUSALS))
def test_refused_with_a_text_that_helps(function: str, refusal: Refusal) -> None:
    assert_refused(FUNCTIONS[function], packed(), refusal)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("option", ["mask", "kv_lengths", "layout", "no_such_option"])
def test_what_packed_calls_do_not_take(function: str, option: str) -> None:
    with pytest.raises(TypeError, match=option):
        FUNCTIONS[function](**packed(), **{option: None})
    with pytest.raises(TypeError, match="positional"):
        FUNCTIONS[function](*packed().values(), True)


FORMS: dict[str, Callable[[list[int]], Any]] = {
    **{dtype: lambda cu, d=dtype: np.array(cu, d) for dtype in ("i1", "u1", "i4", "i8", "u8")},
    "swapped": lambda cu: np.array(cu, ">i4"),
    "strided": lambda cu: np.repeat(np.array(cu, "i4"), 2)[::2],
    "reversed": lambda cu: np.array(cu[::-1])[::-1],
    "unaligned": lambda cu: np.ndarray(len(cu), "i8", b"\0" + np.array(cu, "i8").tobytes(), 1),
    "tuple": tuple,
    "NumPy ints": lambda cu: [np.int32(n) for n in cu],
    "lent": lambda cu: LendsByDLPack(np.array(cu)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_offsets_of_every_kind(function: str, form: str) -> None:
    call, arguments = FUNCTIONS[function], packed()
    del arguments["out"]
    expected = call(**arguments)
    arguments |= {name: FORMS[form](arguments[name]) for name in ("cu_seqlens_q", "cu_seqlens_k")}
    np.testing.assert_array_equal(call(**arguments), expected)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"align": "start"},
        {"align": 1},
        {"align": [2, 0, -1]},
        {"align": np.array([2, 0, -1])},
        {"causal": False, "window": (1, 1)},
        {"window": 2, "softcap": 2.0, "sinks": [0, 1, 2, -np.inf]},
        {"alibi_slopes": headway.alibi_slopes(4)},
        {"alibi_slopes": make(4, (3, 4))},
    ],
    ids=str,
)
def test_each_sequence_is_a_call_of_its_own(
    function: str, options: dict[str, Any], isa: str, threads: int
) -> None:
    given = packed()
    out, lse = FUNCTIONS[function](**given, **options, return_lse=True)
    assert out is given["out"]
    assert (lse.shape, lse.dtype) == ((4, 5), np.dtype(np.float32))
    for n in range(3):
        rows, columns = slice(*CU_Q[n : n + 2]), slice(*CU_K[n : n + 2])
        own = dict(options)
        for name in ("align", "alibi_slopes"):
            if len(np.shape(own.get(name, 0))) == (1 if name == "align" else 2):
                own[name] = own[name][n]
        expected, expected_lse = headway.reference.attention(
            given["q"][rows].swapaxes(0, 1),
            given["k"][columns].swapaxes(0, 1),
            given["v"][columns].swapaxes(0, 1),
            return_lse=True,
            **own,
        )
        np.testing.assert_allclose(out[rows].swapaxes(0, 1), expected, rtol=2e-5, atol=2e-6)
        np.testing.assert_allclose(lse[:, rows], expected_lse, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_nothing_at_all(function: str) -> None:
    call = FUNCTIONS[function]
    out, lse = call(zeros(0, 4, 8), zeros(0, 2, 8), zeros(0, 2, 6), [0], return_lse=True)
    assert (out.shape, lse.shape) == ((0, 4, 6), (4, 0))
    assert call(zeros(0, 4, 8), zeros(3, 2, 8), zeros(3, 2, 6), [0, 0], [0, 3]).shape == (0, 4, 6)
    assert call(zeros(5, 0, 8), zeros(5, 0, 8), zeros(5, 0, 6), [0, 5]).shape == (5, 0, 6)
    assert call(zeros(5, 4, 8), zeros(5, 2, 8), zeros(5, 2, 0), [0, 5]).shape == (5, 4, 0)
    out, lse = call(zeros(3, 4, 8), zeros(0, 2, 8), zeros(0, 2, 6), [0, 3], [0, 0], return_lse=True)
    assert not out.any()
    assert (lse == -np.inf).all()
    sinks = np.arange(4.0)
    _, lse = call(
        zeros(3, 4, 8), zeros(0, 2, 8), zeros(0, 2, 6), [0, 3], [0, 0], sinks=sinks, return_lse=True
    )
    np.testing.assert_array_equal(lse, np.repeat(sinks[:, None], 3, axis=1))


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_out_of_any_strides(function: str, dtype: str) -> None:
    given = packed()
    del given["out"]
    given |= {name: given[name].astype(dtype) for name in "qkv"}
    expected = FUNCTIONS[function](**given)
    assert expected.dtype == np.dtype(dtype)
    assert expected.flags.c_contiguous
    for out in (
        np.zeros((5, 4, 6), dtype, order="F"),
        np.zeros((4, 5, 6), dtype).swapaxes(0, 1),
        np.zeros((5, 4, 12), dtype)[..., ::-2],
    ):
        assert FUNCTIONS[function](**given, out=out) is out
        np.testing.assert_array_equal(out, expected)
    if dtype == "f2":
        wide = np.zeros((5, 4, 6), np.float32)
        FUNCTIONS[function](**given, out=wide)
        np.testing.assert_array_equal(wide.astype("f2"), expected)
