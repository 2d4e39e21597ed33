"""The course's multi-head attention module on headway."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ._torch_attention import scaled_dot_product_attention


class MultiHeadAttention(torch.nn.Module):  # type: ignore[misc]
    """Causal multi-head attention with the course's constructor and the names of its weights.

    ``W_query``, ``W_key``, ``W_value`` and ``out_proj`` are ``torch.nn.Linear``; the attention
    between them is :func:`scaled_dot_product_attention`. The causal rule is built in: there is no
    mask buffer. A checkpoint that has one loads; it must hold the causal mask.

    Parameters
    ----------
    d_in, d_out : int
        Widths of the tokens that come in and go out; d_out is that of all heads together.
    context_length : int
        The most tokens that a call may have.
    dropout : float
        Probability that a weight is dropped in training, from 0 to 1.
    num_heads : int
        Divides d_out.
    qkv_bias : bool, default False
        Add biases to queries, keys and values.

    Raises
    ------
    ValueError
        If `d_out` is no multiple of `num_heads`, or a number is out of range.

    Notes
    -----
    The course: Raschka, "Build a Large Language Model (From Scratch)" (2024), chapter 3. Memory of
    a call: the tensors of the projections and what :func:`headway.attention` takes; no matrix of
    num_tokens x num_tokens.

    Examples
    --------
    >>> import torch
    >>> from headway.interop.torch import MultiHeadAttention
    >>> attention = MultiHeadAttention(6, 8, context_length=16, dropout=0.0, num_heads=2)
    >>> attention(torch.ones(3, 5, 6)).shape
    torch.Size([3, 5, 8])
    >>> list(attention.state_dict())
    ['W_query.weight', 'W_key.weight', 'W_value.weight', 'out_proj.weight', 'out_proj.bias']
    """

    def __init__(
        self,
        d_in: int,
        d_out: int,
        context_length: int,
        dropout: float,
        num_heads: int,
        qkv_bias: bool = False,
    ) -> None:
        super().__init__()
        for name, size in (
            ("d_in", d_in),
            ("d_out", d_out),
            ("context_length", context_length),
            ("num_heads", num_heads),
        ):
            if size < 1:
                raise ValueError(f"{name}: expected at least 1, got {size}; pass a positive int")
        if d_out % num_heads:
            raise ValueError(
                f"d_out: expected a multiple of num_heads ({num_heads}), got {d_out}; "
                "each head takes an equal part of it"
            )
        self.d_in = d_in
        self.d_out = d_out
        self.context_length = context_length
        self.num_heads = num_heads
        self.head_dim = d_out // num_heads
        self.W_query = torch.nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = torch.nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = torch.nn.Linear(d_in, d_out, bias=qkv_bias)
        self.out_proj = torch.nn.Linear(d_out, d_out)
        self.dropout = torch.nn.Dropout(dropout)  # refuses what is no probability

    def forward(self, x: Tensor) -> Tensor:
        """Context vectors of the tokens, after the output projection.

        Parameters
        ----------
        x : Tensor, (B, num_tokens, d_in) or (num_tokens, d_in)
            Embedded tokens.

        Returns
        -------
        Tensor, (B, num_tokens, d_out) or (num_tokens, d_out)

        Raises
        ------
        ValueError
            If `x` has another shape, or more tokens than `context_length`.
        """
        if x.dim() not in (2, 3) or x.shape[-1] != self.d_in:
            raise ValueError(
                f"x: expected shape (batch, num_tokens, {self.d_in}) or (num_tokens, {self.d_in}), "
                f"got {tuple(x.shape)}; put the embedding on the last axis"
            )
        if x.shape[-2] > self.context_length:
            raise ValueError(
                f"x: expected at most context_length = {self.context_length} tokens, got "
                f"{x.shape[-2]}; cut x, or build the module with a greater context_length"
            )
        query, key, value = (
            projection(x).unflatten(-1, (self.num_heads, self.head_dim))
            for projection in (self.W_query, self.W_key, self.W_value)
        )
        context = scaled_dot_product_attention(
            query,
            key,
            value,
            is_causal=True,
            dropout_p=self.dropout.p if self.training else 0.0,
            layout="BTHD",
        )
        merged: Tensor = self.out_proj(context.flatten(-2))
        return merged

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        mask = state_dict.get(prefix + "mask")
        super()._load_from_state_dict(
            state_dict,
            prefix,
            local_metadata,
            strict,
            missing_keys,
            unexpected_keys,
            error_msgs,
        )
        if mask is None:
            return
        if prefix + "mask" in unexpected_keys:
            unexpected_keys.remove(prefix + "mask")
        size = mask.shape[-1] if mask.dim() == 2 else 0
        if not torch.equal(mask.bool(), torch.ones(size, size, dtype=torch.bool).triu(1)):
            error_msgs.append(
                f"{prefix}mask: expected the causal mask, ones above the diagonal, got another; "
                "this module is causal: remove the mask from the state"
            )

    def extra_repr(self) -> str:
        """What stands between the parentheses of ``repr``, before the parts."""
        return f"num_heads={self.num_heads}, context_length={self.context_length}"
