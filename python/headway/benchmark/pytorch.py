"""PyTorch: scaled_dot_product_attention, and Linear around it."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from .peers import Prepared
from .rows import Array, Row, seen


def _torch() -> Any:
    return import_module("torch")


_torch()  # a process without it says so at once


def versions() -> dict[str, str]:
    return {"torch": str(_torch().__version__)}


def threads() -> int:
    return int(_torch().get_num_threads())


def _tensor(array: Array) -> Any:
    """A tensor on the array's memory."""
    torch = _torch()
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _result(tensor: Any) -> Array:
    found: Array = tensor.detach().float().numpy()
    return found


def _inferring(call: Callable[[], Any]) -> Callable[[], Any]:
    torch = _torch()

    def inner() -> Any:
        with torch.inference_mode():
            return call()

    return inner


def prepare(row: Row, arrays: dict[str, Array]) -> Prepared:
    functional = _torch().nn.functional
    if row.kind == "layer":
        return _layer(row, arrays)
    q, k, v = (_tensor(arrays[name]) for name in "qkv")
    options: dict[str, Any] = {}
    if row.num_queries == row.num_keys:
        options["is_causal"] = True
    elif row.num_queries > 1:
        options["attn_mask"] = _tensor(seen(row))[None, None]
    if row.num_heads > row.num_kv_heads:
        options["enable_gqa"] = True
    attend = functional.scaled_dot_product_attention
    return Prepared(_inferring(lambda: attend(q, k, v, **options)), _result)


def _layer(row: Row, arrays: dict[str, Array]) -> Prepared:
    torch = _torch()
    functional = torch.nn.functional
    names = ("w_query", "w_key", "w_value")
    w_qkv = torch.cat([_tensor(arrays[name]).T for name in names]).contiguous()
    w_out, x = _tensor(arrays["w_out"]).T.contiguous(), _tensor(arrays["x"])
    split = (1, row.num_keys, 3, row.num_heads, row.head_dim)

    def call() -> Any:
        q, k, v = functional.linear(x, w_qkv).view(split).permute(2, 0, 3, 1, 4).unbind(0)
        z = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return functional.linear(z.transpose(1, 2).reshape(x.shape), w_out)

    return Prepared(_inferring(call), _result)
