"""The benchmark's rows, arithmetic, inputs and references; how a turn is cut."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from bench_files import BENCH, module

from headway.timing import turns

inputs = module("inputs")
machine = module("machine")
rivals = module("rivals")
rows = module("rows")
study = module("rivals.study")
plain_numpy = module("rivals.plain_numpy")

TINY = rows.attention("t", (2, 4, 2, 5, 9, 8), "float32")


@pytest.mark.parametrize(("queries", "keys"), [(7, 7), (1, 9), (5, 9), (9, 5), (0, 4), (4, 0)])
def test_visible_pairs(queries: int, keys: int) -> None:
    visible = np.arange(keys) <= np.arange(queries)[:, None] + keys - queries
    assert rows.visible_pairs(queries, keys) == visible.sum()


def test_flops_count_the_visible_pairs_only() -> None:
    assert rows.attention("s", (2, 6, 3, 33, 16), "float32").flops == 4 * 2 * 6 * 16 * 33 * 34 // 2
    assert TINY.flops == 4 * 2 * 4 * (5 + 6 + 7 + 8 + 9) * 8
    layer = rows.module("m", 2, 5, 4, 8, "float32")
    assert layer.flops == 4 * 2 * 4 * 8 * 15 + 4 * 2 * (2 * 5) * 32 * 32
    product = rows.Row("p", "projection", "float32", num_queries=3, d_in=5, d_out=7)
    assert product.flops == 2 * 3 * 5 * 7


def test_the_grid_names_every_row_once_and_survives_json() -> None:
    every = rows.all_rows()
    names = [row.id for row in every]
    assert len(names) == len(set(names))
    assert [rows.Row.from_json(row.to_json()) for row in every] == every
    kinds = {"attention", "options", "packed", "decode", "module", "projection", "stages"}
    kinds |= {"backward", "train"}
    assert {row.kind for row in every} == kinds
    assert {row.kind for row in every if row.quick} == {row.kind for row in every}
    long = [row for row in every if row.long]
    assert {(row.dtype, row.layout) for row in long} == {("float32", "BHTD"), ("bfloat16", "BHTD")}


def test_every_contestant_has_a_module_and_every_row_has_contestants() -> None:
    for contestant in rivals.CONTESTANTS.values():
        path = BENCH / rivals.MODULES[contestant.family].replace(".", "/")
        assert path.with_suffix(".py").is_file()
    assert all(rivals.offered(row) for row in rows.all_rows())
    assert "study" not in [c.name for c in rivals.offered(TINY)]


@pytest.mark.parametrize("layout", ["BHTD", "BTHD"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_inputs_have_the_row_s_shape_dtype_and_memory_order(dtype: str, layout: str) -> None:
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    row = rows.attention("t", (2, 4, 2, 5, 9, 8), dtype, layout=layout)
    made = inputs.make_inputs(row)
    assert [made[n].shape for n in "qkv"] == [(2, 4, 5, 8), (2, 2, 9, 8), (2, 2, 9, 8)]
    assert {made[n].dtype.name for n in "qkv"} == {dtype}
    order = made["q"] if layout == "BHTD" else made["q"].swapaxes(1, 2)
    assert order.flags.c_contiguous
    assert np.array_equal(made["k"], inputs.make_inputs(row)["k"])


def test_the_reference_agrees_with_the_library_s() -> None:
    import headway

    made = inputs.make_inputs(TINY)
    chosen, wanted = inputs.expected(TINY, made)
    assert np.array_equal(chosen, np.arange(5))
    np.testing.assert_allclose(
        wanted, headway.reference.attention(*made.arrays.values()), atol=1e-6
    )


def test_large_rows_are_sampled_and_errors_there_are_seen() -> None:
    row = rows.attention("l", (1, 1, 1, 6000, 64), "float32")
    chosen, wanted = inputs.expected(row, inputs.make_inputs(row))
    assert {0, 1, 3000, 5998, 5999} <= set(chosen)
    assert len(chosen) < 60
    right = np.zeros((1, 1, 6000, 64))
    right[:, :, chosen] = wanted
    assert inputs.error_of(right, chosen, wanted) == 0
    for value in (0.5, np.nan):
        wrong = right.copy()
        wrong[0, 0, 3000, 7] += value
        assert inputs.error_of(wrong, chosen, wanted) > 0.1
    assert inputs.error_of(right[..., :5], chosen, wanted) == np.inf


@pytest.mark.parametrize("layout", ["BHTD", "BTHD"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_the_numpy_rival_is_right(dtype: str, layout: str) -> None:
    row = rows.attention("t", (2, 4, 2, 5, 9, 8), dtype, layout=layout)
    made = inputs.make_inputs(row)
    prepared = plain_numpy.PREPARE["numpy"](row, made)
    got = prepared.result(prepared.call())
    assert inputs.error_of(got, *inputs.expected(row, made)) < inputs.TOLERANCES[dtype]


@pytest.mark.parametrize("kind", ["module", "projection"])
def test_headway_s_own_modules_and_products_are_right(kind: str) -> None:
    own = module("rivals.own")
    row = rows.module("m", 2, 6, 4, 8, "float32")
    if kind == "projection":
        row = rows.Row("p", "projection", "float32", num_queries=3, d_in=5, d_out=7)
    made = inputs.make_inputs(row)
    names = ("headway", "headway-attention") if kind == "module" else ("headway",)
    for name in names:
        prepared = own.PREPARE[name](row, made)
        got = prepared.result(prepared.call())
        assert inputs.error_of(got, *inputs.expected(row, made)) < 2e-5


def test_what_stores_the_scores_refuses_long_rows() -> None:
    row = rows.attention("l", (1, 8, 8, 16384, 64), "float32")
    with pytest.raises(rivals.Unsupported, match=r"8\.0 GiB"):
        rivals.refuse_large_scores(row)


@pytest.mark.parametrize(
    ("estimate", "rounds", "calls", "inner"),
    [(3e-6, 5, 400, 7), (1e-3, 5, 120, 1), (0.05, 5, 6, 1), (0.2, 5, 3, 1), (9.0, 3, 1, 1)],
)
def test_a_turn_is_long_enough_and_short_enough(
    estimate: float, rounds: int, calls: int, inner: int
) -> None:
    assert turns.turn(estimate, rounds)[:2] == (calls, inner)


def test_a_quicker_way_is_chosen_and_broken_ones_are_left_out() -> None:
    def broken() -> None:
        raise ValueError("broken")

    def slow() -> None:
        sum(range(200_000))

    quick = ("quick", lambda: None)
    assert rivals.fastest([("broken", broken), ("slow", slow), quick]) == quick
    with pytest.raises(ValueError, match="broken"):
        rivals.fastest([("a", broken), ("b", broken)])


def test_the_study_s_lines_are_read() -> None:
    text = (
        "(1,12,128,64) nt1 F32 qk4x4 pv4x4 var3 min    247.9 us med    251.2 us |  102.3 GF "
        "87.7% (med 86.5%; cpu-time med 86.4% best 87.5%) n=42\n"
        "(1,12,128,64) nt1 OTHER min    300.0 us med    301.2 us | n=7\n"
    )
    assert study.parse(text) == ([247.9e-6, 251.2e-6], 42)
    with pytest.raises(RuntimeError, match="no times"):
        study.parse("usage")


def test_blas_settings_are_taken_out_of_the_environment() -> None:
    program = (
        "import machine, os; machine.without_blas_overrides(); "
        "print(sorted(set(machine.OVERRIDES) & set(os.environ)))"
    )
    env = {**os.environ, "OPENBLAS_CORETYPE": "Haswell", "OPENBLAS_L2_SIZE": "1"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=BENCH, env=env, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("layout", ["BHTD", "BTHD"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_pytorch_s_attention_is_right(dtype: str, layout: str) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("ml_dtypes")
    pytorch = module("rivals.pytorch")
    for sizes in ((1, 4, 4, 17, 8), (2, 4, 2, 17, 8), (2, 4, 2, 5, 9, 8)):
        row = rows.attention("t", sizes, dtype, layout=layout)
        made = inputs.make_inputs(row)
        prepared = pytorch.PREPARE["torch"](row, made)
        got = prepared.result(prepared.call())
        assert inputs.error_of(got, *inputs.expected(row, made)) < inputs.TOLERANCES[dtype]


def test_pytorch_s_modules_and_products_are_right() -> None:
    pytest.importorskip("torch")
    pytorch = module("rivals.pytorch")
    layer = rows.module("m", 2, 6, 4, 8, "float32")
    product = rows.Row("p", "projection", "float32", num_queries=3, d_in=5, d_out=7)
    for row, name in ((layer, "torch-module"), (layer, "torch-mha"), (product, "torch-linear")):
        made = inputs.make_inputs(row)
        prepared = pytorch.PREPARE[name](row, made)
        got = prepared.result(prepared.call())
        assert inputs.error_of(got, *inputs.expected(row, made)) < 2e-5
