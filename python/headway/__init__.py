"""Causal multi-head attention on the CPU, for NumPy arrays.

>>> import numpy as np
>>> import headway
>>> q = k = v = np.ones((1, 12, 16, 64), np.float32)  # (batch, num_heads, num_tokens, head_dim)
>>> headway.attention(q, k, v).shape
(1, 12, 16, 64)
"""

from . import reference
from ._version import __version__
from .cache import KVCache
from .cost_record import Cost
from .costs import cost
from .functional import attention
from .gradients import attention_backward, attention_varlen_backward
from .layer_gradients import Gradients
from .matrices import attention_scores, attention_weights
from .merging import merge_partials
from .modules import CausalAttention, MultiHeadAttention, StackedMultiHeadAttention
from .packed import attention_varlen
from .paged_cache import PagedKVCache
from .projection import Projection
from .rope import rotary_embedding
from .runtime import (
    available_isas,
    get_num_threads,
    info,
    isa,
    release_memory,
    set_isa,
    set_num_threads,
)
from .slopes import alibi_slopes
from .tracing import Trace, trace

__all__ = [
    "CausalAttention",
    "Cost",
    "Gradients",
    "KVCache",
    "MultiHeadAttention",
    "PagedKVCache",
    "Projection",
    "StackedMultiHeadAttention",
    "Trace",
    "__version__",
    "alibi_slopes",
    "attention",
    "attention_backward",
    "attention_scores",
    "attention_varlen",
    "attention_varlen_backward",
    "attention_weights",
    "available_isas",
    "cost",
    "get_num_threads",
    "info",
    "isa",
    "merge_partials",
    "reference",
    "release_memory",
    "rotary_embedding",
    "set_isa",
    "set_num_threads",
    "trace",
]


def __dir__() -> list[str]:
    return __all__
