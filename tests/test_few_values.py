"""Few rows over values of whole vectors have the bits of many rows, whatever the values hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import Array, assert_same_bits, attend, make_qkv

DTYPES = ["float32", "float16", "bfloat16"]
#: Query heads of one key head, tokens of a step; with heads * tokens of at most 8 rows.
STEPS = [(1, 1), (8, 1), (3, 2), (1, 7)]
PREFILL = 40  # tokens: more rows than are few


def inputs(dtype: str, heads: int, keys: int, value_dim: int = 32) -> tuple[Array, Array, Array]:
    """Return q, k and v, the scores of which spread widely."""
    tokens = (PREFILL, keys)
    q, k, v = make_qkv(31, dtype, heads=(heads, 1), tokens=tokens, head_dim=48, value_dim=value_dim)
    return q * q.dtype.type(4), k, v


def assert_steps_are_rows(q: Array, k: Array, v: Array, step: int, **options: Any) -> None:
    """Compare the last tokens by themselves with the same ones beside many others."""
    out, lse = attend(q, k, v, **options)
    part, part_lse = attend(q[:, :, -step:], k, v, **options)
    assert_same_bits(part, out[:, :, -step:])
    assert_same_bits(part_lse, lse[:, :, -step:], "lse")


@pytest.mark.parametrize("keys", [63, 128, 1100])
@pytest.mark.parametrize("value_dim", [32, 64, 96])
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


@pytest.mark.parametrize("kind", ["keys", "pairs", "bias"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_masks(dtype: str, kind: str, isa: str) -> None:
    """Whole blocks are hidden, the last ones among them; values that nobody sees hold NaN."""
    q, k, v = inputs(dtype, 3, 1300, 64)
    rng = np.random.default_rng(7)
    shown = rng.random((1 if kind == "keys" else PREFILL, 1300)) < 0.9
    shown[:, 128:390] = shown[:, 1150:] = False
    v[..., ~shown.any(axis=0), :] = np.nan
    mask = np.where(shown, rng.normal(size=shown.shape), -np.inf) if kind == "bias" else shown
    out, lse = attend(q, k, v, mask=mask)
    assert np.isfinite(lse).all()
    for step in (1, 2):
        part, part_lse = attend(q[:, :, -step:], k, v, mask=mask[-step:])
        assert_same_bits(part, out[:, :, -step:])
        assert_same_bits(part_lse, lse[:, :, -step:], "lse")


@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_that_rise(dtype: str, isa: str) -> None:
    """What was summed so far is scaled down time and again."""
    q, k, v = inputs(dtype, 4, 1300)
    q[:], k[:] = 1, np.linspace(0, 30, 1300)[:, None].astype(k.dtype)
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
