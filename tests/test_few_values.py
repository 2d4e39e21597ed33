"""Few rows over values of whole vectors have the bits of many rows, whatever the values hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import Array, assert_same_bits, attend, make_qkv

DTYPES = ["float32", "float16", "bfloat16"]
#: Query heads of one key head, tokens of a step; with heads * tokens of at most 8 rows.
STEPS = [(1, 1), (2, 1), (3, 1), (8, 1), (3, 2), (1, 7)]
PREFILL = 40  # tokens: more rows than are few


def inputs(
    dtype: str, heads: int, keys: int, value_dim: int = 32, head_dim: int = 48
) -> tuple[Array, Array, Array]:
    """Return q, k and v, the scores of which spread widely."""
    q, k, v = make_qkv(
        31,
        dtype,
        heads=(heads, 1),
        tokens=(PREFILL, keys),
        head_dim=head_dim,
        value_dim=value_dim,
    )
    return q * q.dtype.type(4), k, v


def assert_steps_are_rows(q: Array, k: Array, v: Array, step: int, **options: Any) -> None:
    """Compare the last tokens by themselves with the same ones beside many others."""
    out, lse = attend(q, k, v, **options)
    part, part_lse = attend(q[:, :, -step:], k, v, **options)
    assert_same_bits(part, out[:, :, -step:])
    assert_same_bits(part_lse, lse[:, :, -step:], "lse")


@pytest.mark.parametrize("keys", [63, 128, 1100])
@pytest.mark.parametrize("value_dim", [32, 96, 224])
@pytest.mark.parametrize("dtype", DTYPES)
def test_widths_and_lengths(dtype: str, value_dim: int, keys: int, isa: str) -> None:
    for heads, step in STEPS:
        q, k, v = inputs(dtype, heads, keys, value_dim)
        assert_steps_are_rows(q, k, v, step)


@pytest.mark.parametrize(
    "options",
    [
        {"dropout": 0.3, "seed": 5},
        {"scale": 3.0, "window": 70},
        {"alibi_slopes": [0.3], "sinks": [0.5]},
        {"scale": -8.0},
    ],
    ids=lambda options: "-".join(options),
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_options(dtype: str, options: dict[str, Any], isa: str) -> None:
    q, k, v = inputs(dtype, 1, 1300)
    for step in (1, 5):
        assert_steps_are_rows(q, k, v, step, **options)


@pytest.mark.parametrize("head_dim", [33, 34, 64, 96])
@pytest.mark.parametrize("dtype", DTYPES)
def test_keys_wherever_they_lie(dtype: str, head_dim: int, isa: str) -> None:
    """Whole groups of keys are read in place: on odd addresses, far apart, in reverse order."""
    q, k, v = inputs(dtype, 2, 1040, 64, head_dim)
    wide = np.zeros((*k.shape[:3], head_dim + 3), k.dtype)
    wide[..., 1 : 1 + head_dim] = k
    apart = np.zeros((1, k.shape[2], 2, head_dim), k.dtype)
    apart[:, :, 1] = k[:, 0]
    for keys in (k, wide[..., 1 : 1 + head_dim], apart.transpose(0, 2, 1, 3)[:, 1:], k[:, :, ::-1]):
        for step in (1, 3):
            assert_steps_are_rows(q, keys, v, step)


#: Keys that a mask hides: the end and whole blocks, the first span, the second one.
HIDDEN = {"blocks": [(128, 390), (1150, 1300)], "first": [(0, 1024)], "second": [(1024, 1300)]}


@pytest.mark.parametrize("poisoned", [False, True])
@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("kind", ["keys", "pairs", "bias"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_masks(dtype: str, kind: str, hidden: str, poisoned: bool, isa: str) -> None:
    """Whole blocks and spans are hidden; values of hidden blocks, or of hidden keys, are NaN."""
    q, k, v = inputs(dtype, 3, 1300, 64)
    rng = np.random.default_rng(7)
    shown = rng.random((1 if kind == "keys" else PREFILL, 1300)) < 0.9
    for first, end in HIDDEN[hidden]:
        shown[:, first:end] = False
        v[..., -(-first // 128) * 128 : end if end == 1300 else end // 128 * 128, :] = np.nan
    if poisoned:
        v[..., ~shown.any(axis=0), :] = np.nan
    mask = np.where(shown, rng.normal(size=shown.shape), -np.inf) if kind == "bias" else shown
    out, lse = attend(q, k, v, mask=mask)
    assert np.isfinite(lse[:, :, -2:]).all()
    assert np.isfinite(out[:, :, -2:].astype(float)).all()
    for step in (1, 2):
        part, part_lse = attend(q[:, :, -step:], k, v, mask=mask[-step:])
        assert_same_bits(part, out[:, :, -step:])
        assert_same_bits(part_lse, lse[:, :, -step:], "lse")


@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_that_rise(dtype: str, isa: str) -> None:
    """What was summed so far is scaled down time and again, also after an infinite value."""
    q, k, v = inputs(dtype, 4, 1300)
    q[:], k[:] = 1, np.linspace(0, 30, 1300)[:, None].astype(k.dtype)
    for value in (1, np.inf):
        v[..., 700, 3] = value
        for step in (1, 2):
            assert_steps_are_rows(q, k, v, step, scale=1.0)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 1050, 1299])
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_that_are_not_finite(dtype: str, at: int, value: float, isa: str) -> None:
    """One comes out in its column alone; one that is hidden does not come out."""
    q, k, v = inputs(dtype, 2, 1300, 64)
    clean, _ = attend(q, k, v)
    v[..., at, 37] = value
    for step in (1, 3):
        assert_steps_are_rows(q, k, v, step)
    row, _ = attend(q[:, :, -1:], k, v)
    assert not np.isfinite(row[..., 37].astype(np.float32)).any()
    others = [d for d in range(64) if d != 37]
    assert_same_bits(row[..., others], clean[:, :, -1:][..., others])
    hidden, _ = attend(q[:, :, -1:], k, v, window=50)
    assert np.isfinite(hidden.astype(np.float32)).all() == (at < 1250)
