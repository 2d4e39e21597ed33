"""From single heads to all heads side by side, and back: the same weights in another place."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import state as names
from .arrays import Array
from .one_head import CausalAttention
from .weights import KINDS, checked, checked_size

if TYPE_CHECKING:
    from .all_heads import MultiHeadAttention


def checked_heads(heads: Iterable[CausalAttention]) -> tuple[CausalAttention, ...]:
    """Copies of the heads, which have one d_in and one dtype."""
    fix = "pass a list of headway.CausalAttention"
    if not isinstance(heads, Iterable):
        got = type(heads).__name__
        raise TypeError(f"heads: expected CausalAttention modules, got {got}; {fix}")
    given_heads = tuple(heads)
    if not given_heads:
        raise ValueError(f"heads: expected at least one head, got none; {fix}")
    for n, head in enumerate(given_heads):
        if not isinstance(head, CausalAttention):
            raise TypeError(
                f"heads[{n}]: expected a CausalAttention, got {type(head).__name__}; {fix}"
            )
        if head.d_in != given_heads[0].d_in:
            raise ValueError(
                f"heads[{n}]: expected d_in {given_heads[0].d_in} like heads[0], got {head.d_in}; "
                "all heads read the same x"
            )
        checked(f"heads[{n}].w_query", head.w_query, given_heads[0].w_query, "heads[0].w_query")
        if head.dropout != given_heads[0].dropout:
            raise ValueError(
                f"heads[{n}]: expected dropout {given_heads[0].dropout} like heads[0], got "
                f"{head.dropout}; assign heads[{n}].dropout"
            )
    return tuple(copy.copy(head) for head in given_heads)


def common_head_dim(heads: Sequence[CausalAttention]) -> int:
    """The head_dim that all heads have."""
    sizes = [head.head_dim for head in heads]
    if len(set(sizes)) > 1:
        raise ValueError(
            f"heads: expected heads of one head_dim, got {sizes}; "
            "take them one by one, [head(x) for head in module]"
        )
    return sizes[0]


def side_by_side(heads: Sequence[CausalAttention]) -> dict[str, Array]:
    """The weights of the heads joined along their columns, by argument name.

    Where some heads have a bias and others have none, it is 0 for these.
    """
    no_bias = np.zeros(common_head_dim(heads), heads[0].dtype)
    joined: dict[str, Array] = {}
    for kind in KINDS:
        joined[f"w_{kind}"] = np.concatenate([head._weights[f"w_{kind}"] for head in heads], axis=1)
        biases = [head._weights.get(f"b_{kind}") for head in heads]
        if any(bias is not None for bias in biases):
            joined[f"b_{kind}"] = np.concatenate([no_bias if b is None else b for b in biases])
    return joined


def single_heads(module: MultiHeadAttention) -> list[CausalAttention]:
    """One module for each query head, with copies of its columns; shared keys are repeated."""
    group, size = module.num_heads // module.num_kv_heads, module.head_dim
    heads = []
    for h in range(module.num_heads):
        columns: dict[str, Any] = {}
        for kind in KINDS:
            n = h if kind == "query" else h // group
            for name in (f"w_{kind}", f"b_{kind}"):
                if name in module._weights:
                    columns[name] = module._weights[name][..., n * size : (n + 1) * size]
        heads.append(CausalAttention(**columns, dropout=module.dropout))
    return heads


def merged_arguments(
    state: Mapping[str, Any], num_heads: Any, num_kv_heads: Any, prefix: str
) -> dict[str, Any]:
    """The arguments of MultiHeadAttention for a state dict in any of its sets of names."""
    parts = names.read_heads(state, prefix)
    if parts.heads:
        count = len(parts.heads)
        names.check_count("num_heads", num_heads, count)
        names.check_count("num_kv_heads", num_kv_heads, count)
        joined = side_by_side([CausalAttention(**head) for head in parts.heads])
        return {**joined, **parts.output, "num_heads": count}
    if num_heads is None:
        raise ValueError(
            "num_heads: expected an int, got None; the names of this state do not tell how many "
            "heads there are, pass num_heads=..."
        )
    num_heads = checked_size("num_heads", num_heads)
    if num_kv_heads is None:
        head_dim, rest = divmod(parts.merged["w_query"].shape[1], num_heads)
        if rest == 0:  # else the module says what is wrong
            num_kv_heads = parts.merged["w_key"].shape[1] // max(head_dim, 1) or None
    counts = {"num_heads": num_heads, "num_kv_heads": num_kv_heads}
    return {**parts.merged, **parts.output, **counts}
