"""A module's call with a cache: the tokens of the call go on where those before them ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .arrays import Array
from .cache import KVCache
from .cache_pages import FLOATS, SOURCES

if TYPE_CHECKING:
    from .module_base import AttentionModule


def call_with_cache(module: AttentionModule, x: Array, cache: Any) -> Array:
    """The result for a checked ``x``, whose keys and values the cache holds afterwards.

    Where that fails, with a full cache or an interruption, it holds what it held before.
    """
    _check_cache(module, x, cache)
    had = cache.lengths
    q, k, v = module._projected(x)
    try:
        cache.append(k.swapaxes(-3, -2), v.swapaxes(-3, -2))
        heads = cache.attend(q if q.ndim == 4 else q[None], layout="BTHD")  # (B, T, H, head_dim)
        z = heads.reshape(*x.shape[:-1], module.d_out)
        return z if module._out is None else module._out(z)
    except BaseException:
        cache.truncate(had)
        raise


def _check_cache(module: AttentionModule, x: Array, cache: Any) -> None:
    if not isinstance(cache, KVCache):
        got = type(cache).__name__
        raise TypeError(f"cache: expected a headway.KVCache or None, got {got}; pass cache=None")
    kind, head_dim = module.dtype.name, module.head_dim
    fits = kind == cache.dtype or (cache.dtype not in FLOATS and kind in SOURCES)
    if not fits:
        formats = " or of 8 bits" if kind in SOURCES else ""
        raise TypeError(
            f"cache: expected {kind}{formats} like the module, got {cache.dtype}; "
            "make it with KVCache(..., dtype=module.dtype)"
        )
    batch = x.shape[0] if x.ndim == 3 else 1
    for name, found, wanted, like in (
        ("batch", cache.batch, batch, "x"),
        ("num_kv_heads", cache.num_kv_heads, module.num_kv_heads, "the module"),
        ("head_dim", cache.head_dim, head_dim, "the module"),
        ("v_head_dim", cache.v_head_dim, head_dim, "the module"),
    ):
        if found != wanted:
            raise ValueError(
                f"cache: expected {name} {wanted} like {like}, got {found}; make it with "
                f"KVCache({batch}, {module.num_kv_heads}, capacity, {head_dim})"
            )
