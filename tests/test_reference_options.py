"""The reference with options, against simple loops and against torch with explicit masks."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import Array, make, make_qkv

import headway
from headway import reference

INF = math.inf
NAN = math.nan

B, H, HKV, TQ, TK = 2, 4, 2, 5, 7
FLOATS = np.where(make(5, (B, 1, TQ, TK)) > 1.0, -INF, make(6, (B, 1, TQ, TK)))

#: Each option by name, and some together. All fit B = 2, 4 heads over 2, 5 queries over 7 keys.
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "bool mask": {"mask": make(1, (1, H, TQ, TK)) > -0.5},
    "bool mask of keys": {"mask": make(2, (B, 1, 1, TK)) > -0.5},
    "bool mask 1-D": {"mask": make(3, (TK,)) > -0.5},
    "float mask": {"mask": FLOATS},
    "float mask of queries": {"mask": make(4, (TQ, 1))},
    "window": {"window": 3},
    "window pair": {"window": (2, 1), "causal": False},
    "window left": {"window": (1, -1), "causal": False},
    "window right": {"window": (-1, 0), "causal": False},
    "window int": {"window": 2, "causal": False},
    "window and causal": {"window": (1, 3)},
    "window of none": {"window": (-1, -1)},
    "softcap": {"softcap": 0.7},
    "softcap off": {"softcap": 0},
    "slopes": {"alibi_slopes": make(7, (H,))},
    "slopes of entries": {"alibi_slopes": make(8, (B, H)), "causal": False},
    "sinks": {"sinks": [0.5, -INF, 3.0, -1.0]},
    "lengths": {"kv_lengths": [7, 3]},
    "lengths from the start": {"kv_lengths": [0, 4], "align": "start"},
    "lengths, not causal": {"kv_lengths": [0, 4], "causal": False},
    "lengths at positions": {"kv_lengths": [6, 5], "align": [1, 3]},
    "all": {
        "mask": FLOATS,
        "window": (4, 1),
        "softcap": 2.0,
        "alibi_slopes": make(9, (B, H)),
        "sinks": make(10, (H,)),
        "kv_lengths": [6, 2],
        "align": [2, -1],
        "scale": -0.4,
    },
    "all, not causal": {
        "mask": make(11, (B, H, 1, TK)) > -1,
        "window": (2, 2),
        "softcap": 5.0,
        "alibi_slopes": headway.alibi_slopes(H),
        "sinks": [0, 0, -INF, 2],
        "kv_lengths": [7, 5],
        "causal": False,
    },
}


def position(align: Any, b: int, length: int) -> int:
    if align == "end":
        return length - TQ
    return 0 if align == "start" else int(align[b])


def by_loops(q: Array, k: Array, v: Array, **options: Any) -> dict[str, Array]:
    """One score at a time, in the words of the documentation; a hidden key is never read."""
    causal, cap = options.get("causal", True), options.get("softcap") or 0
    scale = options.get("scale", 1 / math.sqrt(q.shape[3]))
    lengths = options.get("kv_lengths", [TK] * B)
    window = options.get("window", (-1, -1))
    left, right = (window - 1, -1) if isinstance(window, int) else window
    slopes = np.broadcast_to(np.float64(options.get("alibi_slopes", 0.0)), (B, H))
    sinks = options.get("sinks", [-INF] * H)
    mask = np.broadcast_to(options.get("mask", True), (B, H, TQ, TK))

    found = {
        "out": np.zeros((B, H, TQ, v.shape[3])),
        "lse": np.full((B, H, TQ), -INF),
        "weights": np.zeros((B, H, TQ, TK)),
        "scaled": np.zeros((B, H, TQ, TK)),
        "capped": np.zeros((B, H, TQ, TK)),
        "masked": np.full((B, H, TQ, TK), -INF),
    }
    for b, h, i in np.ndindex(B, H, TQ):
        p = position(options.get("align", "end"), b, lengths[b]) + i
        kv_head = h // (H // HKV)
        scores: dict[int, float] = {}
        for j in range(TK):
            score = math.fsum(q[b, h, i] * k[b, kv_head, j]) * scale
            found["scaled"][b, h, i, j] = score
            if cap:
                score = cap * math.tanh(score / cap)
            found["capped"][b, h, i, j] = score
            if causal and j > p:
                continue
            if (left >= 0 and j < p - left) or (right >= 0 and j > p + right) or j >= lengths[b]:
                continue
            allowed = mask[b, h, i, j]
            if allowed == (False if mask.dtype == bool else -INF):
                continue
            score -= slopes[b, h] * abs(p - j)
            scores[j] = score if mask.dtype == bool else score + float(allowed)
            found["masked"][b, h, i, j] = scores[j]
        terms = [*scores.values(), *([sinks[h]] if sinks[h] > -INF else [])]
        if not terms:
            continue
        top = max(terms)
        total = math.fsum(math.exp(s - top) for s in terms)
        found["lse"][b, h, i] = top + math.log(total)
        for j, s in scores.items():
            weight = math.exp(s - top) / total
            found["weights"][b, h, i, j] = weight
            found["out"][b, h, i] += weight * v[b, kv_head, j]
    return found


def problem() -> tuple[Array, Array, Array]:
    return make_qkv(
        20, "float64", batch=B, heads=(H, HKV), tokens=(TQ, TK), head_dim=8, value_dim=6
    )


@pytest.mark.parametrize("name", OPTIONS)
def test_against_loops(name: str) -> None:
    q, k, v = problem()
    options = OPTIONS[name]
    expected = by_loops(q, k, v, **options)
    out, lse = reference.attention(q, k, v, return_lse=True, **options)
    found = {"out": out, "lse": lse, "weights": reference.attention_weights(q, k, **options)}
    for stage in ("scaled", "capped", "masked"):
        found[stage] = reference.attention_scores(q, k, stage=stage, **options)
    for part, array in found.items():
        np.testing.assert_allclose(array, expected[part], rtol=1e-12, atol=1e-13, err_msg=part)


@pytest.mark.parametrize("name", [name for name in OPTIONS if "all" in name or "mask" in name])
def test_layouts_and_ranks(name: str) -> None:
    """Masks, slopes, lse, weights and scores are head-first in every layout."""
    options = OPTIONS[name]
    q, k, v = problem()
    out, lse = reference.attention(q, k, v, return_lse=True, **options)
    turned = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v)]
    found, found_lse = reference.attention(*turned, return_lse=True, layout="BTHD", **options)
    np.testing.assert_array_equal(found.swapaxes(1, 2), out)
    np.testing.assert_array_equal(found_lse, lse)
    for b in range(B):
        own = {
            name: value[b : b + 1] if name in ("kv_lengths", "align") else value
            for name, value in options.items()
        }
        if "mask" in own and own["mask"].ndim == 4:
            own["mask"] = own["mask"][min(b, len(own["mask"]) - 1)]
        if np.ndim(own.get("alibi_slopes")) == 2:
            own["alibi_slopes"] = own["alibi_slopes"][b : b + 1]
        found, found_lse = reference.attention(q[b], k[b], v[b], return_lse=True, **own)
        np.testing.assert_allclose(found, out[b], rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(found_lse, lse[b], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["bool mask", "bool mask of keys", "float mask", "softcap"])
def test_against_torch(name: str, causal: bool) -> None:
    """scaled_dot_product_attention in float64 with one dense mask; rows without a key are left."""
    torch = pytest.importorskip("torch")
    q, k, v = problem()
    options = OPTIONS[name] | {"causal": causal}
    mask = np.broadcast_to(options.get("mask", True), (B, H, TQ, TK))
    bias = np.where(mask, 0.0, -INF) if mask.dtype == bool else mask.copy()
    if causal:
        bias = np.where(np.arange(TK) <= np.arange(TQ)[:, None] + TK - TQ, bias, -INF)
    if "softcap" in options:  # what the cap takes off a score goes into the mask
        before, after = (
            reference.attention_scores(q, k, stage=stage, **options)
            for stage in ("scaled", "capped")
        )
        np.testing.assert_allclose(after, 0.7 * np.tanh(before / 0.7), rtol=1e-14)
        bias = bias + after - before
    tensors = [torch.from_numpy(x) for x in (q, np.repeat(k, 2, 1), np.repeat(v, 2, 1))]
    attend = torch.nn.functional.scaled_dot_product_attention
    expected = attend(*tensors, attn_mask=torch.from_numpy(bias)).numpy()
    full = (bias > -INF).any(axis=-1)
    out = reference.attention(q, k, v, **options)
    np.testing.assert_allclose(out[full], expected[full], rtol=1e-11, atol=1e-12)
    assert not out[~full].any()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_masks_of_every_dtype(dtype: Any) -> None:
    q, k, v = problem()
    mask = (np.round(FLOATS * 8) / 8).astype(dtype)
    wide = mask.astype(np.float64)
    for each in ("f4", "f8"):
        arrays = [x.astype(each) for x in (q, k, v)]
        np.testing.assert_array_equal(
            reference.attention(*arrays, mask=mask), reference.attention(*arrays, mask=wide)
        )


def test_a_row_of_sinks_alone() -> None:
    """No key, but a sink: context 0, and the lse is the sink."""
    q, k, v = problem()
    sinks = np.array([0.5, -INF, 3.0, -1000.0])
    for hiding in (
        {"kv_lengths": [0, 0]},
        {"mask": np.zeros(TK, bool)},
        {"mask": np.full(TK, -INF)},
        {"align": -100},
        {"align": 100, "window": 2},
    ):
        out, lse = reference.attention(q, k, v, sinks=sinks, return_lse=True, **hiding)
        assert not out.any()
        np.testing.assert_array_equal(lse, np.broadcast_to(sinks[:, None], lse.shape))
        assert not reference.attention_weights(q, k, sinks=sinks, **hiding).any()
        assert (reference.attention_scores(q, k, sinks=sinks, **hiding) == -INF).all()


def test_a_sink_far_above_leaves_no_weight_but_hides_nothing() -> None:
    q, k, v = problem()
    out = reference.attention(q, k, v, sinks=np.full(H, 1e5))
    assert not out.any()
    v[1, 1, 6, 2] = NAN  # the last key: only the last query sees it
    out = reference.attention(q, k, v, sinks=np.full(H, 1e5))
    nan = np.zeros(out.shape, bool)
    nan[1, 2:, 4, 2] = True
    np.testing.assert_array_equal(np.isnan(out), nan)


@pytest.mark.parametrize("name", ["window", "lengths", "float mask", "bool mask", "all"])
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_what_an_option_hides_does_not_exist(name: str, bad: float) -> None:
    q, k, v = problem()
    options = OPTIONS[name]
    out, lse = reference.attention(q, k, v, return_lse=True, **options)
    seen = reference.attention_scores(q, k, **options) > -INF
    for j in range(TK):
        worse_k, worse_v = k.copy(), v.copy()
        worse_k[:, :, j], worse_v[:, :, j] = bad, bad
        found, found_lse = reference.attention(q, worse_k, worse_v, return_lse=True, **options)
        hidden = ~seen[..., j]
        np.testing.assert_array_equal(found[hidden], out[hidden])
        np.testing.assert_array_equal(found_lse[hidden], lse[hidden])


def test_a_nan_in_a_mask_is_seen_where_the_key_is() -> None:
    q, k, v = problem()
    mask = np.zeros((TQ, TK))
    mask[0, 2] = mask[0, 3] = NAN  # query 0 sees the keys 0 to 2
    mask[3, 6] = NAN  # query 3 sees the keys 0 to 5
    out, lse = reference.attention(q, k, v, mask=mask, return_lse=True)
    rows = np.arange(TQ) == 0
    assert np.isnan(out[:, :, rows]).all()
    assert np.isfinite(out[:, :, ~rows]).all()
    np.testing.assert_array_equal(np.isnan(lse), np.broadcast_to(rows, lse.shape))
