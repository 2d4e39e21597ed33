"""ONNX's operator Attention: its own cases, and its evaluator with and without our class."""

from __future__ import annotations

import doctest
import warnings
from typing import Any

import numpy as np
import pytest
from conformance import Case, load_suite
from helpers import TOLERANCE, Array, assert_close, error, make
from hypothesis import given
from hypothesis import strategies as st

import headway.interop.onnx as ours

STORED = load_suite("onnx")
INPUTS = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
OUTPUTS = ("Y", "present_key", "present_value", "qk_matmul_output")


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in STORED])
def test_stored_cases(case: Case, isa: str) -> None:
    """The function alone, without the package onnx."""
    attributes = dict(case.meta["attrs"])
    if "qk_matmul_output" in case.outputs:
        attributes.setdefault("qk_matmul_output_mode", 0)
    found = dict(zip(OUTPUTS, ours.attention(**case.inputs, **attributes), strict=True))
    for name, array in found.items():
        if name in case.outputs:
            assert array is not None
            assert array.dtype == case.outputs[name].dtype
            assert_close(array, case.outputs[name], TOLERANCE[case.meta["dtype"]], name)
        elif name.startswith("present"):
            assert (array is None) == ("past_key" not in case.inputs)
        else:
            assert array is None or "qk_matmul_output_mode" in case.meta["attrs"]


def test_every_case_of_the_standard(isa: str) -> None:
    """The backend tests of the operator, through the evaluator with our class."""
    pytest.importorskip("onnx", "1.23", reason="onnx 1.23: earlier cases differ")
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other operators' cases
        cases = [c for c in collect_testcases("Attention") if not c.name.endswith("_expanded")]
    assert len(cases) == 93
    wrong = []
    for case in cases:
        evaluator = evaluator_of(case.model)
        names = [each.name for each in case.model.graph.input]
        for given_inputs, wanted in case.data_sets:
            results = evaluator.run(None, dict(zip(names, given_inputs, strict=True)))
            for got, expected in zip(results, wanted, strict=True):
                assert got.dtype == expected.dtype
                if not error(got, expected) <= TOLERANCE[got.dtype.name]:
                    wrong.append(f"{case.name}: {error(got, expected):.2e}")
    assert not wrong, "\n".join(wrong)


def evaluator_of(model: Any) -> Any:
    """ONNX's evaluator, with every Attention node run by our class."""
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(model, new_ops=[ours.Attention])
    assert ours.Attention in {type(node) for node in evaluator.rt_nodes_}
    return evaluator


def model_of(inputs: dict[str, Array], nodes: list[Any], outputs: list[str], opset: int) -> Any:
    """A model of these nodes whose inputs and outputs have no shapes."""
    from onnx import TensorProto, helper

    kinds = {np.dtype(np.float64): TensorProto.DOUBLE, np.dtype(bool): TensorProto.BOOL}
    infos = [
        helper.make_tensor_value_info(name, kinds.get(x.dtype, TensorProto.INT64), None)
        for name, x in inputs.items()
    ]
    results = [helper.make_tensor_value_info(n, TensorProto.DOUBLE, None) for n in outputs]
    graph = helper.make_graph(nodes, "attention", infos, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


@st.composite
def problems(draw: Any) -> tuple[dict[str, Array], dict[str, Any], int]:
    """Inputs, attributes and the opset of one node, in float64."""
    opset = draw(st.sampled_from([24, 25]))
    batch, kv_heads, group = (draw(st.integers(1, 2)) for _ in range(3))
    tq, tk, past = draw(st.integers(1, 5)), draw(st.integers(1, 6)), draw(st.integers(0, 3))
    d, dv, heads = draw(st.integers(1, 4)), draw(st.integers(1, 4)), kv_heads * group
    seed = draw(st.integers(0, 2**16))
    cache = draw(st.sampled_from(["none", "past", "lengths"]))
    total = tk + past if cache == "past" else tk
    inputs = {
        name: make((seed, n), (batch, h, t, w))
        for n, (name, h, t, w) in enumerate(
            (("Q", heads, tq, d), ("K", kv_heads, tk, d), ("V", kv_heads, tk, dv))
        )
    }
    attributes: dict[str, Any] = {"is_causal": draw(st.integers(0, 1))}
    if draw(st.booleans()):
        inputs = {n: x.swapaxes(1, 2).reshape(batch, x.shape[2], -1) for n, x in inputs.items()}
        attributes |= {"q_num_heads": heads, "kv_num_heads": kv_heads}
    kind = draw(st.sampled_from(["none", "bool", "float"]))
    if kind != "none":
        # ONNX's code reads the number of queries from the mask where it is causal
        rows = tq if attributes["is_causal"] else 1
        shape = [draw(st.sampled_from(each)) for each in ((1, batch), (1, heads), (rows, tq))]
        mask = make((seed, 4), (*shape[draw(st.integers(0, 2)) :], total))
        inputs["attn_mask"] = mask > -0.3 if kind == "bool" else np.where(mask < -1, -np.inf, mask)
    if cache == "past":
        inputs["past_key"] = make((seed, 5), (batch, kv_heads, past, d))
        inputs["past_value"] = make((seed, 6), (batch, kv_heads, past, dv))
    if cache == "lengths":
        lengths = [draw(st.integers(0, tk)) for _ in range(batch)]
        inputs["nonpad_kv_seqlen"] = np.array(lengths)
    if opset == 25:
        for side in ("left_window_size", "right_window_size"):
            attributes[side] = draw(st.integers(-1, 3))
    attributes["qk_matmul_output_mode"] = draw(st.integers(0, 3))
    if attributes["qk_matmul_output_mode"] > 0:  # ONNX's code caps the raw product, too
        attributes["softcap"] = draw(st.sampled_from([0.0, 1.5]))
    if draw(st.booleans()):
        attributes["scale"] = 0.5625  # whose root is exact in float32, too
    return inputs, attributes, opset


@given(problems())
def test_the_evaluator_gives_the_same_without_us(problem: Any) -> None:
    """ONNX's own NumPy code against our class: every output of a node, in float64."""
    pytest.importorskip("onnx", "1.23", reason="onnx 1.23: earlier code differs")
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    inputs, attributes, opset = problem
    names = [name if name in inputs else "" for name in INPUTS]
    node = helper.make_node("Attention", names, OUTPUTS, **attributes)
    model = model_of(inputs, [node], list(OUTPUTS), opset)
    wanted = ReferenceEvaluator(model).run(None, inputs)
    for name, got, expected in zip(
        OUTPUTS, evaluator_of(model).run(None, inputs), wanted, strict=True
    ):
        assert got.dtype == expected.dtype
        assert_close(got, expected, 1e-12, name)


def test_a_left_out_output_is_no_input_of_the_next_node() -> None:
    """An absent output and an absent input have one name, the empty one."""
    pytest.importorskip("onnx")
    from onnx import helper

    x = make(3, (1, 2, 5, 4))
    first = helper.make_node("Attention", ["X", "X", "X"], ["Y", "", "", "S"], is_causal=1)
    second = helper.make_node("Attention", ["Y", "X", "X", "", "", ""], ["Z"])
    model = model_of({"X": x}, [first, second], ["Z", "S"], 24)
    z, scores = evaluator_of(model).run(None, {"X": x})
    y, *_, wanted = ours.attention(x, x, x, is_causal=1, qk_matmul_output_mode=0)
    assert_close(z, ours.attention(y, x, x)[0], 0.0)
    assert_close(scores, wanted, 0.0)


def test_the_raw_product_is_before_the_cap() -> None:
    x = make(4, (1, 2, 5, 4))
    raw, capped = (
        ours.attention(x, x, x, softcap=0.5, qk_matmul_output_mode=mode)[3] for mode in (0, 1)
    )
    assert raw is not None
    assert capped is not None
    assert_close(raw, x @ x.swapaxes(2, 3) / 2, 1e-14)
    assert_close(capped, 0.5 * np.tanh(raw / 0.5), 1e-14)


def test_only_the_asked_name_imports_onnx() -> None:
    assert set(dir(ours)) == {"Attention", "attention"}
    with pytest.raises(AttributeError, match="has no attribute 'Attentions'"):
        _ = ours.Attentions


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnx.reference.op_run", None)
    ours._operator.cache_clear()
    with pytest.raises(ImportError, match=r"needs the package onnx: pip install 'headway\[onnx\]'"):
        _ = ours.Attention


def test_examples() -> None:
    failed, tried = doctest.testmod(ours)
    assert (failed, tried > 0) == (0, True)
