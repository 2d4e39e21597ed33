"""A small part of everything, compared with the reference: python .ci/smoke.py ISA.

For CPUs that are only emulated: fails unless ISA is what headway takes on this CPU by itself.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

import headway as hw

RNG = np.random.default_rng(3)
TOLERANCE = {"float64": 1e-12, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
DONE: list[str] = []


def dtypes() -> list[np.dtype[Any]]:
    """Return the dtypes, bfloat16 among them where ml_dtypes is there."""
    found = [np.dtype(name) for name in ("float32", "float64", "float16")]
    try:
        import ml_dtypes
    except ImportError:
        return found
    return [*found, np.dtype(ml_dtypes.bfloat16)]


def rows(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def check(name: str, got: Any, wanted: Any, dtype: Any = np.float32) -> None:
    """Compare two arrays, or two sequences of arrays."""
    if not isinstance(got, tuple):
        got, wanted = (got,), (wanted,)
    assert len(got) == len(wanted), name
    for a, b in zip(got, wanted, strict=True):
        allowed = TOLERANCE[np.dtype(dtype).name]
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        np.testing.assert_allclose(a, b, rtol=allowed, atol=allowed, err_msg=name)
    DONE.append(name)


def all_options(tokens: int, keys: int) -> dict[str, dict[str, Any]]:
    mask = RNG.random((2, 1, tokens, keys)) < 0.7
    mask[..., 0] = True
    options: dict[str, dict[str, Any]] = {
        "plain": {},
        "not causal": {"causal": False},
        "window": {"window": 5},
        "soft cap": {"softcap": 2.0},
        "slopes": {"alibi_slopes": hw.alibi_slopes(4)},
        "sinks": {"sinks": np.linspace(-1, 1, 4)},
        "bool mask": {"mask": mask},
        "float mask": {"mask": RNG.standard_normal((tokens, keys)).astype(np.float32)},
        "lengths": {"kv_lengths": [keys, keys - 3]},
        "dropout": {"dropout": 0.3, "seed": 7},
    }
    together = ("window", "soft cap", "slopes", "sinks", "float mask", "dropout")
    options["together"] = {k: v for name in together for k, v in options[name].items()}
    return options


def check_attention(dtype: np.dtype[Any]) -> None:
    """Forward, weights and backward with every option, few rows and many."""
    for tokens, keys in ((1, 37), (3, 37), (37, 37)):
        q, k = rows(2, 4, tokens, 9, dtype=dtype), rows(2, 2, keys, 9, dtype=dtype)
        v, grad = rows(2, 2, keys, 6, dtype=dtype), rows(2, 4, tokens, 6, dtype=dtype)
        for name, options in all_options(tokens, keys).items():
            label = f"{dtype.name} {name}, {tokens} of {keys}"
            out, lse = hw.attention(q, k, v, return_lse=True, **options)
            wanted = hw.reference.attention(q, k, v, return_lse=True, **options)
            check(f"attention: {label}", (out, lse), wanted, dtype)
            if tokens == 3:
                weights = hw.attention_weights(q, k, **options)
                wanted = hw.reference.attention_weights(q, k, **options)
                check(f"weights: {label}", weights, wanted, dtype)
            if tokens == 37:
                got = hw.attention_backward(grad, q, k, v, out, lse, **options)
                wanted = hw.reference.attention_backward(grad, q, k, v, out, lse, **options)
                check(f"backward: {label}", tuple(got), tuple(wanted), dtype)
    offsets = [0, 5, 5, 24]
    q, k = rows(24, 4, 9, dtype=dtype), rows(24, 2, 9, dtype=dtype)
    check(
        f"varlen: {dtype.name}",
        hw.attention_varlen(q, k, k, offsets),
        hw.reference.attention_varlen(q, k, k, offsets),
        dtype,
    )
    x, weight = rows(7, 33, dtype=dtype), rows(33, 50, dtype=dtype)
    wide = x.astype(np.float64) @ weight.astype(np.float64)
    check(f"projection: {dtype.name}", hw.Projection(weight)(x) / 33, wide / 33, dtype)
    x = rows(1, 2, 6, 10, dtype=dtype)
    places = np.arange(6)
    turned = hw.reference.rotary_embedding(x, places)
    check(f"rotary: {dtype.name}", hw.rotary_embedding(x, places), turned, dtype)


def check_caches() -> None:
    """Tokens decoded one by one: the bits of the whole, or near it where keys have fewer bits."""
    q, k, v = rows(1, 4, 40, 8), rows(1, 2, 40, 8), rows(1, 2, 40, 8)
    whole = hw.attention(q, k, v)
    kinds = {"float32": 0.0, "float16": 4e-3, "int8": 5e-2, "fp8_e4m3": 0.3}
    for kind, allowed in kinds.items():
        dtype = np.float16 if kind == "float16" else np.float32
        plain = hw.KVCache(1, 2, 40, 8, dtype=kind)
        paged = hw.PagedKVCache(6, 8, 2, 8, dtype=kind)
        entry = paged.add()
        steps: dict[str, list[np.ndarray]] = {"plain": [], "paged": []}
        for t in range(40):
            query, key, value = (x[:, :, t : t + 1].astype(dtype) for x in (q, k, v))
            plain.append(key, value)
            steps["plain"].append(plain.attend(query))
            paged.append([entry], key, value)
            steps["paged"].append(paged.attend([entry], query))
        for name, out in steps.items():
            decoded = np.concatenate(out, axis=2).astype(np.float32)
            worst = float(np.abs(decoded - whole).max())
            assert worst <= allowed, (kind, name, worst)
            DONE.append(f"{name} cache: {kind}")


def check_modules() -> None:
    """Both stages, their gradients against differences, causality, and a trace."""
    stacked = hw.StackedMultiHeadAttention.init(
        12, 16, num_heads=4, out_proj=True, seed=1, dtype=np.float64
    )
    fused = stacked.fuse()
    x, step = rows(2, 11, 12, dtype=np.float64), rows(2, 11, 12, dtype=np.float64)
    z = fused(x)
    grad = rows(*z.shape, dtype=np.float64)
    check("both stages", stacked(x), z, np.float64)
    check("a shorter sequence", fused(x[:, :5]), z[:, :5], np.float64)
    for module in (stacked, fused):
        slope = ((module(x + 1e-5 * step) - module(x - 1e-5 * step)) * grad).sum() / 2e-5
        module.forward(x, save=True)
        got = (module.backward(grad).x * step).sum()
        assert abs(got - slope) <= 1e-6 * abs(slope), (got, slope)
        DONE.append(f"gradients: {type(module).__name__}")
    trace = hw.trace(rows(1, 2, 5, 4), rows(1, 2, 5, 4), rows(1, 2, 5, 4))
    assert "Z" in str(trace)
    DONE.append("trace")


def main(isa: str) -> int:
    started = time.monotonic()
    assert hw.isa() == isa == hw.available_isas()[0], (hw.isa(), hw.available_isas())
    for dtype in dtypes():
        check_attention(dtype)
    check_caches()
    check_modules()
    assert hw.isa() == isa
    print(f"{isa}: {len(DONE)} checks in {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
