"""Traces of calls: every step against the reference, its shape, name and formula."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import DTYPES, TOLERANCE, Array, assert_close, make_qkv, wide_tolerance
from option_table import COMPANY, EACH_ISA, OPTIONS, Problem, visible_keys

import headway
from headway import Trace, trace_build

SMALL = {"tokens": (4, 9), "head_dim": 4, "value_dim": 3}


def wide(*arrays: Array) -> list[Array]:
    return [x.astype(np.float64) for x in arrays]


def per_head(trace: Trace, kind: str) -> Array:
    """The arrays of one kind of step, (B, H, ...)."""
    return np.stack([trace[f"{kind}_{n}"].array for n in range(1, trace.num_heads + 1)], axis=1)


def assert_steps(trace: Trace, q: Array, k: Array, v: Array, options: dict[str, Any]) -> None:
    """Fail unless scores, weights and context are the reference's, and the mask is what is seen."""
    q, k, v = wide(q, k, v)
    tolerance = TOLERANCE["float64" if trace.dtype == "float64" else "float32"]
    shape = (*q.shape[:3], k.shape[2])
    scores = per_head(trace, "scores")
    assert_close(scores, q @ np.repeat(k, shape[1] // k.shape[1], 1).swapaxes(2, 3), tolerance)
    for kind, stage in (("scaled", "scaled"), ("capped", "capped"), ("biased", "masked")):
        if f"{kind}_1" in trace:
            expected = headway.reference.attention_scores(q, k, stage=stage, **options)
            got = per_head(trace, kind)
            if kind == "biased":
                got = np.where(per_head(trace, "mask"), got, -np.inf)
            assert_close(got, expected, tolerance, kind)
    seen = visible_keys(shape, options)
    np.testing.assert_array_equal(per_head(trace, "mask"), seen)
    weights = per_head(trace, "weights")
    assert_close(weights, headway.reference.attention_weights(q, k, **options), tolerance)
    assert not weights[~seen].any()
    assert_close(trace["Z"].array, headway.reference.attention(q, k, v, **options), tolerance)
    assert_close(per_head(trace, "Z"), trace["Z"].array, 0.0)


@EACH_ISA
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("company", COMPANY)
def test_steps_are_those_of_the_reference(company: str, dtype: str, isa: str) -> None:
    problem = Problem(dtype, **SMALL)  # type: ignore[arg-type]
    options = problem.options(COMPANY[company])
    q, k, v = problem.arrays()
    trace = headway.trace(q, k, v, **options)
    assert_steps(trace, q, k, v, options)
    assert trace.isa == isa
    assert trace.agrees
    kernel = headway.attention(q, k, v, **options).astype(np.float64)
    difference = np.abs(kernel - trace["Z"].array).max()
    assert trace.difference == difference
    assert difference <= wide_tolerance(dtype) * trace.largest + TOLERANCE[dtype] * trace.largest


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_leaves_a_trace(name: str) -> None:
    """An option changes a step, and no option makes a step that has nothing to say."""
    problem = Problem(**SMALL)  # type: ignore[arg-type]
    options = problem.options([name])
    q, k, v = problem.arrays()
    plain, changed = headway.trace(q, k, v), headway.trace(q, k, v, **options)
    formulas = [[step.formula for step in trace.of_head(1)] for trace in (plain, changed)]
    sentences = [[step.about for step in trace.of_head(1)] for trace in (plain, changed)]
    assert formulas[0] != formulas[1] or sentences[0] != sentences[1]
    assert not np.array_equal(plain["Z"].array, changed["Z"].array)
    option = next(iter(options))
    assert option in changed.options
    assert plain.options == ""


def test_the_accumulation_type() -> None:
    for dtype in DTYPES:
        q, k, v = make_qkv(0, dtype)
        trace = headway.trace(q, k, v, softcap=2.0, alibi_slopes=[1.0, 2.0], sinks=[0.0, 1.0])
        wanted = "float64" if dtype == "float64" else "float32"
        for step in trace:
            expected = "bool" if step.kind == "mask" else wanted
            assert step.array.dtype.name == expected, step
            assert not step.array.flags.writeable


@pytest.mark.parametrize("layout", ["BHTD", "BTHD"])
@pytest.mark.parametrize("rank", [2, 3, 4])
def test_ranks_and_layouts(rank: int, layout: str) -> None:
    q, k, v = make_qkv(1, "float64", batch=2, heads=(4, 2), tokens=(3, 5), value_dim=6)
    if layout == "BTHD":
        q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    if rank < 4:
        q, k, v = q[0], k[0], v[0]
    if rank == 2:
        q, k, v = ((x if layout == "BHTD" else x.swapaxes(0, 1))[0] for x in (q, k, v))
    trace = headway.trace(q, k, v, layout=layout)
    out = headway.attention(q, k, v, layout=layout)
    assert trace["Z"].shape == out.shape
    assert len(trace["Z"].axes) == out.ndim
    np.testing.assert_allclose(trace["Z"].array, out, rtol=1e-12)
    first = (2,) if rank == 4 else ()
    assert trace["Q_1"].shape == (*first, 3, 8)
    assert trace["scores_1"].shape == (*first, 3, 5)
    assert trace["weights_1"].axes == ("batch", "queries", "keys")[4 - max(rank, 3) :]
    assert trace["Z_1"].shape == (*first, 3, 6)
    for name, source in {"Q_1": q, "K_1": k, "V_1": v}.items():
        picked = eval(trace[name].formula, {"q": q, "k": k, "v": v})
        np.testing.assert_array_equal(trace[name].array, picked)
        assert source.dtype == trace[name].array.dtype
    if rank > 2:
        picked = eval(trace["K_4"].formula, {"k": k})
        np.testing.assert_array_equal(trace["K_4"].array, picked)
        assert "the same for heads 3 to 4" in trace["K_4"].about
        assert "same" not in trace["Q_4"].about


def test_the_matrix_of_a_step_has_heads_side_by_side() -> None:
    q, k, v = make_qkv(2, "float64", batch=2, tokens=(3, 3), value_dim=2)
    for layout in ("BHTD", "BTHD"):
        arrays = [x if layout == "BHTD" else x.swapaxes(1, 2) for x in (q, k, v)]
        trace = headway.trace(*arrays, layout=layout)
        expected = np.concatenate([trace["Z_1"].array[1], trace["Z_2"].array[1]], axis=1)
        np.testing.assert_array_equal(trace["Z"].matrix(1), expected)
    assert trace["Z"].row_axis == "queries"


def test_names_and_places() -> None:
    q, k, v = make_qkv(3, "float32")
    options: dict[str, Any] = {"softcap": 2.0, "alibi_slopes": [1.0, 2.0], "sinks": [0.0, 1.0]}
    trace = headway.trace(q, k, v, **options)
    kinds = ["Q", "K", "V", "scores", "scaled", "capped", "biased", "mask", "sink", "weights"]
    kinds += ["sink_weights", "Z"]
    assert trace.names == [f"{kind}_{n}" for n in (1, 2) for kind in kinds] + ["Z"]
    assert [step.name for step in trace] == trace.names
    assert len(trace) == len(trace.names) == 25
    assert trace[0] is trace["Q_1"]
    assert trace[-1] is trace["Z"]
    assert "weights_2" in trace
    assert "weights_3" not in trace
    assert [step.kind for step in trace.of_head(2)] == [*kinds[:-1], "Z_n"]
    with pytest.raises(KeyError, match=r"weights_3: expected one of Q_1, K_1, "):
        trace["weights_3"]
    assert repr(trace).startswith("<Trace of attention(q, k, v): 25 steps, difference ")


def test_formulas_hold() -> None:
    """What a formula says is what the array holds."""
    q, k, v = make_qkv(4, "float64", tokens=(4, 4))
    trace = headway.trace(q, k, v, softcap=2.0, alibi_slopes=[0.25, 0.5], scale=0.5)
    names = {step.name: step.array[0] for step in trace if step.head}
    ahead = np.arange(4)[:, None] - np.arange(4)
    names |= {"tanh": np.tanh, "p": np.arange(4)[:, None], "j": np.arange(4)}
    for n in (1, 2):
        for kind in ("scores", "scaled", "capped", "Z"):
            step = trace[f"{kind}_{n}"]
            np.testing.assert_allclose(eval(step.formula, names), step.array[0], rtol=1e-12)
        assert trace[f"mask_{n}"].formula == "j <= p"
    assert trace["biased_2"].formula == "capped_2 - 0.5 * |p - j|"
    expected = names["capped_2"] - 0.5 * abs(ahead)
    np.testing.assert_allclose(trace["biased_2"].array[0], expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("options", "formula", "about"),
    [
        ({}, "j <= p", "query i stands at p = i + 2."),
        ({"causal": False}, "every key is seen", "p = i + 2."),
        ({"align": "start"}, "j <= p", "p = i."),
        ({"align": -1}, "j <= p", "p = i - 1."),
        ({"align": [1, 0]}, "j <= p", "p = i + the start of its batch entry."),
        ({"window": 1}, "p <= j and j <= p", "p = i + 2."),
        ({"window": 3}, "p - 2 <= j and j <= p", "p = i + 2."),
        ({"window": (2, 1), "causal": False}, "p - 2 <= j and j <= p + 1", "p = i + 2."),
        ({"kv_lengths": [4, 4]}, "j <= p and j < 4", "p = i + 1."),
        ({"kv_lengths": [4, 5], "align": "start"}, "j <= p and j < length", "p = i."),
        ({"mask": np.ones((3, 5), bool)}, "j <= p and mask", "p = i + 2."),
        ({"mask": np.ones((3, 5))}, "j <= p and mask > -inf", "p = i + 2."),
    ],
)
def test_the_rules_of_the_mask(options: dict[str, Any], formula: str, about: str) -> None:
    q, k, v = make_qkv(5, "float64", batch=2, tokens=(3, 5))
    step = headway.trace(q, k, v, **options)["mask_1"]
    assert step.formula == formula
    assert step.about.endswith(about)


def test_what_goes_to_the_sink() -> None:
    q, k, v = make_qkv(6, "float64", tokens=(3, 5))
    trace = headway.trace(q, k, v, sinks=[1.0, -np.inf], align=-1)
    for n in (1, 2):
        sums = trace[f"weights_{n}"].array.sum(axis=-1, keepdims=True)
        share = trace[f"sink_weights_{n}"].array
        assert share.shape == (1, 3, 1)
        empty = np.array([True, False, False])[:, None] if n == 2 else np.zeros((3, 1), bool)
        np.testing.assert_allclose((sums + share)[0], np.where(empty, 0.0, 1.0), rtol=1e-12)


def test_a_hidden_nan_stays_hidden() -> None:
    q, k, v = make_qkv(7, "float32", tokens=(4, 4))
    k[:, :, 3] = v[:, :, 3] = np.nan
    trace = headway.trace(q, k, v)
    assert np.isnan(trace["scores_1"].array[0, :, 3]).all()
    assert np.isfinite(trace["weights_1"].array[0, :3]).all()
    assert np.isfinite(trace["Z"].array[0, :, :3]).all()
    assert np.isnan(trace["Z"].array[0, :, 3]).all()
    assert trace.agrees


def test_a_row_of_scores_of_minus_infinity_is_empty() -> None:
    q, k, v = np.full((1, 2), -np.inf), np.ones((3, 2)), np.full((3, 2), np.nan)
    trace = headway.trace(q, k, v)
    assert trace["mask_1"].array.all()
    assert not trace["weights_1"].array.any()
    np.testing.assert_array_equal(trace["Z"].array, 0.0)
    assert trace.agrees


def test_a_finite_mask_stays_finite() -> None:
    q, k, v = make_qkv(8, "float32", tokens=(2, 2))
    trace = headway.trace(q, k, v, mask=np.array([[0, 0], [-1e300, -1e300]]))
    assert np.isfinite(trace["biased_1"].array).all()
    assert trace["mask_1"].array[0].tolist() == [[True, False], [True, True]]
    assert trace.agrees


@pytest.mark.parametrize("shape", [(0, 2, 3), (1, 0, 3), (1, 2, 0)])
@pytest.mark.parametrize("layout", ["BHTD", "BTHD"])
def test_empty_calls(shape: tuple[int, int, int], layout: str) -> None:
    x = np.zeros((*shape, 4), np.float32)
    x = x if layout == "BHTD" else x.swapaxes(1, 2)
    trace = headway.trace(x, x, x, layout=layout)
    assert trace["Z"].shape == x.shape
    assert (trace.difference, trace.largest, trace.agrees) == (0.0, 0.0, True)
    if shape[0]:
        assert "They agree" in str(trace)


def test_a_wrong_kernel_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = make_qkv(9, "float32")
    true = headway.attention
    monkeypatch.setattr("headway.tracing.attention", lambda *a, **b: true(*a, **b) + 0.25)
    trace = headway.trace(q, k, v)
    assert trace.difference == pytest.approx(0.25, rel=1e-5)
    assert not trace.agrees
    assert "THEY DO NOT AGREE" in str(trace)


def test_differences_of_nan_and_infinity() -> None:
    nan, inf = np.nan, np.inf
    one = np.array([1.0, nan, inf, -inf])
    assert trace_build.compare(one, one) == (0.0, 1.0)
    for other in ([1.0, nan, inf, inf], [1.0, 0.0, inf, -inf], [nan, nan, inf, -inf]):
        assert trace_build.compare(one, np.array(other))[0] == inf


def test_the_inputs_are_copied() -> None:
    q, k, v = make_qkv(10, "float32")
    trace = headway.trace(q, k, v)
    before = trace["Q_1"].array.copy()
    q[...] = 0
    np.testing.assert_array_equal(trace["Q_1"].array, before)


def test_a_step_is_taken_for_its_array() -> None:
    step = headway.trace(*make_qkv(11, "float32"))["weights_1"]
    assert np.asarray(step) is step.array or np.shares_memory(np.asarray(step), step.array)
    assert np.array(step).flags.writeable
    assert np.asarray(step, np.float64).dtype == np.float64
    np.testing.assert_array_equal(np.add(step, 1.0), step.array + 1.0)
    with pytest.raises(ValueError, match="copy: expected True or None for another dtype"):
        step.__array__(np.float64, copy=False)
