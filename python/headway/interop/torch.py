"""headway in PyTorch: one function, one module, and PyTorch's own attention on headway.

* :func:`scaled_dot_product_attention`: PyTorch's signature and meaning, and headway's options.
* :func:`override`: under it, PyTorch's own function runs on headway wherever a model calls it.
* :class:`MultiHeadAttention`: the course's module, for its checkpoints.

``pip install 'headway[torch]'``. Threads are those of headway, see :func:`headway.set_num_threads`.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError:
    raise ImportError("headway.interop.torch needs PyTorch: pip install 'headway[torch]'") from None

from ._torch_attention import scaled_dot_product_attention
from ._torch_module import MultiHeadAttention
from ._torch_override import Override, override

__all__ = ["MultiHeadAttention", "Override", "override", "scaled_dot_product_attention"]
