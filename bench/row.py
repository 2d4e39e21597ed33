"""A row of the grid: what is computed, in which dtype and memory order, by how many threads."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from options import EVERY_OPTION, Options, allowed_pairs

LONG = 16_384
"""From so many tokens on a row has three rounds, and (B, H, T, D) alone."""

MODULE_KINDS = ("module", "stages", "train")
GRADIENT_KINDS = ("backward", "train")
"""Kinds of rows with the four weights of a module; kinds of rows with gradients."""

DTYPES = ("float32", "bfloat16", "float16")
QUANTISED = ("int8", "fp8_e4m3")
"""Kinds of caches that hold rounded numbers; queries and results are float32 there."""
SIZES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "fp8_e4m3": 1}
"""Bytes of a number."""


def visible_pairs(num_queries: int, num_keys: int) -> int:
    """How many (query, key) pairs the causal rule leaves; the last query sees the last key."""
    hidden_rows = max(num_queries - num_keys, 0)
    seen = num_queries - hidden_rows
    return seen * (num_keys - seen) + seen * (seen + 1) // 2


@dataclass(frozen=True)
class Row:
    """One problem that contestants are timed on in turn; the unit of a resumed run.

    kind "attention": q (batch, num_heads, num_queries, head_dim), k and v (batch, num_kv_heads,
    num_keys, head_dim). kinds "module" and "stages": x (batch, num_keys, num_heads * head_dim),
    with an output projection. kind "projection": x (num_queries, d_in) times (d_in, d_out).
    kind "options": as "attention", with an option of ``options.py``. kind "packed": q, k and v
    (sum of lengths, num_heads, head_dim), sequences one after another. kind "decode": one query per
    sequence over a cache that is filled beforehand; `dtype` is the cache's. kind "backward": as
    "options", and the gradients of q, k and v for a given one of the result; `part` says whether
    the forward pass counts. kind "train": forward and backward pass of a module, x as for "module".
    """

    name: str
    kind: str
    dtype: str
    batch: int = 1
    num_heads: int = 1
    num_kv_heads: int = 1
    num_queries: int = 1
    num_keys: int = 1
    head_dim: int = 1
    d_in: int = 0
    d_out: int = 0
    layout: str = "BHTD"
    cold: bool = False
    isa: str | None = None
    contestants: tuple[str, ...] = ()
    quick: bool = False
    option: str = "plain"
    lengths: tuple[int, ...] = ()
    part: str = ""
    """ "both" or "backward", of a row with gradients."""

    @property
    def id(self) -> str:
        """What the result file and ``--rows`` know the row by."""
        parts = [self.name, self.dtype]
        if self.kind == "attention":
            parts.append(self.layout)
        if self.kind == "decode":
            parts.append("cold" if self.cold else "warm")
        return "/".join([*parts, *([self.isa] if self.isa else [])])

    @property
    def width(self) -> int:
        """Numbers per token of a module's input."""
        return self.num_heads * self.head_dim

    @property
    def options(self) -> Options:
        return EVERY_OPTION[self.option]

    @property
    def products(self) -> int:
        """Products of the size of ``q @ k.T``: two forward, five backward."""
        return {"": 2, "backward": 5, "both": 7}[self.part]

    @property
    def attention_flops(self) -> int:
        """Of all products over the allowed pairs: ``4*B*H*D*T*(T+1)/2`` for a causal square.

        2.5 times as much for its backward pass alone, 3.5 times as much for both.
        """
        if self.kind not in ("options", "packed", "backward"):
            return self.plain_flops
        sizes = [(n, n) for n in self.lengths] or [(self.num_queries, self.num_keys)]
        pairs = sum(allowed_pairs(*each, self.options) for each in sizes)
        return 2 * self.products * self.batch * self.num_heads * pairs * self.head_dim

    @property
    def plain_flops(self) -> int:
        """The same of the causal call without options; of the longest sequence of packed ones."""
        pairs = self.batch * self.num_heads * visible_pairs(self.num_queries, self.num_keys)
        return 2 * self.products * pairs * self.head_dim

    @property
    def flops(self) -> int:
        """Multiplications and additions that the row asks for."""
        if self.kind == "projection":
            return 2 * self.num_queries * self.d_in * self.d_out
        if self.kind in MODULE_KINDS:
            passes = 3 if self.kind == "train" else 1
            width = self.width
            return self.attention_flops + passes * 8 * self.batch * self.num_keys * width**2
        return self.attention_flops

    @property
    def long(self) -> bool:
        return self.kind in ("attention", "backward") and self.num_keys >= LONG

    @property
    def score_bytes(self) -> int:
        """Size of a stored (batch, num_heads, num_queries, num_keys) array of float32 scores."""
        return 4 * self.batch * self.num_heads * self.num_queries * self.num_keys

    @property
    def kv_bytes(self) -> int:
        """Size of K and V; a quantised cache's scales are not counted."""
        numbers = 2 * self.batch * self.num_kv_heads * self.num_keys * self.head_dim
        return numbers * SIZES[self.dtype]

    @property
    def scale(self) -> float:
        return float(self.head_dim**-0.5)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Row:
        tuples = {name: tuple(data.get(name, ())) for name in ("contestants", "lengths")}
        return cls(**{**data, **tuples})
