"""Traces of the three modules: their steps, and that the last is what the module returns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import DTYPES, TOLERANCE, assert_close, make
from module_helpers import CLASSES, build, reference_result
from option_table import EACH_ISA

import headway
from headway import CausalAttention, MultiHeadAttention, StackedMultiHeadAttention

NAMES = ["Q", "K", "V", "scores", "scaled", "mask", "weights", "Z"]
WEIGHTS = ["w_query", "w_key", "w_value"]
BIASES = ["b_query", "b_key", "b_value"]


@EACH_ISA
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5, 6), (2, 5, 6)], ids=["one", "batch"])
@pytest.mark.parametrize("cls", CLASSES)
def test_the_last_step_is_the_modules_result(
    cls: Any, shape: tuple[int, ...], dtype: str, isa: str
) -> None:
    module, x = build(cls, dtype), make(1, shape, dtype)
    trace = module.trace(x)
    result = module(x)
    assert trace[-1].shape == result.shape
    assert trace.agrees
    assert trace.dtype == dtype
    np.testing.assert_array_equal(trace.kernel, result)
    assert trace.difference == np.abs(result.astype(np.float64) - trace[-1].array).max()
    z = np.concatenate([trace[f"Z_{n}"].array for n in range(1, trace.num_heads + 1)], axis=-1)
    np.testing.assert_array_equal(trace["Z"].array, z)


@pytest.mark.parametrize("plain", [True, False])
def test_every_step_against_the_reference(plain: bool) -> None:
    module = build(MultiHeadAttention, np.float64, plain=plain)
    assert isinstance(module, MultiHeadAttention)
    x = make(2, (2, 5, 6))
    trace = module.trace(x)
    assert_close(trace[-1].array, reference_result(module, x), TOLERANCE["float64"])
    for h in range(module.num_heads):
        n, size = h + 1, module.head_dim
        for letter, kind, place in (
            ("Q", "query", h),
            ("K", "key", h // 2),
            ("V", "value", h // 2),
        ):
            if plain:
                place = h if module.num_kv_heads == module.num_heads else place
            columns = slice(place * size, (place + 1) * size)
            weight = getattr(module, f"w_{kind}")[:, columns]
            np.testing.assert_array_equal(trace[f"w_{kind}_{n}"].array, weight)
            expected = x @ weight
            if not plain:
                bias = getattr(module, f"b_{kind}")[columns]
                np.testing.assert_array_equal(trace[f"b_{kind}_{n}"].array, bias)
                expected = expected + bias
            np.testing.assert_allclose(trace[f"{letter}_{n}"].array, expected, rtol=1e-12)
        q, k = trace[f"Q_{n}"].array, trace[f"K_{n}"].array
        weights = headway.reference.attention_weights(q[:, None], k[:, None])[:, 0]
        np.testing.assert_allclose(trace[f"weights_{n}"].array, weights, rtol=1e-12)


def test_formulas_hold() -> None:
    for cls in CLASSES:
        module = build(cls, np.float64)
        trace = module.trace(make(3, (4, 6)))
        arrays = {step.name: step.array for step in trace}
        for step in trace:
            if step.kind in ("Q", "K", "V", "scores", "scaled", "Z_n", "output"):
                made = eval(step.formula, {"sqrt": np.sqrt}, arrays)
                np.testing.assert_allclose(step.array, made, rtol=1e-12)


def test_names_of_each_module() -> None:
    x = make(4, (3, 6), "float32")
    single = build(CausalAttention, plain=True).trace(x)
    head = [f"{name}_1" for name in (*WEIGHTS, *NAMES)]
    assert single.names == ["x", *head, "Z"]
    assert single["Z"].formula == "Z_1"
    assert single["Z"].about == "The context vectors of the only head."
    np.testing.assert_array_equal(single["Z"].array, single["Z_1"].array)
    for cls in (StackedMultiHeadAttention, MultiHeadAttention):
        trace = build(cls).trace(x)
        heads = [f"{name}_{n}" for n in range(1, 5) for name in (*WEIGHTS, *BIASES, *NAMES)]
        assert trace.names == ["x", *heads, "Z", "w_out", "b_out", "output"]
        assert trace["output"].formula == "Z @ w_out + b_out"
        assert trace["Z"].formula == "[Z_1 | Z_2 | Z_3 | Z_4]"
        assert trace["weights_2"].shape == (3, 3)
        assert trace["w_key_1"].axes == ("d_in", "head_dim")


def test_both_stages_have_the_same_trace() -> None:
    stacked = StackedMultiHeadAttention.init(6, 8, num_heads=2, out_proj=True)
    x = make(5, (2, 7, 6), "float32")
    one, two = stacked.trace(x), stacked.fuse().trace(x)
    assert one.names == two.names
    for step, other in zip(one, two, strict=True):
        assert (step.formula, step.about, step.axes) == (other.formula, other.about, other.axes)
        np.testing.assert_array_equal(step.array, other.array)


def test_shared_keys_are_said_to_be_shared() -> None:
    module = MultiHeadAttention.init(6, 12, num_heads=6, num_kv_heads=2)
    trace = module.trace(make(6, (3, 6), "float32"))
    assert trace["K_5"].about == "What each token offers to be found by, the same for heads 4 to 6."
    assert trace["w_value_1"].about.endswith("every token, the same for heads 1 to 3.")
    np.testing.assert_array_equal(trace["V_4"].array, trace["V_6"].array)
    assert trace["Z"].formula == "[Z_1 | ... | Z_6]"
    assert "same" not in trace["Q_5"].about


def test_heads_of_several_widths() -> None:
    heads = [CausalAttention.init(6, width, seed=width) for width in (2, 5)]
    x = make(7, (4, 6), "float32")
    trace = StackedMultiHeadAttention(heads).trace(x)
    assert [trace[f"Z_{n}"].shape for n in (1, 2)] == [(4, 2), (4, 5)]
    assert trace["Z"].shape == (4, 7)
    assert trace["scaled_2"].formula == "scores_2 / sqrt(5)"
    assert trace.agrees
    assert "Z_2 (4, 5)" in str(trace)


@pytest.mark.parametrize("shape", [(0, 6), (0, 3, 6), (2, 0, 6)])
@pytest.mark.parametrize("cls", CLASSES)
def test_empty_input(cls: Any, shape: tuple[int, ...]) -> None:
    trace = build(cls).trace(np.zeros(shape, np.float32))
    assert trace["Z"].shape == (*shape[:-1], 8)
    assert trace.agrees
    if shape[0] or len(shape) == 2:
        assert "They agree" in str(trace)


def test_what_a_module_refuses_its_trace_refuses() -> None:
    module = build(MultiHeadAttention)
    for wrong in (np.zeros((3, 6)), np.zeros((3, 5), np.float32), [[1.0] * 6]):
        with pytest.raises((TypeError, ValueError)) as told:
            module(wrong)  # type: ignore[arg-type]
        with pytest.raises(type(told.value)) as traced:
            module.trace(wrong)  # type: ignore[arg-type]
        assert str(traced.value) == str(told.value)
