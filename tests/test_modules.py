"""The modules' results: the course's cases, both stages and the reference, initial weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conformance import Case, load_suite
from helpers import DTYPES, TOLERANCE, assert_close, assert_same_bits, dtype_of, make
from module_helpers import (
    assert_same_state,
    both_stages,
    reference_heads,
    reference_result,
    shown,
)

from headway import CausalAttention, MultiHeadAttention, StackedMultiHeadAttention

COURSE = load_suite("course")


def stack_of(case: Case, dtype: str) -> StackedMultiHeadAttention:
    """Stage 1 with the weights of a course case."""
    arrays = {name: x.astype(dtype) for name, x in case.inputs.items()}
    heads = []
    for n in range(case.meta["attrs"]["num_heads"]):
        biases = {
            argument: arrays[name][n]
            for argument, name in (("b_query", "bq"), ("b_key", "bk"), ("b_value", "bv"))
            if name in arrays
        }
        heads.append(CausalAttention(arrays["Wq"][n], arrays["Wk"][n], arrays["Wv"][n], **biases))
    return StackedMultiHeadAttention(heads, w_out=arrays.get("Wo"), b_out=arrays.get("bo"))


def tolerance(dtype: str) -> float:
    """16-bit modules round Q, K and V, then Z, then the projection of it: three times, not once."""
    return TOLERANCE[dtype] * (4 if dtype in ("float16", "bfloat16") else 1)


# The course's cases -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("case", COURSE, ids=[case.name for case in COURSE])
def test_the_course(case: Case, dtype: str, isa: str, threads: int) -> None:
    stacked = stack_of(case, dtype)
    fused = stacked.fuse()
    x = case.inputs["X"].astype(dtype)
    expected = case.outputs.get("out", case.outputs["Z"])
    for module in (stacked, fused):
        assert_close(module.heads(x), case.outputs["heads"], TOLERANCE[dtype], "heads")
        assert_close(module(x), expected, TOLERANCE[dtype], "result")
        if "Wo" in case.inputs:
            z = np.concatenate(list(module.heads(x)), axis=-1)
            assert_close(z, case.outputs["Z"], TOLERANCE[dtype], "Z")


@pytest.mark.parametrize("case", COURSE, ids=[case.name for case in COURSE])
def test_the_course_head_by_head(case: Case) -> None:
    x = case.inputs["X"].astype(np.float64)
    for n, head in enumerate(stack_of(case, "float64")):
        assert_close(head(x), case.outputs["heads"][n], TOLERANCE["float64"])
        assert_close(head.heads(x), case.outputs["heads"][n : n + 1], TOLERANCE["float64"])


# Stage 1 = stage 2 = reference --------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        ((2, 70, 24), {"num_heads": 2}),
        ((3, 17, 5), {"num_heads": 3, "qkv_bias": True, "out_proj": True}),
        ((129, 16), {"num_heads": 8, "num_kv_heads": 2, "out_proj": True}),
        ((1, 1, 7), {"num_heads": 6, "num_kv_heads": 1, "qkv_bias": True}),
    ],
    ids=["two-heads", "biases", "grouped", "one-token"],
)
def test_both_stages_give_the_reference(
    shape: tuple[int, ...], sizes: dict[str, Any], dtype: str, isa: str, threads: int
) -> None:
    fused = MultiHeadAttention.init(shape[-1], 48, seed=3, dtype=dtype_of(dtype), **sizes)
    stacked = fused.split()
    x = make(5, shape, dtype)
    wanted, wanted_heads = reference_result(fused, x), reference_heads(fused, x)
    for module in (stacked, fused):
        result, heads = module(x), module.heads(x)
        assert result.dtype == heads.dtype == x.dtype
        assert result.flags.c_contiguous
        assert heads.flags.c_contiguous
        assert_close(result, wanted, tolerance(dtype), type(module).__name__)
        assert_close(heads, wanted_heads, tolerance(dtype), f"{type(module).__name__}.heads")


def test_z_is_the_heads_side_by_side() -> None:
    x = make(1, (2, 9, 6))
    for module in both_stages(6, 8, num_heads=4, dtype=np.float64):
        assert_same_bits(module(x), np.concatenate(list(module.heads(x)), axis=-1))


@pytest.mark.parametrize("shape", [(0, 5, 6), (2, 0, 6), (0, 6), (0, 0, 6)])
def test_empty_input(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, np.float32)
    for module in (*both_stages(6, 8, num_heads=2, out_proj=True), CausalAttention.init(6, 8)):
        assert module(x).shape == (*shape[:-1], 8)
        assert module.heads(x).shape == (module.num_heads, *shape[:-1], 8 // module.num_heads)


# What a row depends on ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_later_token_changes_no_earlier_row(dtype: str, isa: str) -> None:
    x = make(7, (2, 40, 16), dtype)
    fused = MultiHeadAttention.init(
        16, 24, num_heads=4, num_kv_heads=2, qkv_bias=True, out_proj=True, dtype=dtype_of(dtype)
    )
    for module in (fused, fused.split(), fused.split()[1]):
        before, heads_before = module(x), module.heads(x)
        for value in (np.nan, np.inf, 3.0):
            changed = x.copy()
            changed[:, 23:] = value
            assert_same_bits(module(changed)[:, :23], before[:, :23])
            assert_same_bits(module.heads(changed)[..., :23, :], heads_before[..., :23, :])
        assert np.isfinite(before.astype(np.float64)).all()


def test_an_entry_has_the_same_bits_alone_in_a_batch_and_strided(threads: int) -> None:
    wide = make(8, (6, 66, 2, 20), "float32")
    x = np.ascontiguousarray(wide[:, :, 0])
    for module in both_stages(20, 24, num_heads=3, out_proj=True):
        whole = module(x)
        for b in (0, 3, 5):
            assert_same_bits(module(x[b]), whole[b], "without batch axis")
            assert_same_bits(module(x[b : b + 1])[0], whole[b], "batch of one")
        assert_same_bits(module(wide[:, :, 0]), whole, "token stride")
        assert_same_bits(module(np.asfortranarray(x)), whole, "Fortran order")
        assert_same_bits(module(x[::-1])[::-1], whole, "negative stride")
        same = np.broadcast_to(x[:1], x.shape)
        assert_same_bits(module(same)[4], whole[0], "stride 0")
        unaligned = np.frombuffer(b"\0" + x.tobytes(), np.float32, offset=1).reshape(x.shape)
        assert_same_bits(module(unaligned), whole, "unaligned")


@pytest.mark.parametrize("out_proj", [False, True])
def test_large_results_begin_with_a_cache_line(out_proj: bool) -> None:
    """So that no line of Z belongs to two heads, which may be computed in two threads."""
    merged = MultiHeadAttention.init(64, 64, num_heads=2, out_proj=out_proj)
    x = np.ones((1, 200, 64), np.float32)
    for module in (merged, merged.split()):
        kept = module.forward(x, save=True)
        assert module._saved is not None
        for array in (module(x), module.heads(x), kept, module._saved.z):
            assert array.ctypes.data % 64 == 0


def test_the_input_is_left_alone() -> None:
    x = make(2, (3, 5, 6), "float32")
    before = x.copy()
    x.flags.writeable = False
    for module in both_stages(6, 8, num_heads=2):
        module(x)
        module.heads(x)
    assert_same_bits(x, before)


# Initialisation -----------------------------------------------------------------------------------


def test_the_seed_decides_the_weights_of_both_classes() -> None:
    options = {"num_heads": 4, "qkv_bias": True, "out_proj": True}
    stacked, fused = both_stages(6, 8, seed=12, **options)
    assert_same_state(stacked.fuse(), fused)
    assert_same_state(fused, MultiHeadAttention.init(6, 8, seed=12, **options))
    other = MultiHeadAttention.init(6, 8, seed=13, **options)
    assert not np.array_equal(fused.w_query, other.w_query)
    fresh = [CausalAttention.init(6, 8, seed=None).w_query for _ in range(2)]
    assert not np.array_equal(*fresh)
    one_head = MultiHeadAttention.init(6, 8, num_heads=1, seed=12)
    assert_same_state(CausalAttention.init(6, 8, seed=12), one_head)


def test_initial_weights_are_uniform_within_torchs_bounds() -> None:
    module = MultiHeadAttention.init(100, 64, num_heads=4, qkv_bias=True, out_proj=True)
    for name, array in shown(module).items():
        bound = 1 / np.sqrt(64 if name.endswith("out") else 100)
        assert np.abs(array).max() <= bound
        assert np.abs(array).max() > 0.85 * bound
        assert abs(array.mean()) < 4 * bound / np.sqrt(3 * array.size)


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_dtypes_get_the_same_numbers_but_for_rounding(dtype: str) -> None:
    wanted = MultiHeadAttention.init(6, 8, num_heads=2, qkv_bias=True, dtype=np.float64)
    named = MultiHeadAttention.init(6, 8, num_heads=2, qkv_bias=True, dtype=dtype)
    assert named.dtype == dtype_of(dtype)
    for name in ("w_query", "w_value", "b_key"):
        assert_same_bits(getattr(named, name), getattr(wanted, name).astype(dtype_of(dtype)))


# Sizes --------------------------------------------------------------------------------------------


def test_sizes_and_text() -> None:
    head = CausalAttention.init(6, 4, qkv_bias=True)
    assert (head.d_in, head.d_out, head.head_dim) == (6, 4, 4)
    assert (head.num_heads, head.num_kv_heads) == (1, 1)
    assert head.num_parameters == 3 * (6 * 4 + 4)
    stacked, fused = both_stages(6, 8, num_heads=2, out_proj=True)
    for module in (stacked, fused):
        assert module.num_parameters == 3 * 6 * 8 + 8 * 8 + 8
        assert (module.d_in, module.d_out, module.head_dim) == (6, 8, 4)
        assert module.num_heads == module.num_kv_heads == 2
        assert module.dtype == np.float32
    assert stacked[-1] is list(stacked)[1]
    assert repr(fused) == (
        "MultiHeadAttention(d_in=6, d_out=8, num_heads=2, w_out=(8, 8), dtype=float32, "
        "num_parameters=216)"
    )
    grouped = MultiHeadAttention.init(6, 8, num_heads=4, num_kv_heads=2)
    assert "num_heads=4, num_kv_heads=2" in repr(grouped)
    assert grouped.num_parameters == 6 * 8 + 2 * 6 * 4
