"""State dicts with the course's names and with torch.nn.MultiheadAttention's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import DTYPES, Array, assert_same_bits, make
from module_helpers import CLASSES, Module, assert_same_module, assert_same_state, build

from headway import CausalAttention, MultiHeadAttention, StackedMultiHeadAttention


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "biases"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cls", CLASSES)
def test_state_dict_round_trip(cls: type[Module], dtype: str, plain: bool) -> None:
    module = build(cls, dtype, plain=plain)
    counts = {} if cls is CausalAttention else {"num_heads": 4}
    for prefix in ("", "blocks.0.att."):
        state: dict[str, Any] = dict(module.state_dict(prefix=prefix))
        state |= {"tok_emb.weight": np.ones(3)} if prefix else {}
        assert_same_module(cls.from_state_dict(state, prefix=prefix, **counts), module)


def test_state_dict_is_a_copy_in_torchs_orientation() -> None:
    for cls in CLASSES:
        module = build(cls)
        state = module.state_dict()
        for array in state.values():
            assert array.flags.c_contiguous
            array[...] = 0
        assert_same_module(build(cls), module)
    wide = MultiHeadAttention.init(6, 8, num_heads=4)
    assert_same_bits(wide.state_dict()["W_key.weight"], wide.w_key.T)


def test_the_names_of_either_stage_serve_both_classes() -> None:
    stacked = StackedMultiHeadAttention.init(6, 8, num_heads=2, qkv_bias=True, out_proj=True)
    fused = stacked.fuse()
    assert_same_module(MultiHeadAttention.from_state_dict(stacked.state_dict()), fused)
    assert_same_module(
        StackedMultiHeadAttention.from_state_dict(fused.state_dict(), num_heads=2), stacked
    )
    head = CausalAttention.from_state_dict(
        {k: v for k, v in stacked.state_dict().items() if "out_proj" not in k}, prefix="heads.1."
    )
    assert_same_module(head, stacked[1])


def test_grouped_heads_are_read_off_the_shape() -> None:
    grouped = MultiHeadAttention.init(6, 24, num_heads=6, num_kv_heads=2)
    state = grouped.state_dict()
    assert_same_module(MultiHeadAttention.from_state_dict(state, num_heads=6), grouped)
    stacked = StackedMultiHeadAttention.from_state_dict(state, num_heads=6)
    assert_same_module(stacked, grouped.split())


def test_mask_buffers_are_skipped() -> None:
    mask = np.triu(np.ones((9, 9)), 1)
    for cls in CLASSES:
        module = build(cls)
        state: dict[str, Any] = dict(module.state_dict())
        state |= {"heads.0.mask": mask, "heads.1.mask": mask} if "Stacked" in cls.__name__ else {}
        state["mask"] = mask
        counts = {"num_heads": 4} if cls is MultiHeadAttention else {}
        assert_same_module(cls.from_state_dict(state, **counts), module)


def torch_state(d: int, *, separate: bool, bias: bool) -> dict[str, Array]:
    state = {"out_proj.weight": make(9, (d, d))}
    if separate:
        state |= {f"{n}_proj_weight": make(i, (d, d)) for i, n in enumerate("qkv")}
    else:
        state["in_proj_weight"] = np.concatenate([make(i, (d, d)) for i in range(3)])
    if bias:
        state |= {"in_proj_bias": make(4, (3 * d,)), "out_proj.bias": make(5, (d,))}
    return state


@pytest.mark.parametrize("bias", [False, True])
def test_torchs_names_joined_and_separate(bias: bool) -> None:
    joined, separate = (
        MultiHeadAttention.from_state_dict(torch_state(8, separate=s, bias=bias), num_heads=2)
        for s in (False, True)
    )
    assert_same_state(joined, separate)
    for n, name in enumerate(("w_query", "w_key", "w_value")):
        assert_same_bits(getattr(joined, name), np.ascontiguousarray(make(n, (8, 8)).T))
    assert joined.w_out is not None
    assert_same_bits(joined.w_out, np.ascontiguousarray(make(9, (8, 8)).T))
    if bias:
        assert joined.b_key is not None
        assert_same_bits(joined.b_key, make(4, (24,))[8:16])
    stacked = StackedMultiHeadAttention.from_state_dict(
        torch_state(8, separate=False, bias=bias), num_heads=2
    )
    assert_same_bits(stacked[1].w_key, np.ascontiguousarray(joined.w_key[:, 4:]))


HEADS_0 = {"W_query.weight": np.ones((2, 3)), "W_key.weight": np.ones((2, 3))}


def refused(state: Any, text: str, error: type[Exception] = ValueError, **options: Any) -> None:
    options.setdefault("num_heads", 2)
    with pytest.raises(error) as caught:
        MultiHeadAttention.from_state_dict(state, **options)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_and_unknown_keys_are_all_listed_in_one_error() -> None:
    state = {**HEADS_0, "W_quary.weight": 1, "scale": 2, "mask": 3, "out_proj.bias": np.ones(2)}
    refused(
        state,
        "got a state without W_value.weight, out_proj.weight and with unknown keys "
        "W_quary.weight, scale; rename or remove",
    )
    stacked = StackedMultiHeadAttention.init(3, 4, num_heads=2).state_dict()
    gap = {k.replace("heads.1", "heads.2"): v for k, v in stacked.items()}
    refused(
        gap,
        "without heads.1.W_query.weight, heads.1.W_key.weight, heads.1.W_value.weight and with "
        "unknown keys heads.2.W_key.weight, heads.2.W_query.weight, heads.2.W_value.weight",
    )
    with pytest.raises(ValueError, match=r"with unknown keys out_proj\.weight"):
        CausalAttention.from_state_dict({**HEADS_0, "out_proj.weight": np.ones((2, 2))})
    long = {f"block.{n}": n for n in range(40)}
    refused(long, "and 24 more")


def test_a_forgotten_prefix_is_named() -> None:
    state = MultiHeadAttention.init(3, 4, num_heads=2).state_dict(prefix="blocks.0.att.")
    refused(state, "pass prefix='blocks.0.att.'")
    stacked = StackedMultiHeadAttention.init(3, 4, num_heads=2).state_dict(prefix="att.")
    refused(stacked, "pass prefix='att.'")
    refused(state, "expected keys that start with 'blocks.1.', got blocks.0", prefix="blocks.1.")
    refused(state, "prefix: expected a str, got int", TypeError, prefix=3)
    refused({}, "got none")


def test_other_refused_states() -> None:
    torch_names = torch_state(8, separate=False, bias=True)
    refused({**torch_names, "bias_k": 1, "bias_v": 2}, "bias_k, bias_v; build it with add_bias_kv")
    refused(
        {**torch_names, "in_proj_weight": np.ones((20, 8))}, "in_proj_weight: expected shape (24"
    )
    refused({**torch_names, "in_proj_bias": np.ones(8)}, "in_proj_bias: expected shape (24,)")
    apart = torch_state(8, separate=True, bias=False)
    refused({**apart, "k_proj_weight": np.ones((8, 5))}, "embed_dim, kdim and vdim")
    refused({"in_proj_weight": np.ones((24, 8))}, "without out_proj.weight")
    refused({**torch_names, "W_query.weight": 1}, "unknown keys W_query.weight")
    refused([1, 2], "state: expected a mapping of names to arrays, got list", TypeError)
    good = MultiHeadAttention.init(3, 4, num_heads=2)
    refused(good.state_dict(), "num_heads: expected an int, got None", num_heads=None)
    refused(good.state_dict(), "num_heads has to divide", num_heads=3)
    refused(good.state_dict(), "num_heads: expected at least 1, got 0", num_heads=0)
    refused(good.split().state_dict(), "num_heads: expected 2, the heads of this", num_heads=3)
    refused(good.split().state_dict(), "num_kv_heads: expected 2", num_kv_heads=1)
    flat = {**good.state_dict(), "W_key.weight": np.ones(12, np.float32)}
    refused(flat, "W_key.weight: expected shape (out, in), got (12,)")
    mixed = {**good.state_dict(), "W_key.weight": np.ones((4, 3))}
    refused(mixed, "w_key: expected float32 like w_query, got float64", TypeError)
    refused({**good.state_dict(), "W_key.weight": "text"}, "W_key.weight: expected a", TypeError)
