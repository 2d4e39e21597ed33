"""Results of others: the course's two-stage module, torch in float64, and the ONNX standard.

Outputs, log-sum-exps, weights, scores and gradients are compared, of every case and in every dtype
that it names; how a case becomes a call is said in conformance.py.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from conformance import GRADIENTS, Case, as_call, load_suite, onnx_product, onnx_result
from gradients import GRADIENT_TOLERANCE, assert_gradient
from helpers import HALF, LSE_TOLERANCE, TOLERANCE, Array, assert_close, dtype_of, lse_dtype

import headway

COURSE, GOLDEN, ONNX = (load_suite(suite) for suite in ("course", "golden", "onnx"))
WITH_GRADIENTS = [case for case in COURSE + GOLDEN + ONNX if case.has_gradients]


def runs(cases: list[Case]) -> list[object]:
    """Return a parameter per case and dtype."""
    return [
        pytest.param(case, dtype, id=f"{case.name}-{dtype}")
        for case in cases
        for dtype in case.dtypes
    ]


@pytest.mark.parametrize(("case", "dtype"), runs(COURSE))
def test_course(case: Case, dtype: str, isa: str) -> None:
    """Each head on its own projections; the heads side by side; the output projection."""
    arrays = {name: x.astype(dtype_of(dtype)) for name, x in case.inputs.items()}
    x, attrs = arrays["X"], case.meta["attrs"]

    def project(letter: str) -> Array:
        """Return (B, H, T, d_head): every head's product of x with its own matrix."""
        made: Array = np.einsum("btd,hde->bhte", x, arrays[f"W{letter}"])
        bias = arrays.get(f"b{letter}")
        return made if bias is None else made + bias[:, None, :]

    out = headway.attention(project("q"), project("k"), project("v"))
    heads = out.transpose(1, 0, 2, 3)
    assert_close(heads, case.outputs["heads"], TOLERANCE[dtype], "heads")
    merged = out.transpose(0, 2, 1, 3).reshape(*x.shape[:2], -1)
    assert merged.shape[-1] == attrs["num_heads"] * attrs["d_head"]
    assert_close(merged, case.outputs["Z"], TOLERANCE[dtype], "Z")
    if "Wo" in arrays:
        projected = merged @ arrays["Wo"] + arrays.get("bo", np.zeros((), x.dtype))
        assert_close(projected, case.outputs["out"], TOLERANCE[dtype], "out")
    assert ("out" in case.outputs) == ("Wo" in arrays)


@pytest.mark.parametrize(("case", "dtype"), runs(GOLDEN))
def test_golden(case: Case, dtype: str, isa: str, threads: int) -> None:
    """Output, lse and weights against torch in float64; rows left undefined are not looked at.

    A case with a sink holds the lse with it beside the one without.
    """
    call = as_call(case, dtype)
    out, lse = call.attend()
    assert (out.dtype, lse.dtype) == (dtype_of(dtype), lse_dtype(dtype))
    defined = case.outputs.get("o_defined", np.ones(out.shape[:-1], bool))
    assert_close(out[defined], case.outputs["o"][defined], TOLERANCE[dtype], "o")
    expected = case.outputs["lse_sink" if "sinks" in case.inputs else "lse"]
    if call.members is None:
        lse, expected = lse[defined], expected[defined]
    assert_close(lse, expected, LSE_TOLERANCE[dtype], "lse")
    if "weights" in case.outputs:
        weights = headway.attention_weights(call.q, call.k, **call.options)
        assert_close(weights, case.outputs["weights"], TOLERANCE[dtype], "weights")


@pytest.mark.parametrize(("case", "dtype"), runs(ONNX))
def test_onnx(case: Case, dtype: str, isa: str, threads: int) -> None:
    """Y, the keys and values it was made of, and what the case wants of the product."""
    call = as_call(case, dtype)
    out, _ = call.attend()
    assert out.dtype == dtype_of(dtype)
    assert_close(onnx_result(case, out), case.outputs["Y"], TOLERANCE[dtype], "Y")
    for name, used in (("present_key", call.k), ("present_value", call.v)):
        np.testing.assert_array_equal(used, case.outputs.get(name, used))
    if "qk_matmul_output" in case.outputs:
        found = onnx_product(case, call)
        assert_close(found, case.outputs["qk_matmul_output"], TOLERANCE[dtype], "qk")


@pytest.mark.parametrize(("case", "dtype"), runs(WITH_GRADIENTS))
def test_gradients(case: Case, dtype: str, isa: str, threads: int) -> None:
    """Those of q, k, v and sinks against torch in float64, from a rounded and a wide output.

    Gradients may cancel to almost nothing: the largest sum of their terms' magnitudes is a scale,
    too. A case of large scores names how much half a step of a float32 lse costs.
    """
    call = as_call(case, dtype)
    for wide in (False, True) if dtype in HALF else (False,):
        found = call.gradients(wide=wide)
        wanted = {name: x for name, x in case.outputs.items() if name in (*GRADIENTS, "dsinks")}
        assert found.keys() == wanted.keys()
        for name, got in found.items():
            assert got.dtype == (lse_dtype(dtype) if name == "dsinks" else dtype_of(dtype))
            allowed = case.loosened(name, dtype, GRADIENT_TOLERANCE[dtype])
            what = f"{name}, {'wide' if wide else 'rounded'} output"
            assert_gradient(got, wanted[name], allowed, case.meta["scales"][name], what)


def test_no_case_is_lost() -> None:
    """So many cases there are, and so many ask for each option; none may fall out unseen."""
    assert [len(cases) for cases in (COURSE, GOLDEN, ONNX)] == [6, 45, 47]
    asked = {
        suite: Counter(
            name
            for case in cases
            for name in (*as_call(case, case.dtypes[0]).options, *case.outputs)
            if name not in ("causal", "align", "scale", "o", "lse", "weights", "Y")
            and not name.startswith("present_")
        )
        for suite, cases in (("golden", GOLDEN), ("onnx", ONNX))
    }
    gradients = {"dq": 41, "dk": 41, "dv": 41, "dsinks": 1}
    assert asked["golden"] == gradients | {
        "mask": 8,
        "window": 4,
        "softcap": 3,
        "alibi_slopes": 3,
        "kv_lengths": 4,
        "sinks": 1,
        "lse_sink": 1,
        "o_defined": 2,
    }
    assert asked["onnx"] == {
        "mask": 25,
        "window": 7,
        "softcap": 6,
        "kv_lengths": 6,
        "qk_matmul_output": 9,
    }
    packed = [case.name for case in GOLDEN if as_call(case, "float32").members is not None]
    assert packed == ["varlen_causal_self", "varlen_noncausal_cross"]
    assert len(WITH_GRADIENTS) == 41
