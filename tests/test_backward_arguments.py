"""The arguments of the backward pass: what is refused, with which text, and what is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import DTYPES, Array, LendsByDLPack, attend, dtype_of, lse_dtype, make
from refusals import Refusal, assert_refused, cases, good, wrong_kind, wrong_value, zeros
from test_arguments import BecomesAnArray, as_subclass
from test_errors import REFUSALS as OF_ARRAYS
from test_options_errors import REFUSALS as OF_OPTIONS
from test_varlen_arguments import CU_K, CU_Q, packed
from test_varlen_arguments import REFUSALS as OF_PACKED

import headway

Call = Callable[..., Any]
FUNCTIONS: dict[str, Call] = {
    "attention_backward": headway.attention_backward,
    "reference.attention_backward": headway.reference.attention_backward,
}
VARLEN: dict[str, Call] = {
    "attention_varlen_backward": headway.attention_varlen_backward,
    "reference.attention_varlen_backward": headway.reference.attention_varlen_backward,
}
RESULT = (2, 4, 5, 6)
F32 = "float32 like q"
FORWARD = "return_lse=True"
ROWS = "(2, 4, 5), one number for each query and head"
HALF = {name: good()[name].astype("f2") for name in "qkv"}
BRAIN = {name: good()[name].astype(ml_dtypes.bfloat16) for name in "qkv"}
DOUBLE = {name: good()[name].astype("f8") for name in "qkv"}


def call() -> dict[str, Any]:
    """Return a call of the backward pass that passes."""
    return good() | {
        "out": zeros(*RESULT),
        "grad_out": zeros(*RESULT),
        "lse": zeros(2, 4, 5),
        "grad_lse": zeros(2, 4, 5),
    }


def of_contexts(name: str) -> dict[str, Refusal]:
    """Return what is refused of grad_out, or of out."""
    fix = "pass the gradient at the result" if name == "grad_out" else FORWARD
    both = {name: zeros(*RESULT, dtype="f8")}
    return {
        f"{name} list": wrong_kind(name, [0.0], "a NumPy array", "list", f"np.asarray({name}"),
        f"{name} None": wrong_kind(name, None, "a NumPy array", "NoneType", f"np.asarray({name}"),
        f"{name} masked": wrong_kind(
            name, np.ma.zeros(RESULT), "without a mask", "a masked array", f"{name}.filled(0)"
        ),
        f"{name} int": wrong_kind(
            name, zeros(*RESULT, dtype=int), "float32, float64", "int64", f"{name}.astype("
        ),
        f"{name} swapped": wrong_kind(
            name, zeros(*RESULT, dtype=">f4"), "native byte order", "byte-swapped", "newbyteorder"
        ),
        f"{name} float64": wrong_kind(
            name, zeros(*RESULT, dtype="f8"), F32, "float64", f"{name}.astype(np.float32)"
        ),
        f"{name} float16": wrong_kind(
            name, zeros(*RESULT, dtype="f2"), F32, "float16", f"{name}.astype(np.float32)"
        ),
        f"{name} for float64": wrong_kind(
            name, zeros(*RESULT), "float64 like q", "float32", f"{name}.astype(np.float64)",
            **DOUBLE, **({"grad_out": zeros(*RESULT, dtype="f8")} if name == "out" else {}),
        ),
        f"{name} for float16": wrong_kind(
            name, both[name], "float16 like q, or float32", "float64", f"{name}.astype(np.float16)",
            **HALF,
        ),
        f"{name} for bfloat16": wrong_kind(
            name, zeros(*RESULT, dtype="f2"), "bfloat16 like q, or float32", "float16",
            f"{name}.astype(q.dtype)", **BRAIN,
        ),
        f"{name} shape": wrong_value(
            name, zeros(2, 4, 5, 8), "shape (2, 4, 5, 6), that of the result", "(2, 4, 5, 8)", fix
        ),
        f"{name} rank": wrong_value(name, zeros(4, 5, 6), "shape (2, 4, 5, 6)", "(4, 5, 6)", fix),
        f"{name} layout": wrong_value(
            name, zeros(2, 4, 5, 6), "shape (2, 5, 4, 6)", "(2, 4, 5, 6)", fix, layout="BTHD",
            **{x: good()[x].swapaxes(1, 2) for x in "qkv"},
            **({"grad_out": zeros(2, 5, 4, 6)} if name == "out" else {}),
        ),
    }  # fmt: skip


def of_rows(name: str) -> dict[str, Refusal]:
    """Return what is refused of lse, or of grad_lse."""
    fix = "pass the gradient at the lse" if name == "grad_lse" else FORWARD
    double = {x: zeros(*RESULT, dtype="f8") for x in ("grad_out", "out")}
    found = {
        f"{name} list": wrong_kind(name, [0.0], "a NumPy array", "list", f"np.asarray({name}"),
        f"{name} float64": wrong_kind(
            name, zeros(2, 4, 5, dtype="f8"), "float32 for q of float32", "float64",
            f"{name}.astype(np.float32)",
        ),
        f"{name} float16": wrong_kind(
            name, zeros(2, 4, 5, dtype="f2"), "float32 for q of float16", "float16",
            f"{name}.astype(np.float32)", **HALF,
        ),
        f"{name} int": wrong_kind(
            name, zeros(2, 4, 5, dtype=int), "float32, float64", "int64", f"{name}.astype("
        ),
        f"{name} tokens": wrong_value(name, zeros(2, 4, 7), f"shape {ROWS}", "(2, 4, 7)", fix),
        f"{name} tokens first": wrong_value(
            name, zeros(2, 5, 4), f"shape {ROWS}", "(2, 5, 4)", fix
        ),
        f"{name} rank": wrong_value(name, zeros(4, 5), f"shape {ROWS}", "(4, 5)", fix),
        f"{name} columns": wrong_value(
            name, zeros(2, 4, 5, 1), f"shape {ROWS}", "(2, 4, 5, 1)", fix
        ),
    }  # fmt: skip
    if name == "lse":
        found["lse for float64"] = wrong_kind(
            name, zeros(2, 4, 5), "float64 for q of float64", "float32",
            "lse.astype(np.float64)", **DOUBLE, **double,
        )  # fmt: skip
        found["lse None"] = wrong_kind(name, None, "a NumPy array", "NoneType", "np.asarray(lse")
    return found


REFUSALS: dict[str, Refusal] = {
    **of_contexts("grad_out"),
    **of_contexts("out"),
    **of_rows("lse"),
    **of_rows("grad_lse"),
    "out beside a wide grad_out": wrong_kind(
        "out", zeros(*RESULT, dtype="f2"), "float32 like grad_out", "float16",
        "out.astype(np.float32)", **HALF,
    ),
    "wide out": wrong_kind(
        "out", zeros(*RESULT), "bfloat16 like grad_out", "float32", "out.astype(grad_out.dtype)",
        grad_out=zeros(*RESULT, dtype=ml_dtypes.bfloat16), **BRAIN,
    ),
    "sinks_grad number": wrong_kind(
        "sinks_grad", 1, "True or False", "1 (int)", "bool(sinks_grad)", sinks=zeros(4)
    ),
    "mask_grad None": wrong_kind(
        "mask_grad", None, "True or False", "None", "bool(mask_grad)", mask=zeros(5, 7)
    ),
    "sinks_grad without sinks": wrong_value(
        "sinks_grad", True, "a call with sinks", "none", "pass sinks"
    ),
    "sinks_grad with options": wrong_value(
        "sinks_grad", True, "a call with sinks", "none", "sinks_grad=False", softcap=1.0
    ),
    "mask_grad without a mask": wrong_value(
        "mask_grad", True, "a mask of numbers", "none", "pass a float mask"
    ),
    "mask_grad of bools": wrong_value(
        "mask_grad", True, "a mask of numbers", "a mask of bool", "mask_grad=False",
        mask=zeros(5, 7, dtype=bool),
    ),
}  # fmt: skip
#: What the forward pass refuses; its `out` is another thing.
OF_FORWARD = {
    name: refusal
    for name, refusal in (OF_ARRAYS | OF_OPTIONS).items()
    if "out" not in (refusal.argument, *refusal.change)
}


@pytest.mark.parametrize(("function", "refusal"), cases(FUNCTIONS, OF_FORWARD | REFUSALS))
def test_refused_with_a_text_that_helps(function: str, refusal: Refusal) -> None:
    assert_refused(FUNCTIONS[function], call(), refusal)


def packed_call() -> dict[str, Any]:
    above = {"grad_out": zeros(5, 4, 6), "lse": zeros(4, 5), "grad_lse": zeros(4, 5)}
    return packed() | {"out": zeros(5, 4, 6)} | above


OF_VARLEN: dict[str, Refusal] = {
    name: refusal
    for name, refusal in OF_PACKED.items()
    if "out" not in (refusal.argument, *refusal.change)
} | {
    "grad_out shape": wrong_value(
        "grad_out", zeros(4, 5, 6), "shape (5, 4, 6)", "(4, 5, 6)", "the gradient at the result"
    ),
    "out shape": wrong_value("out", zeros(5, 4, 8), "shape (5, 4, 6)", "(5, 4, 8)", FORWARD),
    "lse tokens first": wrong_value("lse", zeros(5, 4), "shape (4, 5)", "(5, 4)", FORWARD),
    "grad_lse rank": wrong_value(
        "grad_lse", zeros(1, 4, 5), "shape (4, 5)", "(1, 4, 5)", "the gradient at the lse"
    ),
    "grad_out float64": wrong_kind(
        "grad_out", zeros(5, 4, 6, dtype="f8"), F32, "float64", "grad_out.astype(np.float32)"
    ),
    "sinks_grad without sinks": wrong_value(
        "sinks_grad", True, "a call with sinks", "none", "pass sinks"
    ),
}


@pytest.mark.parametrize(("function", "refusal"), cases(VARLEN, OF_VARLEN))
def test_packed_calls_refuse_too(function: str, refusal: Refusal) -> None:
    assert_refused(VARLEN[function], packed_call(), refusal)


@pytest.mark.parametrize("function", [*FUNCTIONS, *VARLEN])
def test_options_are_keywords_and_known(function: str) -> None:
    backward = (FUNCTIONS | VARLEN)[function]
    given = packed_call() if function in VARLEN else call()
    names = ["grad_out", "q", "k", "v", "out", "lse"]
    cuts = [CU_Q, CU_K] if function in VARLEN else []
    arrays = [given[name] for name in names]
    assert len(backward(*arrays, *cuts)) == 3
    with pytest.raises(TypeError, match="positional"):
        backward(*arrays, *cuts, True)
    for option in ("return_lse", "no_such_option"):
        with pytest.raises(TypeError, match=option):
            backward(*arrays, *cuts, **{option: None})


@pytest.mark.parametrize("wrap", [LendsByDLPack, BecomesAnArray, as_subclass])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_arrays_of_other_libraries(function: str, wrap: Callable[[Array], Any]) -> None:
    q, k, v, grad_out = (make(n, x.shape) for n, x in enumerate((*DOUBLE.values(), zeros(*RESULT))))
    more = {"mask": make(7, (5, 1)), "sinks": make(8, (4,))}
    out, lse = attend(q, k, v, **more)
    arrays, grad_lse = (grad_out, q, k, v, out, lse), make(9, lse.shape)
    asked = {"sinks_grad": True, "mask_grad": True}
    expected = FUNCTIONS[function](*arrays, grad_lse=grad_lse, **asked, **more)
    wrapped = {name: wrap(x) for name, x in more.items()} | {"grad_lse": wrap(grad_lse)}
    got = FUNCTIONS[function](*(wrap(x) for x in arrays), **asked, **wrapped)
    assert len(got) == 5
    for x, y in zip(got, expected, strict=True):
        assert type(x) is np.ndarray
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("layout", ["BHTD", "BTHD"])
@pytest.mark.parametrize("rank", [4, 3, 2])
@pytest.mark.parametrize("dtype", DTYPES)
def test_ranks_and_layouts(dtype: str, rank: int, layout: str) -> None:
    """Results have the rank, layout and dtype of their inputs; dmask the shape of the mask."""
    heads, kv_heads = ((4, 2), (2, 1), (1, 1))[4 - rank]
    shapes = [(1, heads, 5, 8), (1, kv_heads, 7, 8), (1, kv_heads, 7, 6), (1, heads, 5, 6)]
    whole = [make(n, shape, dtype) for n, shape in enumerate(shapes)]
    sinks, mask = make(7, (heads,)), make(8, (5, 1))
    out, lse = attend(*whole[:3], mask=mask, sinks=sinks)
    asked = {"sinks_grad": True, "mask_grad": True, "mask": mask, "sinks": sinks}
    expected = headway.attention_backward(whole[3], *whole[:3], out, lse, **asked)

    def named(x: Array) -> Array:
        x = x.swapaxes(1, 2) if layout == "BTHD" and rank > 2 else x
        return np.asarray(x[(0, 0)[: 4 - rank]])

    q, k, v, grad_out, out = (named(x) for x in (*whole, out))
    lse = lse[(0, 0)[: 4 - rank]]
    got = headway.attention_backward(grad_out, q, k, v, out, lse, layout=layout, **asked)
    for x, y, given in zip(got[:3], expected, (q, k, v), strict=False):
        assert (x.dtype, x.shape) == (dtype_of(dtype), given.shape)
        assert x.flags.c_contiguous
        np.testing.assert_array_equal(x, named(y))
    assert [x.dtype for x in got[3:]] == [np.float64, lse_dtype(dtype)]
    for x, y in zip(got[3:], expected[3:], strict=True):
        np.testing.assert_array_equal(x, y)
    assert got[4].shape == (5, 1)
