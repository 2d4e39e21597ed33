"""Gradients by sinks and by a mask of numbers, summed along the axes that were broadcast."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from gradients import Step, check_step, step_of
from helpers import DTYPES, Array, assert_same_bits, dtype_of, lse_dtype, make
from layouts import odd_address, reversed_tokens, step_two
from option_table import EACH_COUNT, EACH_ISA, Problem, visible_keys

import headway
from headway import mask_gradients

B, H, TQ, TK = 2, 4, 70, 90
#: Every way in which a mask can be broadcast to (B, H, Tq, Tk).
SHAPES = [
    *((), (1,), (TK,), (TQ, 1), (1, TK), (TQ, TK), (1, 1, 1), (H, 1, 1), (H, TQ, 1), (1, TQ, TK)),
    *((H, TQ, TK), (1, 1, 1, 1), (B, 1, 1, 1), (1, H, 1, TK), (B, 1, 1, TK), (B, H, 1, 1)),
    *((B, 1, TQ, 1), (1, 1, TQ, TK), (1, H, TQ, TK), (B, 1, TQ, TK), (B, H, TQ, 1), (B, H, TQ, TK)),
]


def with_mask(step: Step, mask: Array) -> Step:
    """Return the step with another mask, as the reference's forward pass gives it."""
    options = step.options | {"mask": mask}
    arrays = [x.astype(np.float64) for x in (step.q, step.k, step.v)]
    out, lse = headway.reference.attention(*arrays, return_lse=True, **options)
    out, lse = out.astype(step.out.dtype), lse.astype(step.lse.dtype)
    return step.changed(out=out, lse=lse, options=options)


@lru_cache(maxsize=2)
def masked_step(shape: tuple[int, ...], dtype: str, mask_dtype: str) -> Step:
    """Return a step with such a mask, kept for the other instruction sets."""
    problem = Problem(dtype, B, (H, 2), (TQ, TK))
    return with_mask(step_of(problem, ("window", "sinks")), mask_of(shape, mask_dtype))


def mask_of(shape: tuple[int, ...], dtype: str = "float64") -> Array:
    """Return a mask of numbers, some of which hide; a small one hides nothing."""
    mask = np.asarray(make((3, len(shape)), shape), np.float64)
    if mask.size > 8:
        mask[mask > 1.5] = -np.inf
    return mask.astype(dtype_of(dtype))


@EACH_COUNT
@EACH_ISA
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_broadcast_masks(shape: tuple[int, ...], isa: str, threads: int) -> None:
    """The gradient has the mask's own shape; masks of every dtype, in each dtype in turn."""
    number = SHAPES.index(shape)
    dtype, mask_dtype = DTYPES[number % 4], DTYPES[(number // 4 + threads) % 4]
    step = masked_step(shape, dtype, mask_dtype)
    got = step.backward()
    assert got["dmask"].shape == shape
    assert got["dmask"].flags.c_contiguous
    assert got["dmask"].dtype == lse_dtype(dtype)
    check_step(step, got, f"a mask of {shape}, {dtype}")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_of_queries(
    dtype: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, any_threads: None
) -> None:
    """However many queries a block has, and whatever the threads, the bits are the same."""
    problem = Problem(dtype, B, (H, 2), (TQ, TK))
    step = with_mask(step_of(problem, ("softcap", "alibi")), mask_of(shape))
    expected = step.backward()["dmask"]
    for count, most in ((1, 1), (3, B * H * TK * 33)):
        monkeypatch.setattr(mask_gradients, "_MOST_SCORES", most)
        headway.set_num_threads(count)
        assert_same_bits(step.backward()["dmask"], expected, f"{count} threads, {most} scores")


def test_a_block_is_small() -> None:
    """With many heads and keys a block has 16 queries, and no more rows than there are."""
    seen: list[tuple[int, ...]] = []

    def spy(*arguments: Any) -> None:
        seen.append(arguments[7].shape)
        arguments[7][...] = 1.0

    q, k = np.zeros((1, 64, 40, 1), np.float32), np.zeros((1, 64, 2000, 1), np.float32)
    out, lse = headway.attention(q, k, k, return_lse=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mask_gradients._core, "attention_score_gradients", spy)
        mask = np.zeros((2000,), np.float32)
        *_, dmask = headway.attention_backward(out, q, k, k, out, lse, mask=mask, mask_grad=True)
        assert seen == [(1, 64, 16, 2000)] * 2 + [(1, 64, 8, 2000)]
        np.testing.assert_array_equal(dmask, np.full(2000, 64.0 * 40))
        seen.clear()
        mask = np.zeros((64, 40, 2000), np.float32)
        headway.attention_backward(out, q, k, k, out, lse, mask=mask, mask_grad=True)
        assert seen == [(1, 64, 40, 2000)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_masks_of_any_strides(dtype: str, isa: str) -> None:
    """Views, a broadcast one, an unaligned one: the gradient has the shape that was given."""
    step = step_of(Problem(dtype, B, (H, 2), (TQ, TK)), ("lengths",))
    mask = mask_of((1, H, TQ, TK))
    step = with_mask(step, mask)
    expected = step.backward()["dmask"]
    for view in (step_two(mask), reversed_tokens(mask), np.asfortranarray(mask), odd_address(mask)):
        got = step.changed(options=step.options | {"mask": view}).backward()["dmask"]
        assert_same_bits(got, expected, f"strides {view.strides}")
    view = np.broadcast_to(mask, (B, H, TQ, TK))
    wide = step.changed(options=step.options | {"mask": view}).backward()["dmask"]
    assert wide.shape == (B, H, TQ, TK)
    np.testing.assert_allclose(wide.sum(axis=0, keepdims=True), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("names", [(), ("window",), ("lengths", "all-keys"), ("entry-aligns",)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_hidden_elements_get_zero(dtype: str, names: tuple[str, ...], isa: str) -> None:
    """Exactly 0 where the key is hidden, and a row of the gradient at the scores sums to 0."""
    problem = Problem(dtype, tokens=(TQ, TK))
    step = step_of(problem, (*names, "float-mask"), lse=False, wide=True)
    dmask = step.backward()["dmask"]
    assert not dmask[~visible_keys(problem.shape, step.options)].any()
    sums = dmask.astype(np.float64).sum(axis=3)
    np.testing.assert_allclose(sums, 0, atol=1e-11 if dtype == "float64" else 0.02)


@pytest.mark.parametrize(
    ("sinks", "wanted"),
    [
        ([0.5, -1.0, 2.0, -np.inf], None),
        (np.array([0, 1, 2, 3]), None),
        *((make(5, (4,), dtype), dtype) for dtype in DTYPES),
        (np.array([0, 1, 2, 3.0], ">f4"), "float32"),
        (np.arange(8.0)[::-2], "float64"),
    ],
    ids=["list", "ints", *DTYPES, "swapped", "strided"],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_of_sinks(dtype: str, sinks: Any, wanted: str | None, isa: str) -> None:
    """The gradient has the dtype of an array of floats, else that of the sums."""
    step = step_of(Problem(dtype, tokens=(5, 9)))
    out, lse = headway.attention(step.q, step.k, step.v, sinks=sinks, return_lse=True)
    changed = step.changed(out=out, lse=lse, grad_out=step.grad_out, options={"sinks": sinks})
    got = changed.backward()["dsinks"]
    assert got.dtype == (lse_dtype(dtype) if wanted is None else dtype_of(wanted))
    assert got.shape == (4,)
    expected = changed.expected["dsinks"]
    allowed = {"float16": 2.0**-9, "bfloat16": 2.0**-6}.get(got.dtype.name, 1e-4)
    np.testing.assert_allclose(got.astype(np.float64), expected, rtol=allowed, atol=allowed)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_query_without_keys_sees_its_sink(dtype: str, isa: str, threads: int) -> None:
    """Its lse is the sink, so grad_lse counts whole; nothing else does, NaN in its grad_out too."""
    step = step_of(Problem(dtype, tokens=(9, 4)), ("sinks", "start"))
    options = step.options | {"align": -100}
    sinks = np.broadcast_to(options["sinks"][:, None], step.lse.shape).astype(step.lse.dtype)
    assert step.grad_lse is not None
    for grad_out in (step.grad_out, np.full_like(step.grad_out, np.nan)):
        empty = step.changed(
            out=np.zeros_like(step.out), lse=sinks, grad_out=grad_out, options=options
        )
        got = empty.backward()
        expected = step.grad_lse.astype(np.float64).sum(axis=(0, 2))
        np.testing.assert_allclose(got["dsinks"], expected, rtol=1e-5, atol=1e-5)
        assert not any(got[name].any() for name in ("dq", "dk", "dv"))
        if np.isnan(grad_out).any():
            got = empty.changed(grad_lse=None).backward()
            assert not got["dsinks"].any()
