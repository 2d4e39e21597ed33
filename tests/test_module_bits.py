"""The bits of a module's rows depend on the token and the earlier ones, and on nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import DTYPES, assert_same_bits, dtype_of, make
from module_helpers import CLASSES, Module, both_stages, build

import headway
from headway import CausalAttention, MultiHeadAttention, Projection


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cls", CLASSES)
def test_a_row_depends_on_its_token_and_the_earlier_ones(
    cls: type[Module], dtype: str, isa: str, threads: int
) -> None:
    """Any number of later tokens, any batch and place in it, any strides: the same rows."""
    module = build(cls, dtype)
    apart = make(1, (3, 150, 2, 6), dtype)
    x = apart[..., 1, :]
    alone = [np.array(entry) for entry in x]
    whole, heads = module(x), module.heads(x)
    for entry, rows, per_head in zip(alone, whole, heads.swapaxes(0, 1), strict=True):
        for tokens in (1, 2, 5, 16, 17, 97, 150):
            assert_same_bits(module(entry[:tokens]), rows[:tokens], f"{tokens} tokens")
            assert_same_bits(module.heads(entry[:tokens]), per_head[:, :tokens], f"{tokens}, heads")
    assert_same_bits(module(np.stack(alone[::-1])), whole[::-1], "another place in the batch")
    assert_same_bits(module(x[:, :40]), whole[:, :40], "rows apart")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("any_threads")
def test_threads(dtype: str, isa: str) -> None:
    module = MultiHeadAttention.init(
        48, 96, num_heads=6, num_kv_heads=2, qkv_bias=True, out_proj=True, dtype=dtype_of(dtype)
    )
    x = make(2, (2, 130, 48), dtype)
    headway.set_num_threads(1)
    expected = module(x)
    for count in (2, 3, 7):
        headway.set_num_threads(count)
        assert_same_bits(module(x), expected, f"{count} threads")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "options",
    [
        {"num_heads": 2},
        {"num_heads": 5, "qkv_bias": True, "out_proj": True},
        {"num_heads": 10, "qkv_bias": True},
    ],
)
def test_both_stages_have_the_same_bits(options: dict[str, Any], dtype: str, isa: str) -> None:
    stacked, fused = both_stages(23, 70, dtype=dtype_of(dtype), seed=4, **options)
    for shape in ((2, 70, 23), (1, 23)):
        x = make(3, shape, dtype)
        assert_same_bits(stacked(x), fused(x))
        assert_same_bits(stacked.heads(x), fused.heads(x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_grouped_heads_have_the_bits_of_single_heads(dtype: str, isa: str) -> None:
    fused = MultiHeadAttention.init(
        23, 96, num_heads=6, num_kv_heads=2, qkv_bias=True, out_proj=True, dtype=dtype_of(dtype)
    )
    x = make(5, (2, 70, 23), dtype)
    assert_same_bits(fused.split()(x), fused(x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_module_is_its_projections_and_the_attention(dtype: str, isa: str) -> None:
    head = CausalAttention.init(23, 16, qkv_bias=True, dtype=dtype_of(dtype))
    x = make(6, (70, 23), dtype)
    q, k, v = (
        Projection(getattr(head, f"w_{kind}"), getattr(head, f"b_{kind}"))(x)
        for kind in ("query", "key", "value")
    )
    assert_same_bits(head(x), np.asarray(headway.attention(q, k, v)))


def test_an_assigned_weight_is_packed_anew_by_itself() -> None:
    """Assigning w_out keeps the projection of Q, K and V, and the other way round."""
    module = MultiHeadAttention.init(6, 8, num_heads=2, out_proj=True)
    joined, output = module._qkv, module._out
    assert module.w_out is not None
    module.w_out = module.w_out + 1
    assert module._qkv is joined
    assert module._out is not output
    output = module._out
    module.w_key = module.w_key + 1
    assert module._out is output
    assert module._qkv is not joined
    assert np.shares_memory(module.w_query, module._qkv.weight)
