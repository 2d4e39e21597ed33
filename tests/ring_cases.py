"""The calls that are made over several ranks and on one machine, and how they are compared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from helpers import Array, dtype_of, make

from headway.distributed import Traffic, ring_traffic

SHARDINGS = ("zigzag", "contiguous", "striped")


class Case(NamedTuple):
    """One call on a whole sequence."""

    name: str
    options: dict[str, Any]
    tokens: int = 45
    dtype: str = "float64"
    heads: tuple[int, int] = (4, 2)
    batch: int = 2
    widths: tuple[int, int] = (8, 5)

    def arrays(self) -> tuple[Array, Array, Array, Array]:
        """q, k, v and a gradient of the result, (B, H, T, D) or (B, T, H, D)."""
        count, kv = self.heads
        shapes = (count, self.widths[0]), (kv, self.widths[0]), (kv, self.widths[1])
        all_shapes = (*shapes, (count, self.widths[1]))
        whole = [
            make((7, i), (self.batch, heads, self.tokens, width), self.dtype)
            for i, (heads, width) in enumerate(all_shapes)
        ]
        if self.options.get("layout") == "BTHD":
            whole = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in whole]
        q, k, v, grad = whole
        return q, k, v, grad

    @property
    def axis(self) -> int:
        """The axis of the tokens."""
        return -3 if self.options.get("layout") == "BTHD" else -2

    @property
    def single(self) -> dict[str, Any]:
        """The options of the call on one machine; packed sequences become a mask."""
        found = dict(self.options)
        cuts = found.pop("cu_seqlens", None)
        if cuts is not None:
            number = np.searchsorted(cuts, np.arange(self.tokens), "right")
            found["mask"] = number[:, None] == number
        return found

    def traffic(self, size: int, sharding: str, backward: bool = False) -> Traffic:
        """The bytes that the call is to move."""
        names = ("causal", "window", "cu_seqlens")  # they decide who sees whom
        return ring_traffic(
            self.tokens,
            size,
            num_kv_heads=self.heads[1],
            head_dim=self.widths[0],
            v_head_dim=self.widths[1],
            batch=self.batch,
            dtype=dtype_of(self.dtype),
            sharding=sharding,
            backward=backward,
            **{name: self.options[name] for name in names if name in self.options},
        )


SLOPES = [0.5, 0.25, 1.0, 0.0]
SINKS = [0.3, -np.inf, 2.0, -1.0]
CUTS = [0, 3, 3, 19, 20, 41, 45]
ALL = {"window": 17, "softcap": 3.0, "alibi_slopes": SLOPES, "sinks": SINKS, "scale": 0.4}


def cases() -> Iterator[Case]:
    """Every option alone, the common pairs, all together; lengths, dtypes, layouts."""
    plain: dict[str, dict[str, Any]] = {
        "plain": {},
        "everything": {"causal": False},
        "scale": {"scale": -0.7},
        "window 1": {"window": 1},
        "window 7": {"window": 7},
        "window both": {"window": (9, 4), "causal": False},
        "window after": {"window": (0, 11), "causal": False},
        "window left": {"window": 6, "causal": False},
        "softcap": {"softcap": 1.5},
        "alibi": {"alibi_slopes": SLOPES},
        "alibi everything": {"alibi_slopes": SLOPES, "causal": False},
        "alibi window": {"alibi_slopes": SLOPES, "window": (5, 3), "causal": False},
        "alibi after": {"alibi_slopes": SLOPES, "window": (0, 13), "causal": False},
        "alibi batch": {"alibi_slopes": np.array([SLOPES, SLOPES[::-1]])},
        "sinks": {"sinks": SINKS},
        "packed": {"cu_seqlens": CUTS},
        "packed everything": {"cu_seqlens": CUTS, "causal": False, "window": (4, 4)},
        "all": ALL,
        "all packed": {**ALL, "cu_seqlens": CUTS},
        "layout": {"layout": "BTHD", **ALL},
    }
    for name, options in plain.items():
        yield Case(name, options)
    for tokens in (0, 1, 2, 5, 7, 8, 24):
        yield Case(f"{tokens} tokens", {}, tokens=tokens)
        yield Case(f"{tokens} tokens, alibi, window", {**ALL, "window": 3}, tokens=tokens)
    for dtype in ("float32", "float16", "bfloat16"):
        yield Case(dtype, {}, dtype=dtype)
        yield Case(f"{dtype} all", {**ALL, "cu_seqlens": CUTS}, dtype=dtype)
    yield Case("one head", {}, heads=(1, 1), batch=1)
    yield Case("no values", {}, widths=(8, 0))
    yield Case("longer", {"window": 200}, tokens=701, dtype="float32", batch=1, widths=(16, 16))
