"""What the tests of the modules share: modules to test, the reference, comparisons."""

from __future__ import annotations

from typing import Any

import numpy as np
from helpers import Array, assert_same_bits, dtype_of, make

from headway import CausalAttention, MultiHeadAttention, StackedMultiHeadAttention, reference

Module = CausalAttention | StackedMultiHeadAttention | MultiHeadAttention
CLASSES = (CausalAttention, StackedMultiHeadAttention, MultiHeadAttention)


def both_stages(
    d_in: int, d_out: int, **options: Any
) -> tuple[StackedMultiHeadAttention, MultiHeadAttention]:
    """Both multi-head classes with the same options, hence the same weights."""
    return (
        StackedMultiHeadAttention.init(d_in, d_out, **options),
        MultiHeadAttention.init(d_in, d_out, **options),
    )


def shown(module: Module) -> dict[str, Array]:
    """Every weight that the module has as an attribute, by name."""
    names = ("w_query", "w_key", "w_value", "b_query", "b_key", "b_value", "w_out", "b_out")
    return {name: getattr(module, name) for name in names if hasattr(module, name)}


def build(cls: type[Module], dtype: Any = np.float32, *, plain: bool = False) -> Module:
    """A small module of this class; with every bias and an output projection unless plain."""
    bias = not plain
    if cls is CausalAttention:
        return CausalAttention.init(6, 8, qkv_bias=bias, seed=5, dtype=dtype_of(dtype))
    options: dict[str, Any] = {"qkv_bias": bias, "out_proj": bias, "dtype": dtype_of(dtype)}
    if cls is MultiHeadAttention:
        options["num_kv_heads"] = 2
    return cls.init(6, 8, num_heads=4, seed=5, **options)  # type: ignore[call-arg]


def reference_heads(module: MultiHeadAttention, x: Array) -> Array:
    """Z_1, ..., Z_H in float64: plain products and the NumPy reference, head by head."""
    wide = x.astype(np.float64)
    group, size = module.num_heads // module.num_kv_heads, module.head_dim
    heads = []
    for h in range(module.num_heads):
        parts = []
        for kind in ("query", "key", "value"):
            n = h if kind == "query" else h // group
            columns = slice(n * size, (n + 1) * size)
            part = wide @ getattr(module, f"w_{kind}")[:, columns].astype(np.float64)
            bias = getattr(module, f"b_{kind}")
            parts.append(part if bias is None else part + bias[columns].astype(np.float64))
        q, k, v = (part[..., np.newaxis, :, :] for part in parts)
        heads.append(reference.attention(q, k, v)[..., 0, :, :])
    return np.stack(heads)


def reference_result(module: MultiHeadAttention, x: Array) -> Array:
    """The module's result in float64."""
    z = np.concatenate(list(reference_heads(module, x)), axis=-1)
    if module.w_out is not None:
        z = z @ module.w_out.astype(np.float64)
    return z if module.b_out is None else z + module.b_out.astype(np.float64)


def fused(module: Module) -> MultiHeadAttention:
    """The same weights with all heads at once."""
    if isinstance(module, MultiHeadAttention):
        return module
    if isinstance(module, CausalAttention):
        module = StackedMultiHeadAttention([module])
    return module.fuse()


def reference_gradients(module: Module, x: Array, grad: Array) -> tuple[Array, dict[str, Array]]:
    """The gradients of x and of the weights in float64: plain products and the NumPy reference."""
    heads = fused(module)
    weights = {name: w.astype(np.float64) for name, w in heads.parameters().items()}
    wide = x.astype(np.float64).reshape(-1, *x.shape[-2:])
    counts = {"query": heads.num_heads, "key": heads.num_kv_heads, "value": heads.num_kv_heads}
    parts = []
    for kind, count in counts.items():
        part = wide @ weights[f"w_{kind}"] + weights.get(f"b_{kind}", 0.0)
        parts.append(part.reshape(*part.shape[:2], count, heads.head_dim))
    options: dict[str, Any] = {"layout": "BTHD"}
    out, lse = reference.attention(*parts, return_lse=True, **options)
    z, of_z = out.reshape(*wide.shape[:2], -1), grad.astype(np.float64).reshape(*wide.shape[:2], -1)

    found: dict[str, Array] = {}

    def back(kind: str, rows: Array, above: Array) -> Array:
        found[f"w_{kind}"] = np.einsum("bti,btj->ij", rows, above)
        if f"b_{kind}" in weights:
            found[f"b_{kind}"] = above.sum(axis=(0, 1))
        result: Array = above @ weights[f"w_{kind}"].T
        return result

    if "w_out" in weights:
        of_z = back("out", z, of_z)
    above = reference.attention_backward(of_z.reshape(out.shape), *parts, out, lse, **options)
    of_x = np.zeros(wide.shape)
    for kind, array in zip(counts, above, strict=True):
        of_x += back(kind, wide, array.reshape(*wide.shape[:2], -1))
    return of_x.reshape(x.shape), renamed(module, found)


def renamed(module: Module, found: dict[str, Array]) -> dict[str, Array]:
    """What belongs to the weights of all heads at once, under the names of the module."""
    if not isinstance(module, StackedMultiHeadAttention):
        return {name: found[name] for name in module.parameters()}
    size, result = module.head_dim, {}
    for name in module.parameters():
        place, dot, last = name.removeprefix("heads.").partition(".")
        start = int(place) * size if dot else 0
        result[name] = found[last][..., start : start + size] if dot else found[name]
    return result


def assert_same_state(one: Module, other: Module) -> None:
    """Fail unless both modules have the same weights, bit for bit, under the same names."""
    state, wanted = one.state_dict(), other.state_dict()
    assert list(state) == list(wanted)
    for name, array in state.items():
        assert_same_bits(array, wanted[name], name)


def assert_same_module(got: Module, wanted: Module) -> None:
    """Fail unless class, sizes, weights and results are the same."""
    assert type(got) is type(wanted)
    assert repr(got) == repr(wanted)
    assert_same_state(got, wanted)
    x = make(1, (2, 5, 6), wanted.dtype.name)
    assert_same_bits(got(x), wanted(x))
