"""headway."""

from __future__ import annotations

import headway

from .peers import Prepared
from .rows import Array, Row


def versions() -> dict[str, str]:
    return {"headway": headway.__version__}


def threads() -> int:
    return headway.get_num_threads()


def isa() -> str:
    return headway.isa()


def prepare(row: Row, arrays: dict[str, Array]) -> Prepared:
    if row.kind == "layer":
        x = arrays["x"]
        weights = (arrays[name] for name in ("w_query", "w_key", "w_value"))
        layer = headway.MultiHeadAttention(*weights, num_heads=row.num_heads, w_out=arrays["w_out"])
        return Prepared(lambda: layer(x), lambda out: out)
    q, k, v = arrays["q"], arrays["k"], arrays["v"]
    return Prepared(lambda: headway.attention(q, k, v), lambda out: out)
