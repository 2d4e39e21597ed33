"""Every refusal of the modules: the exception, and a text with argument, wanted, got and fix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import dtype_of
from module_helpers import both_stages

from headway import CausalAttention, MultiHeadAttention, StackedMultiHeadAttention


def w(*shape: int, dtype: Any = np.float32) -> Any:
    return np.ones(shape, dtype)


def head(d_in: int = 3, head_dim: int = 4, **options: Any) -> CausalAttention:
    return CausalAttention.init(d_in, head_dim, **options)


def one(w_query: Any = None, w_key: Any = None, w_value: Any = None, **options: Any) -> Any:
    given = [w(3, 4) if x is None else x for x in (w_query, w_key, w_value)]
    return CausalAttention(*given, **options)


def many(w_query: Any = None, w_key: Any = None, w_value: Any = None, **options: Any) -> Any:
    given = [w(3, 4) if x is None else x for x in (w_query, w_key, w_value)]
    return MultiHeadAttention(*given, **{"num_heads": 2, **options})


def stack(*heads: Any, **options: Any) -> Any:
    return StackedMultiHeadAttention(heads, **options)


def init(*sizes: Any, **options: Any) -> Any:
    return MultiHeadAttention.init(*(sizes or (3, 4)), **{"num_heads": 2, **options})


def call(*shape: int, dtype: Any = np.float32) -> Callable[[], Any]:
    return lambda: init()(w(*shape, dtype=dtype))


def assign(module: Any, name: str, value: Any) -> None:
    setattr(module, name, value)


FIX_32 = "convert with {}.astype(np.float32)"

REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    # one head
    (lambda: one([[1.0]]), TypeError, "w_query: expected a NumPy array or an object with"),
    (lambda: one(w(3, 4, dtype=int)), TypeError, "w_query: expected float32, float64, float16 or"),
    (
        lambda: one(w(4)),
        ValueError,
        "w_query: expected a matrix (d_in, head_dim), both at least 1, got shape (4,); ",
    ),
    (lambda: one(w(3, 0)), ValueError, "got shape (3, 0); "),
    (
        lambda: one(w_key=w(3, 5)),
        ValueError,
        "w_key: expected shape (3, 4), got (3, 5); the three matrices of a head have the shape of",
    ),
    (
        lambda: one(w_value=w(3, 4, dtype=np.float64)),
        TypeError,
        "w_value: expected float32 like w_query, got float64; " + FIX_32.format("w_value"),
    ),
    (
        lambda: one(b_key=w(3)),
        ValueError,
        "b_key: expected shape (4,), got (3,); one number for each column of w_key",
    ),
    (
        lambda: one(b_query=w(4, dtype=np.float16)),
        TypeError,
        "b_query: expected float32 like w_query, got float16; " + FIX_32.format("b_query"),
    ),
    # a stack of heads
    (
        lambda: stack(),
        ValueError,
        "heads: expected at least one head, got none; pass a list of headway.CausalAttention",
    ),
    (
        lambda: StackedMultiHeadAttention(3),  # type: ignore[arg-type]
        TypeError,
        "heads: expected CausalAttention modules, got int; pass a list of headway.CausalAttention",
    ),
    (
        lambda: stack(head(), w(3, 4)),
        TypeError,
        "heads[1]: expected a CausalAttention, got ndarray; pass a list of headway.CausalAttention",
    ),
    (
        lambda: stack(head(), head(5)),
        ValueError,
        "heads[1]: expected d_in 3 like heads[0], got 5; all heads read the same x",
    ),
    (
        lambda: stack(head(), head(dtype=np.float64)),
        TypeError,
        "heads[1].w_query: expected float32 like heads[0].w_query, got float64; convert with",
    ),
    (
        lambda: stack(head(), head(), w_out=w(4, 4)),
        ValueError,
        "w_out: expected a matrix (8, d_out), d_out at least 1, got shape (4, 4); it has one row",
    ),
    (
        lambda: stack(head(), b_out=w(4)),
        ValueError,
        "b_out: expected None without w_out; give w_out, too",
    ),
    # all heads at once
    (
        lambda: many(num_heads=3),
        ValueError,
        "w_query: expected columns for 3 heads of one head_dim, got 4 in shape (3, 4); num_heads",
    ),
    (
        lambda: many(num_heads=0),
        ValueError,
        "num_heads: expected at least 1, got 0; pass an int of at least 1",
    ),
    (
        lambda: many(num_heads=2.0),
        TypeError,
        "num_heads: expected an int, got float; pass an int of at least 1",
    ),
    (lambda: many(num_heads=True), TypeError, "num_heads: expected an int, got bool; pass"),
    (
        lambda: many(num_heads=4, num_kv_heads=3),
        ValueError,
        "num_kv_heads: expected a divisor of num_heads=4, got 3; every key and value head",
    ),
    (
        lambda: many(num_heads=2, num_kv_heads=4),
        ValueError,
        "num_kv_heads: expected a divisor of num_heads=2, got 4; every key and value head",
    ),
    (
        lambda: many(w_key=w(3, 2)),
        ValueError,
        "w_key: expected shape (3, 4), got (3, 2); it has head_dim 2 columns for each of 2 key "
        "and value heads; pass num_kv_heads if there are fewer",
    ),
    (lambda: many(w_value=w(5, 4)), ValueError, "w_value: expected shape (3, 4), got (5, 4); "),
    (
        lambda: many(w_out=w(4, 4, dtype=np.float64)),
        TypeError,
        "w_out: expected float32 like the other weights, got float64; convert with w_out.astype",
    ),
    (lambda: many(w_out=w(4)), ValueError, "w_out: expected a matrix (4, d_out), d_out at least"),
    (
        lambda: many(w_out=w(4, 6), b_out=w(4)),
        ValueError,
        "b_out: expected shape (6,), got (4,); one number for each column of w_out",
    ),
    # initial weights
    (
        lambda: init(3, 5),
        ValueError,
        "d_out: expected a multiple of num_heads=2, got 5; pass e.g. 6",
    ),
    (lambda: init(0, 4), ValueError, "d_in: expected at least 1, got 0; pass an int of at least"),
    (lambda: init("3", 4), TypeError, "d_in: expected an int, got str; pass an int of at least 1"),
    (lambda: init(seed=-1), ValueError, "seed: expected at least 0, got -1; pass an int of at"),
    (lambda: init(seed=1.5), TypeError, "seed: expected an int, got float; pass an int of at"),
    (
        lambda: init(dtype=np.int32),
        TypeError,
        "dtype: expected float32, float64, float16 or bfloat16 in native byte order, got <i4; pass",
    ),
    (
        lambda: init(dtype="half precision"),
        TypeError,
        "dtype: expected float32, float64, float16 or bfloat16, got 'half precision'; pass e.g.",
    ),
    (lambda: init(dtype=">f4"), TypeError, "in native byte order, got >f4; pass e.g. np.float32"),
    # the input
    (lambda: init()([[1.0]]), TypeError, "x: expected a NumPy array or an object with __dlpack__"),
    (
        call(2, 3, dtype=np.float64),
        TypeError,
        "x: expected float32 like the module's weights, got float64; " + FIX_32.format("x"),
    ),
    (
        lambda: init(dtype="bfloat16")(w(2, 3)),
        TypeError,
        "x: expected bfloat16 like the module's weights, got float32; convert with "
        "x.astype('bfloat16')",
    ),
    (call(2, 3, dtype=np.int64), TypeError, "x: expected float32, float64, float16 or bfloat16"),
    (
        call(3),
        ValueError,
        "x: expected (B, T, 3) or (T, 3), got shape (3,); add a token axis, x[None]",
    ),
    (
        call(1, 1, 2, 3),
        ValueError,
        "x: expected (B, T, 3) or (T, 3), got shape (1, 1, 2, 3); reshape it",
    ),
    (
        call(3, 2),
        ValueError,
        "x: expected 3 numbers per token (last axis) like the rows of w_query, got 2 in shape "
        "(3, 2); embed the tokens in 3 numbers",
    ),
    # a new weight
    (
        lambda: assign(head(), "w_query", w(4, 3)),
        ValueError,
        "w_query: expected shape (3, 4), got (4, 3); a weight is replaced by one of the same",
    ),
    (
        lambda: assign(init(), "w_key", w(3, 4, dtype=np.float64)),
        TypeError,
        "w_key: expected float32 like the weight it replaces, got float64; "
        + FIX_32.format("w_key"),
    ),
    (lambda: assign(init(), "w_value", None), TypeError, "w_value: expected a NumPy array or an"),
    (
        lambda: assign(init(), "b_query", w(4)),
        ValueError,
        "b_query: expected a weight that this module has, and it was built without b_query; "
        "build a new MultiHeadAttention with b_query=...",
    ),
    (
        lambda: assign(stack(head()), "w_out", w(4, 4)),
        ValueError,
        "build a new StackedMultiHeadAttention with w_out=...",
    ),
]


@pytest.mark.parametrize(("wrong", "error", "text"), REFUSED, ids=[case[2] for case in REFUSED])
def test_refused(wrong: Callable[[], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        wrong()
    assert type(caught.value) is error
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_offered_fix_works() -> None:
    module = init(dtype="bfloat16")
    assert module(w(2, 3).astype("bfloat16")).dtype == dtype_of("bfloat16")


def test_options_that_are_not_offered_are_refused() -> None:
    for module in both_stages(3, 4, num_heads=2):
        for option in ("save", "window", "mask"):
            with pytest.raises(TypeError, match=option):
                module(w(2, 3), **{option: None})
    for option in ("bias", "window"):
        with pytest.raises(TypeError, match=option):
            init(**{option: 0.0})


def test_a_refused_assignment_changes_nothing() -> None:
    for module in both_stages(3, 4, num_heads=2, out_proj=True):
        x = w(5, 3)
        before = module(x)
        with pytest.raises(ValueError, match="w_out: expected shape"):
            module.w_out = w(3, 3)
        np.testing.assert_array_equal(module(x), before)
