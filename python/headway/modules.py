"""Causal multi-head attention as modules, in two stages that give the same result.

* :class:`StackedMultiHeadAttention`, stage 1: a list of single heads, run one after another, their
  results joined side by side. Easy to see through.
* :class:`MultiHeadAttention`, stage 2: all heads at once, by one projection for Q, K and V and one
  fused attention.

Each head owns its query, key and value matrices, and all of them read the same input. ``fuse`` and
``split`` lead from one stage to the other.
"""

from .all_heads import MultiHeadAttention
from .head_stack import StackedMultiHeadAttention
from .one_head import CausalAttention

__all__ = ["CausalAttention", "MultiHeadAttention", "StackedMultiHeadAttention"]
