"""Dropout in a trace: the weights that are dropped are a step, and the result is the kernel's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import DTYPES, assert_same_bits, make_qkv

import headway

DROPPED: dict[str, Any] = {"dropout": 0.4, "seed": 2**40 + 3}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["BHTD", "BTHD"])
def test_the_weights_are_those_that_attention_shows(layout: str, dtype: str) -> None:
    q, k, v = make_qkv(3, dtype, batch=2, heads=(4, 2), tokens=(5, 9))
    if layout == "BTHD":
        q, k, v = (np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v))
    trace = headway.trace(q, k, v, layout=layout, window=6, **DROPPED)
    assert trace.agrees
    wanted = headway.attention_weights(q, k, layout=layout, window=6, **DROPPED)
    for n in range(1, 5):
        step = trace[f"dropped_weights_{n}"]
        assert step.formula == f"weights_{n} * kept / (1 - 0.4)"
        assert trace[f"Z_{n}"].formula == f"dropped_weights_{n} @ V_{n}"
        head = wanted[:, n - 1].astype(np.float64)
        np.testing.assert_array_equal(step.array == 0, head == 0)
        np.testing.assert_allclose(step.array, head, atol=1e-5 if q.itemsize > 2 else 1e-2)
    assert "dropout=0.4, seed=" in trace.options
    text = str(trace)
    assert "dropped_weights_1" in text
    assert "dropped_weights_4" in text
    assert "dropped_weights_2" in trace.to_html()


def test_without_dropout_there_is_no_such_step() -> None:
    q, k, v = make_qkv(3, "float32")
    assert "dropped_weights_1" not in headway.trace(q, k, v, dropout=0.0)


@pytest.mark.parametrize("stage", ["one", "stacked", "efficient"])
def test_modules(stage: str) -> None:
    """In training mode alone; both stages drop the same weights."""
    options: dict[str, Any] = {"dropout": 0.5, "seed": 1}
    stacked = headway.StackedMultiHeadAttention.init(6, 8, num_heads=2, **options)
    module: Any = {"one": stacked[0], "stacked": stacked, "efficient": stacked.fuse()}[stage]
    x = np.random.default_rng(0).standard_normal((2, 7, 6), dtype=np.float32)
    trace = module.trace(x, training=True, seed=5)
    assert trace.agrees
    assert_same_bits(trace.kernel, module(x, training=True, seed=5))
    assert (trace["dropped_weights_1"].array == 0).sum() > (trace["weights_1"].array == 0).sum()
    if stage == "efficient":
        other = stacked.trace(x, training=True, seed=5)
        same = trace["dropped_weights_2"].array == 0
        np.testing.assert_array_equal(same, other["dropped_weights_2"].array == 0)
    plain = module.trace(x)
    assert "dropped_weights_1" not in plain
    assert plain.agrees


def test_a_trace_refuses_what_the_call_refuses() -> None:
    q, k, v = make_qkv(3, "float32")
    with pytest.raises(ValueError, match="seed: "):
        headway.trace(q, k, v, dropout=0.1)
    module = headway.CausalAttention.init(3, 2, dropout=0.1)
    with pytest.raises(ValueError, match="seed: "):
        module.trace(np.ones((2, 3), np.float32), training=True)
