"""ONNX's operator Attention: mixed dtypes, precision, masks of integers, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import TOLERANCE, assert_close, dtype_of, make

from headway.interop.onnx import attention

Q, K, V = make(1, (2, 4, 3, 8)), make(2, (2, 2, 5, 8)), make(3, (2, 2, 5, 6))


@pytest.mark.parametrize("values", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_values_of_another_dtype(dtype: str, values: str) -> None:
    """Y has the dtype of Q, present_value that of V, and nothing is rounded to the narrower."""
    past = K.astype(dtype_of(dtype)), V.astype(dtype_of(values))
    q, (k, v) = Q.astype(dtype_of(dtype)), past
    out, key, value, _ = attention(q, k, v, past_key=k, past_value=v)
    assert key is not None
    assert value is not None
    assert [x.dtype for x in (out, key, value)] == [q.dtype, k.dtype, v.dtype]
    wide = [x.astype(np.float64) for x in (q, k, v, k, v)]
    wanted = attention(*wide[:3], past_key=wide[3], past_value=wide[4])[0]
    assert_close(out, wanted, TOLERANCE[dtype])


def test_the_softmax_in_float64() -> None:
    q, k, v = (x.astype(np.float32) for x in (Q, K, V))
    *_, plain = attention(q, k, v, scale=9.0, qk_matmul_output_mode=3)
    *_, precise = attention(q, k, v, scale=9.0, qk_matmul_output_mode=3, softmax_precision=11)
    wide = [x.astype(np.float64) for x in (q, k, v)]
    *_, wanted = attention(*wide, scale=9.0, qk_matmul_output_mode=3)
    assert plain is not None
    assert precise is not None
    assert wanted is not None
    assert precise.dtype == np.float32
    np.testing.assert_array_equal(precise, wanted.astype(np.float32))
    assert (plain != precise).any()


@pytest.mark.parametrize("precision", [1, 10, 16])
def test_the_softmax_is_never_less_precise(precision: int) -> None:
    wanted = attention(Q, K, V)[0]
    np.testing.assert_array_equal(attention(Q, K, V, softmax_precision=precision)[0], wanted)


@pytest.mark.parametrize("dtype", ["int64", "uint8", "int8", "bfloat16"])
def test_masks_of_numbers_are_added(dtype: str) -> None:
    mask = np.arange(15).reshape(3, 5).astype(dtype_of(dtype))
    got = attention(Q, K, V, mask)[0]
    np.testing.assert_array_equal(got, attention(Q, K, V, mask.astype(np.float64))[0])


@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("width", [0, 1, 3])
def test_a_short_mask_forbids_the_rest(kind: str, width: int) -> None:
    mask = np.ones((3, width), bool) if kind == "bool" else np.zeros((3, width))
    got = attention(Q, K, V, mask)[0]
    wanted = attention(Q, K[:, :, :width], V[:, :, :width])[0]
    assert_close(got, wanted, 1e-14)


def test_scores_beyond_float16_are_infinite() -> None:
    q = np.full((1, 1, 1, 8), 200, np.float16)
    *_, scores = attention(q, q, q, scale=1.0, qk_matmul_output_mode=0)
    assert scores is not None
    assert scores.dtype == np.float16
    assert np.isposinf(scores).all()


def test_inputs_stay_as_they_are_and_nothing_is_shared() -> None:
    q, k, v = Q.copy(), K.copy(), V.copy()
    for x in (q, k, v):
        x.flags.writeable = False
    out, key, value, _ = attention(q, k, v, past_key=k, past_value=v)
    assert key is not None
    assert value is not None
    assert out.flags.c_contiguous
    assert not any(np.shares_memory(a, b) for a in (key, value) for b in (k, v))


flat = Q.swapaxes(1, 2).reshape(2, 3, 32)
flat_k, flat_v = (x.swapaxes(1, 2).reshape(2, 5, -1) for x in (K, V))

REFUSED: list[tuple[type[Exception], str, tuple[Any, ...], dict[str, Any]]] = [
    (TypeError, "Q: expected float32, float64, float16", (Q.astype(int), K, V), {}),
    (TypeError, "K: expected float64 like Q, got float32", (Q, K.astype("f"), V), {}),
    (ValueError, "Q: expected 3 or 4 axes", (Q[0, 0], K[0, 0], V[0, 0]), {}),
    (ValueError, "V: expected 4 axes like Q", (Q, K, flat_v), {}),
    (ValueError, "q_num_heads: expected a number of heads for Q", (flat, flat_k, flat_v), {}),
    (ValueError, "kv_num_heads: expected 2 like the heads of K", (Q, K, V), {"kv_num_heads": 4}),
    (TypeError, "q_num_heads: expected an int", (Q, K, V), {"q_num_heads": 4.0}),
    (
        ValueError,
        "Q: expected a last axis that is a multiple of q_num_heads=5",
        (flat, flat_k, flat_v),
        {"q_num_heads": 5, "kv_num_heads": 2},
    ),
    (ValueError, "is_causal: expected 0 or 1, got 2", (Q, K, V), {"is_causal": 2}),
    (ValueError, "left_window_size: expected -1 or more", (Q, K, V), {"left_window_size": -2}),
    (TypeError, "right_window_size: expected an int", (Q, K, V), {"right_window_size": 1.5}),
    (ValueError, "qk_matmul_output_mode: expected 0, 1", (Q, K, V), {"qk_matmul_output_mode": 4}),
    (ValueError, "softmax_precision: expected 1, 10", (Q, K, V), {"softmax_precision": 2}),
    (ValueError, "past_value: expected an array beside", (Q, K, V), {"past_key": K}),
    (
        ValueError,
        r"past_value: expected shape \(2, 2, 5, 6\)",
        (Q, K, V),
        {"past_key": K, "past_value": V[:, :, :4]},
    ),
    (
        TypeError,
        "past_key: expected float64 like K, got float32",
        (Q, K, V),
        {"past_key": K.astype("f"), "past_value": V},
    ),
    (
        ValueError,
        "nonpad_kv_seqlen: expected None beside past_key",
        (Q, K, V),
        {"past_key": K, "past_value": V, "nonpad_kv_seqlen": np.array([1, 2])},
    ),
    (
        ValueError,
        "nonpad_kv_seqlen: expected 2 ints from 0 to 5",
        (Q, K, V),
        {"nonpad_kv_seqlen": np.array([1, 6])},
    ),
    (
        TypeError,
        "nonpad_kv_seqlen: expected 2 ints",
        (Q, K, V),
        {"nonpad_kv_seqlen": np.array([1.0, 2.0])},
    ),
    (ValueError, "attn_mask: expected a shape that", (Q, K, V, np.ones((2, 5), bool)), {}),
    (ValueError, "attn_mask: expected a shape that", (Q, K, V, np.ones((3, 6), bool)), {}),
    (TypeError, "attn_mask: expected float32", (Q, K, V, np.ones((3, 5), complex)), {}),
    (ValueError, "softcap: expected a finite number", (Q, K, V), {"softcap": -1.0}),
    (ValueError, "scale: expected a finite number", (Q, K, V), {"scale": np.inf}),
]


@pytest.mark.parametrize(("kind", "text", "inputs", "attributes"), REFUSED)
def test_what_is_refused(
    kind: type[Exception], text: str, inputs: tuple[Any, ...], attributes: dict[str, Any]
) -> None:
    with pytest.raises(kind, match=text):
        attention(*inputs, **attributes)
