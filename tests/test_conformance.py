"""Results of others: the course's two-stage module, torch in float64, and the ONNX standard.

Outputs, log-sum-exps, weights and scores are compared; how a case becomes a call is said in
conformance.py. A case that needs something the library lacks is skipped under that name.
"""

from __future__ import annotations

import inspect
from collections import Counter

import numpy as np
import pytest
from conformance import NOT_YET_OFFERED, Case, as_call, load_suite, onnx_result
from helpers import LSE_TOLERANCE, TOLERANCE, Array, assert_close, attend, dtype_of

import headway

COURSE, GOLDEN, ONNX = (load_suite(suite) for suite in ("course", "golden", "onnx"))
WITH_GRADIENTS = [
    case for case in COURSE + GOLDEN + ONNX if case.has_gradients and not case.missing
]


def runs(cases: list[Case]) -> list[object]:
    """Return a parameter per case and dtype, of the cases that can be run."""
    return [
        pytest.param(case, dtype, id=f"{case.name}-{dtype}")
        for case in cases
        if not case.missing
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
def test_golden(case: Case, dtype: str, isa: str) -> None:
    """Output, lse and weights against torch in float64; rows left undefined are not looked at."""
    call = as_call(case, dtype)
    out, lse = attend(call.q, call.k, call.v, **call.options)
    assert out.dtype == dtype_of(dtype)
    defined = case.outputs.get("o_defined", np.ones(lse.shape, bool))
    assert_close(out[defined], case.outputs["o"][defined], TOLERANCE[dtype], "o")
    assert_close(lse[defined], case.outputs["lse"][defined], LSE_TOLERANCE[dtype], "lse")
    if "weights" in case.outputs:
        weights = headway.attention_weights(call.q, call.k, **call.options)
        assert_close(weights, case.outputs["weights"], TOLERANCE[dtype], "weights")


@pytest.mark.parametrize(("case", "dtype"), runs(ONNX))
def test_onnx(case: Case, dtype: str, isa: str) -> None:
    """Y, and what the case wants of the product of Q and K."""
    call = as_call(case, dtype)
    out = headway.attention(call.q, call.k, call.v, **call.options)
    assert out.dtype == dtype_of(dtype)
    assert_close(onnx_result(case, out), case.outputs["Y"], TOLERANCE[dtype], "Y")
    if "qk_matmul_output" in case.outputs:
        mode = case.meta["attrs"].get("qk_matmul_output_mode", 0)
        if mode == 3:
            found = headway.attention_weights(call.q, call.k, **call.options)
        else:  # without a soft cap, mode 1 holds what mode 0 does
            stage = "masked" if mode == 2 else "scaled"
            found = headway.attention_scores(call.q, call.k, stage=stage, **call.options)
        assert_close(found, case.outputs["qk_matmul_output"], TOLERANCE[dtype], "qk")


def skipped(cases: list[Case]) -> list[object]:
    """Return a skipped parameter per case that cannot be run, with what it waits for."""
    return [
        pytest.param(
            case,
            id=case.name,
            marks=pytest.mark.skip(reason=f"not yet offered: {', '.join(case.missing)}"),
        )
        for case in cases
        if case.missing
    ]


@pytest.mark.parametrize("case", skipped(COURSE + GOLDEN + ONNX))
def test_not_yet_offered(case: Case) -> None:
    """Stands in the report once for every case that waits for a feature."""
    raise AssertionError("a case that waits for a feature is not run")


@pytest.mark.skip(reason="not yet offered: attention_backward")
@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in WITH_GRADIENTS])
def test_gradients(case: Case) -> None:
    """Stands in the report once for every case that runs, but without its gradients."""
    raise AssertionError("gradients wait for attention_backward")


def test_no_case_is_lost() -> None:
    """So many cases run, and so many wait for each feature; none may fall out unseen."""
    found = {
        suite: Counter(feature for case in cases for feature in case.missing or ("run",))
        for suite, cases in (("course", COURSE), ("golden", GOLDEN), ("onnx", ONNX))
    }
    assert found == {
        "course": {"run": 6},
        "golden": {
            "run": 25,
            "mask": 8,
            "window": 4,
            "softcap": 3,
            "alibi_slopes": 3,
            "kv_lengths": 2,
            "attention_varlen": 2,
            "sinks": 1,
        },
        "onnx": {"run": 17, "mask": 25, "window": 7, "softcap": 6},
    }
    assert [len(cases) for cases in (COURSE, GOLDEN, ONNX)] == [6, 45, 47]
    assert len(WITH_GRADIENTS) == 21


def test_what_is_offered_is_run() -> None:
    """A feature that cases wait for is really absent from the library."""
    options = inspect.signature(headway.attention).parameters
    waiting = {feature for case in COURSE + GOLDEN + ONNX for feature in case.missing}
    assert waiting == NOT_YET_OFFERED
    assert [name for name in waiting if name in options or hasattr(headway, name)] == []
    assert not hasattr(headway, "attention_backward"), "the gradients can be compared"
