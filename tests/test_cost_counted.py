"""Costs against counts: of products in NumPy, of stored arrays, of the memory of a call."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from counting import Counted, Counter, Number, dense, plain_module, uneven_heads, unmasked
from helpers import assert_close, make

import headway
from headway import CausalAttention, MultiHeadAttention, StackedMultiHeadAttention

MODULES: dict[str, Any] = {
    "one head": CausalAttention.init(6, 4),
    "one head, biases": CausalAttention.init(5, 8, qkv_bias=True),
    "two stacked heads": StackedMultiHeadAttention.init(6, 8, num_heads=2),
    "stacked, output": StackedMultiHeadAttention.init(
        8, 12, num_heads=4, qkv_bias=True, out_proj=True
    ),
    "stacked, uneven": uneven_heads(),
    "two efficient heads": MultiHeadAttention.init(6, 8, num_heads=2),
    "efficient, output": MultiHeadAttention.init(12, 12, num_heads=3, out_proj=True),
    "efficient, shared keys": MultiHeadAttention.init(
        8, 16, num_heads=4, num_kv_heads=2, qkv_bias=True, out_proj=True, dtype=np.float64
    ),
    "efficient, one key head": MultiHeadAttention.init(10, 12, num_heads=6, num_kv_heads=1),
    "efficient, narrow output": MultiHeadAttention(
        *np.random.default_rng(0).standard_normal((3, 6, 8)),
        num_heads=2,
        w_out=np.eye(8)[:, :3],
        b_out=np.ones(3),
    ),
}
SHAPES = ((1, 1), (1, 7), (3, 12))


def counted(module: Any, x: np.ndarray[Any, Any], attend: Any) -> int:
    """Multiply-adds of NumPy code that gives what the module gives."""
    counter = Counter()
    assert_close(plain_module(module, x, attend, counter), module(x), 1e-5)
    return counter.multiply_adds


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", MODULES)
def test_multiply_adds_are_those_that_numpy_does(name: str, shape: tuple[int, int]) -> None:
    module = MODULES[name]
    x = make(3, (*shape, module.d_in), module.dtype.name)
    cost = module.cost(*shape)
    assert cost.dense_multiply_adds == counted(module, x, dense)
    assert cost.multiply_adds == counted(module, x, unmasked)
    assert cost.num_parameters == module.num_parameters
    assert cost.weight_bytes == sum(array.nbytes for array in module._arrays())


def test_the_counters_count_every_multiplication() -> None:
    rng = np.random.default_rng(0)
    for formula, shapes in (
        ("bqd,bkd->bqk", [(2, 3, 5), (2, 4, 5)]),
        ("bqk,bkd->bqd", [(2, 3, 4), (2, 4, 5)]),
        ("matmul", [(2, 3, 4), (4, 5)]),
        ("matmul", [(2, 3, 4), (2, 4, 5)]),
    ):
        arrays = [rng.standard_normal(shape) for shape in shapes]
        counter = Counter()
        one, two = (counter.array(x) for x in arrays)
        result = one @ two if formula == "matmul" else np.einsum(formula, one, two)
        assert isinstance(result, Counted)
        numbers = [np.vectorize(Number, otypes=[object])(x) for x in arrays]
        Number.multiplications = 0
        if formula == "matmul":
            again = np.matmul(*numbers)
        else:
            again = np.einsum(formula, *numbers, optimize=False)
        assert counter.multiply_adds == Number.multiplications > 0
        values = np.vectorize(lambda each: each.value)(again)
        np.testing.assert_allclose(np.asarray(result), values)


@pytest.mark.parametrize("stage", ["single", "stacked", "efficient"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_the_function_gives_what_the_module_gives(stage: str, dtype: str) -> None:
    heads = 1 if stage == "single" else 4
    for out_proj in (False, True):
        if stage == "single" and out_proj:
            continue
        for kv_heads in (heads, 2) if stage == "efficient" else (heads,):
            sizes: dict[str, Any] = {"qkv_bias": out_proj, "dtype": dtype}
            if stage == "single":
                module: Any = CausalAttention.init(6, 8, **sizes)
            else:
                sizes |= {"num_heads": heads, "out_proj": out_proj}
                if stage == "stacked":
                    module = StackedMultiHeadAttention.init(6, 8, **sizes)
                else:
                    module = MultiHeadAttention.init(6, 8, num_kv_heads=kv_heads, **sizes)
            sizes |= {"num_heads": heads, "num_kv_heads": kv_heads}
            found = headway.cost(batch=2, num_tokens=9, d_in=6, d_out=8, stage=stage, **sizes)
            assert found == module.cost(2, 9)
            assert found.to_dict() == module.cost(2, 9).to_dict()


@pytest.mark.parametrize("name", MODULES)
def test_a_cache_for_the_tokens_has_that_many_bytes(name: str) -> None:
    module = MODULES[name]
    if name == "stacked, uneven":
        wanted = sum(
            headway.KVCache(3, 1, 16, head.head_dim, dtype=head.dtype).nbytes for head in module
        )
    else:
        cache = headway.KVCache(3, module.num_kv_heads, 16, module.head_dim, dtype=module.dtype)
        wanted = cache.nbytes
    assert module.cost(3, 16).kv_cache_bytes == wanted


@pytest.mark.parametrize("name", MODULES)
def test_a_matrix_of_scores_has_that_many_bytes(name: str) -> None:
    module = MODULES[name]
    x = make(3, (2, 11, module.d_in), module.dtype.name)
    stored: list[int] = []

    def watched(q: Any, k: Any, v: Any) -> Any:
        stored.append(np.einsum("bqd,bkd->bqk", np.asarray(q), np.asarray(k)).nbytes)
        return dense(q, k, v)

    plain_module(module, x, watched, Counter())
    assert module.cost(2, 11).score_bytes == sum(stored)


@pytest.mark.parametrize(
    "module",
    [
        CausalAttention.init(16, 32),
        StackedMultiHeadAttention.init(16, 32, num_heads=4),
        StackedMultiHeadAttention.init(16, 32, num_heads=4, out_proj=True),
        MultiHeadAttention.init(16, 32, num_heads=4),
        MultiHeadAttention.init(16, 32, num_heads=4, num_kv_heads=1, out_proj=True),
        MultiHeadAttention.init(16, 32, num_heads=4, dtype=np.float16, out_proj=True),
        MultiHeadAttention(
            *np.ones((3, 16, 8), np.float32), num_heads=2, w_out=np.ones((8, 64), np.float32)
        ),
    ],
    ids=repr,
)
def test_a_call_holds_that_many_bytes_at_once(module: Any) -> None:
    batch, tokens = 2, 3000
    x = np.ones((batch, tokens, 16), module.dtype)
    module(x[:, :2])  # packs
    tracemalloc.start()
    try:
        module(x)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 0 <= peak - module.cost(batch, tokens).activation_bytes < 20_000
