"""What the modules own: weights in and out, one head and another, stage 1 and stage 2."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from helpers import DTYPES, TOLERANCE, Array, assert_close, assert_same_bits, dtype_of, make
from module_helpers import Module, assert_same_state, both_stages, shown

import headway
from headway import CausalAttention, MultiHeadAttention, StackedMultiHeadAttention

# What a head owns ---------------------------------------------------------------------------------


def head_weights(module: StackedMultiHeadAttention) -> list[Array]:
    return [w for head in module for w in (head.w_query, head.w_key, head.w_value)]


def test_two_heads_own_two_query_two_key_and_two_value_matrices() -> None:
    stacked, fused = both_stages(6, 8, num_heads=2)
    assert fused.num_kv_heads == fused.num_heads == len(stacked) == 2
    size = fused.head_dim
    merged = [
        w[:, h * size : (h + 1) * size]
        for h in range(2)
        for w in (fused.w_query, fused.w_key, fused.w_value)
    ]
    for weights in (head_weights(stacked), merged, head_weights(fused.split())):
        assert len(weights) == 6
        for n, one in enumerate(weights):
            assert one.shape == (6, 4)
            for other in weights[n + 1 :]:
                assert not np.shares_memory(one, other)
                assert not np.array_equal(one, other)


@pytest.mark.parametrize("kind", ["query", "key", "value"])
def test_a_weight_of_one_head_changes_that_head_only(kind: str) -> None:
    stacked, fused = both_stages(6, 8, num_heads=2)
    x = make(4, (3, 7, 6), "float32")
    name = f"w_{kind}"
    before = fused.heads(x)
    stacked_before = stacked.heads(x)
    for h in (0, 1):
        one = copy.copy(stacked)
        setattr(one[h], name, getattr(one[h], name) + 1)
        other = copy.copy(fused)
        changed = getattr(other, name).copy()
        changed[:, h * 4 : (h + 1) * 4] += 1
        setattr(other, name, changed)
        for was, now in ((stacked_before, one.heads(x)), (before, other.heads(x))):
            assert_same_bits(now[1 - h], was[1 - h])
            assert np.abs(now[h] - was[h]).max() > 1e-3
        assert_same_bits(one.fuse().w_query, other.w_query)


def test_the_same_head_given_twice_is_two_heads() -> None:
    head = CausalAttention.init(3, 2)
    module = StackedMultiHeadAttention([head, head])
    assert not np.shares_memory(module[0].w_query, module[1].w_query)
    assert not np.shares_memory(module[0].w_query, head.w_query)
    module[0].w_query = np.zeros((3, 2), np.float32)
    assert module[1].w_query.any()
    assert head.w_query.any()


def test_a_group_shares_its_key_and_value_matrices_and_split_copies_them() -> None:
    fused = MultiHeadAttention.init(6, 24, num_heads=6, num_kv_heads=2, qkv_bias=True)
    assert fused.w_key.shape == fused.w_value.shape == (6, 8)
    assert fused.b_key is not None
    heads = list(fused.split())
    assert len(heads) == 6
    for h, head in enumerate(heads):
        key_head = h // 3
        assert_same_bits(head.w_key, fused.w_key[:, key_head * 4 : (key_head + 1) * 4])
        assert_same_bits(head.w_value, fused.w_value[:, key_head * 4 : (key_head + 1) * 4])
        assert head.b_key is not None
        assert_same_bits(head.b_key, fused.b_key[key_head * 4 : (key_head + 1) * 4])
        assert not np.shares_memory(head.w_key, fused.w_key)
    for one in range(6):
        for other in range(one):
            assert not np.shares_memory(heads[one].w_key, heads[other].w_key)
            same = np.array_equal(heads[one].w_key, heads[other].w_key)
            assert same == (one // 3 == other // 3)
    x = make(9, (2, 11, 6), "float32")
    grown = fused.split().fuse()
    assert grown.num_kv_heads == 6
    assert_close(grown(x), fused(x), TOLERANCE["float32"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [{}, {"qkv_bias": True, "out_proj": True}])
def test_fuse_and_split_keep_every_bit(dtype: str, options: dict[str, bool]) -> None:
    stacked, fused = both_stages(5, 12, num_heads=3, dtype=dtype_of(dtype), **options)
    for module, same in ((fused, stacked.fuse()), (fused.split().fuse(), fused)):
        assert_same_state(module, same)
    for module in (stacked, fused.split(), stacked.fuse().split()):
        assert_same_state(module, stacked)
        for one, other in zip(module, stacked, strict=True):
            assert_same_state(one, other)


def test_fuse_gives_a_missing_bias_zeros() -> None:
    plain, biased = CausalAttention.init(3, 2), CausalAttention.init(3, 2, qkv_bias=True, seed=1)
    fused = StackedMultiHeadAttention([plain, biased]).fuse()
    assert fused.b_query is not None
    assert biased.b_query is not None
    np.testing.assert_array_equal(fused.b_query, [0, 0, *biased.b_query])


def test_heads_of_different_widths() -> None:
    module = StackedMultiHeadAttention(
        [CausalAttention.init(3, 2), CausalAttention.init(3, 5)], w_out=np.ones((7, 4), np.float32)
    )
    x = make(1, (6, 3), "float32")
    assert module.d_out == 7
    assert module(x).shape == (6, 4)
    for call in (module.fuse, lambda: module.heads(x)):
        with pytest.raises(
            ValueError, match=r"heads: expected heads of one head_dim, got \[2, 5\]"
        ):
            call()


# Weights in and out -------------------------------------------------------------------------------


def every_module() -> list[Module]:
    options = {"num_heads": 2, "qkv_bias": True, "out_proj": True}
    return [CausalAttention.init(6, 8, qkv_bias=True), *both_stages(6, 8, **options)]


@pytest.mark.parametrize("module", every_module(), ids=lambda m: type(m).__name__)
def test_weights_are_shown_read_only(module: Module) -> None:
    for name, array in shown(module).items():
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
        assert array.any(), name


def test_weights_are_copied_in() -> None:
    w = np.ones((3, 4), np.float32)
    b = np.ones(4, np.float32)
    module = MultiHeadAttention(w, w, w, num_heads=2, b_query=b)
    head = CausalAttention(w, w, w, b_value=b)
    fresh = np.full((3, 4), 2, np.float32)
    module.w_key = fresh
    head.w_key = fresh
    for array in (w, b, fresh):
        array[...] = 7
    for m in (module, head):
        assert [float(m.w_query[0, 0]), float(m.w_key[0, 0])] == [1, 2]
    assert module.b_query is not None
    assert module.b_query[0] == 1
    assert module.b_key is None


@pytest.mark.parametrize("module", every_module(), ids=lambda m: type(m).__name__)
def test_an_assigned_weight_is_used_at_once(module: Module) -> None:
    x = make(3, (2, 5, 6), "float32")
    for name, old in shown(module).items():
        new = make(11, old.shape, "float32")
        before, view = module(x), old.copy()
        setattr(module, name, new)
        assert_same_bits(getattr(module, name), new, name)
        assert_same_bits(old, view, f"an array handed out before, {name}")
        if name != "b_key":  # it moves all scores of a row by the same amount
            assert np.abs(module(x) - before).max() > 1e-3, name
    rebuilt = pickle.loads(pickle.dumps(module))
    assert_same_bits(module(x), rebuilt(x))


def test_stage_2_keeps_one_projection_and_shows_views_of_it() -> None:
    module = MultiHeadAttention.init(6, 8, num_heads=4, num_kv_heads=2)
    joined = module.w_query.base
    assert joined is not None
    assert joined.shape == (6, (4 + 2 * 2) * 2)
    assert joined.flags.c_contiguous
    assert module.w_key.base is joined
    assert module.w_value.base is joined
    assert_same_bits(np.concatenate([module.w_query, module.w_key, module.w_value], axis=1), joined)


def test_attention_reads_views_and_writes_z_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Array, Array, Array, Array]] = []

    def spy(q: Array, k: Array, v: Array, *, layout: str, out: Array | None = None) -> Array:
        assert layout == "BTHD"
        result = headway.attention(q, k, v, layout=layout, out=out)
        seen.append((q, k, v, result))
        return result

    monkeypatch.setattr("headway.module_base.attention", spy)
    module = MultiHeadAttention.init(6, 8, num_heads=4, num_kv_heads=2, dtype=np.float64)
    result = module(make(1, (3, 5, 6)))
    (q, k, v, out) = seen[0]
    assert [a.shape for a in (q, k, v, out)] == [
        (3, 5, 4, 2),
        (3, 5, 2, 2),
        (3, 5, 2, 2),
        (3, 5, 4, 2),
    ]
    row = (4 + 2 + 2) * 2 * 8  # bytes of one token's queries, keys and values
    for a in (q, k, v):
        assert a.strides == (5 * row, row, 2 * 8, 8)
    start = q.__array_interface__["data"][0]
    assert [a.__array_interface__["data"][0] - start for a in (k, v)] == [8 * 8, 12 * 8]
    assert np.shares_memory(out, result)
    assert result.strides == (5 * 64, 64, 8)

    z = module.heads(make(1, (3, 5, 6)))
    assert np.shares_memory(seen[1][3], z)
