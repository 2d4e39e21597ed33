"""The benchmark's rows of the backward pass and of training: arithmetic, calls, memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from bench_files import module

import headway

backward_memory = module("backward_memory")
gradient_reference = module("gradient_reference")
inputs = module("inputs")
memory = module("memory")
options = module("options")
rivals = module("rivals")
training_rows = module("training_rows")

ROWS = {row.id: row for row in training_rows.training_rows()}
OPTIONS = ("plain", *options.TRAINED)
DTYPES = ("float32", "bfloat16", "float16")


def small(dtype: str = "float32", part: str = "both", option: str = "plain", **more: Any) -> Any:
    """A row with gradients at a size that a test can afford, with shared key heads."""
    made = training_rows.backward("small", (2, 4, 2, 70, 16), dtype, part=part, option=option)
    return replace(made, **more)


def step(dtype: str) -> Any:
    row = ROWS["train-step/float32"]
    return replace(row, dtype=dtype, batch=2, num_queries=33, num_keys=33, head_dim=8)


def right(row: Any, prepared: Any, made: Any) -> None:
    got, wanted = prepared.result(prepared.call()), gradient_reference.expected(row, made)
    assert inputs.error_of(got, *wanted) < inputs.TOLERANCES[row.dtype]
    start = 0
    for end in wanted[0]:  # a fault in any of the arrays is seen
        spoilt = got.copy()
        spoilt[start:end] *= 1.1
        assert inputs.error_of(spoilt, *wanted) > inputs.TOLERANCES[row.dtype]
        start = end
    assert start == got.size


def test_the_rows_are_those_that_the_claims_speak_of() -> None:
    wanted = {(1, 12, 12, 1024, 64), (4, 12, 12, 512, 64), (1, 32, 32, 1024, 128)}
    for dtype in ("float32", "bfloat16"):
        for end, part in (("", "both"), ("-one", "both"), ("-alone", "backward")):
            found = [ROWS[f"{name}{end}/{dtype}"] for name in training_rows.SIZES]
            shapes = {(r.batch, r.num_heads, r.num_kv_heads, r.num_keys, r.head_dim) for r in found}
            assert shapes == wanted
            assert {row.part for row in found} == {part}
        assert ROWS[f"backward-16384/{dtype}"].long
        assert ROWS[f"train-step/{dtype}"].width == 768
    assert all(row.num_queries == row.num_keys for row in ROWS.values())


def test_work_is_that_of_the_products() -> None:
    row = small()
    pairs = 70 * 71 // 2
    assert row.flops == 3.5 * 4 * 2 * 4 * pairs * 16
    assert replace(row, part="backward").flops == 2.5 * 4 * 2 * 4 * pairs * 16
    narrow = small(option="window", num_queries=700, num_keys=700)
    seen = inputs.allowed(narrow, inputs.make_inputs(narrow)).sum()
    assert narrow.flops == 14 * 2 * 4 * seen * 16 < narrow.plain_flops
    layer = step("float32")
    attention = 14 * 2 * 12 * (33 * 34 // 2) * 8
    assert layer.flops == attention + 3 * 8 * 2 * 33 * 96**2


def test_who_takes_part() -> None:
    def names(name: str) -> list[str]:
        return [c.name for c in rivals.offered(ROWS[name])]

    assert names("backward-1024/float32") == ["headway", "torch-backward"]
    assert names("backward-1024-one/bfloat16") == ["headway@1", "torch-backward@1"]
    assert {rivals.CONTESTANTS[who].threads for who in training_rows.ONE_THREAD} == {1}
    assert names("backward-1024-alone/float32") == ["headway", "headway@1", "torch-backward"]
    assert names("backward-options-window/float32")[:2] == ["headway", "headway-plain"]
    assert names("backward-options-dropout/float32") == ["headway", "headway-plain"]
    assert names("train-step/bfloat16") == ["headway", "headway-assign", "torch-train"]


@pytest.mark.parametrize("option", OPTIONS)
def test_the_reference_agrees_with_the_library_s(
    option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradient_reference, "BLOCK", 32)
    own = module("rivals.own")
    row = small(option=option)
    made = inputs.make_inputs(row)
    wide = [made[name].astype(np.float64) for name in ("grad_out", "q", "k", "v")]
    given = own.keywords(row, made)
    out, lse = headway.reference.attention(*wide[1:], return_lse=True, **given)
    of_all = headway.reference.attention_backward(*wide, out, lse, **given)
    ends, found = gradient_reference.expected(row, made)
    assert inputs.error_of(gradient_reference.flat([out, *of_all]), ends, found) < 1e-6
    ends, found = gradient_reference.expected(replace(row, part="backward"), made)
    assert inputs.error_of(gradient_reference.flat(list(of_all)), ends, found) < 1e-6


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("part", ["both", "backward"])
def test_headway_s_own_gradients_are_right(option: str, part: str) -> None:
    own = module("rivals.own")
    row = small(option=option, part=part)
    made = inputs.make_inputs(row)
    for name in ("headway", "headway@1", "headway-plain"):
        right(row, own.PREPARE[name](row, made), made)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_every_dtype_are_right(dtype: str) -> None:
    pytest.importorskip("ml_dtypes")
    own = module("rivals.own")
    row = small(dtype)
    made = inputs.make_inputs(row)
    right(row, own.PREPARE["headway"](row, made), made)


@pytest.mark.parametrize("option", [*OPTIONS[:-1], "gqa"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_pytorch_s_gradients_are_right(dtype: str, option: str) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("ml_dtypes")
    pytorch = module("rivals.pytorch_training")
    more = {} if option == "gqa" else {"num_kv_heads": 4}
    for part in ("both", "backward"):
        row = small(dtype, part, "plain" if option == "gqa" else option, **more)
        made = inputs.make_inputs(row)
        right(row, pytorch.PREPARE["torch-backward"](row, made), made)


@pytest.mark.parametrize("dtype", DTYPES)
def test_headway_s_training_step_is_right(dtype: str) -> None:
    pytest.importorskip("ml_dtypes")
    own = module("rivals.own")
    row = step(dtype)
    made = inputs.make_inputs(row)
    for name in ("headway", "headway-assign"):
        right(row, own.PREPARE[name](row, made), made)


@pytest.mark.parametrize("quickest", [0, 1])
@pytest.mark.parametrize("dtype", DTYPES)
def test_pytorch_s_training_step_is_right(
    dtype: str, quickest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("ml_dtypes")
    pytorch = module("rivals.pytorch_training")
    monkeypatch.setattr(pytorch, "fastest", lambda candidates: candidates[quickest])
    row = step(dtype)
    made = inputs.make_inputs(row)
    right(row, pytorch.PREPARE["torch-train"](row, made), made)


@pytest.mark.skipif(not memory.RESET.exists(), reason="this machine: no /proc/self/clear_refs")
def test_a_long_row_says_what_memory_it_takes() -> None:
    own = module("rivals.own")
    row = small(batch=1, num_queries=2048, num_keys=2048, head_dim=32)
    assert own.PREPARE["headway"](row, inputs.make_inputs(row)).facts == {}
    found = backward_memory.in_a_process(2048, 4, 2, 32, "float32")
    assert 0 < found < row.score_bytes / 2
