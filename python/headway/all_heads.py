"""Stage 2 of causal multi-head attention: all heads at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from . import state as names
from .arrays import Array, ArrayInput
from .conversions import merged_arguments, single_heads
from .head_stack import StackedMultiHeadAttention
from .module_base import AttentionModule
from .weights import (
    Weight,
    check_shape,
    checked,
    checked_biases,
    checked_head_counts,
    checked_matrix,
    checked_output,
    checked_size,
    draw,
    merged_widths,
)

if TYPE_CHECKING:
    from typing_extensions import Self


class MultiHeadAttention(AttentionModule):
    """Multi-head attention, stage 2: one projection for Q, K and V, one fused attention, one Z.

    For x (B, T, d_in), with D = head_dim::

        [Q | K | V] = x @ [w_query | w_key | w_value] + [b_query | b_key | b_value]
        Z[:, :, h*D : (h+1)*D] = causal attention of head h
        result: Z, or Z @ w_out + b_out

    Head h owns the columns ``h*D`` to ``(h+1)*D`` of w_query, and key head ``h // (H // Hkv)`` of
    w_key and w_value. The result is that of :class:`StackedMultiHeadAttention` with the same
    weights, to the bit.

    Parameters
    ----------
    w_query : array, (d_in, num_heads * head_dim)
        Query weights of all heads side by side; float32, float64, float16 or bfloat16. All weights
        have one dtype and are copied.
    w_key, w_value : array, (d_in, num_kv_heads * head_dim)
        Key and value weights of all heads side by side.
    num_heads : int
        Number of query heads H.
    num_kv_heads : int, optional
        Number of key and value heads Hkv, a divisor of num_heads. Default num_heads: every head
        owns its keys and values. With fewer, a group of ``H // Hkv`` query heads shares them.
    b_query, b_key, b_value : array, optional
        Biases, each as long as its weight has columns; each with or without the others.
    w_out : array, (d_out, width), optional
        Output projection.
    b_out : array, (width,), optional
        Its bias.
    dropout : float from 0 to less than 1, default 0.0
        Probability with which an attention weight is dropped in training mode.

    Attributes
    ----------
    w_query, w_key, w_value, b_query, b_key, b_value, w_out, b_out : ndarray
        Read-only; what was not given is None. Assigning one copies it in, if it has the same shape
        and dtype. The first three are views of one array (d_in, (H + 2 * Hkv) * head_dim).
    d_in, num_heads, num_kv_heads, head_dim : int
        Sizes of the input and of the heads.
    d_out : int
        Width of all heads together, ``num_heads * head_dim``.
    dropout : float
        May be assigned.
    dtype : numpy.dtype
        Of the weights, the input and the result.
    num_parameters : int
        How many numbers the weights and biases hold.

    Notes
    -----
    Each of the two projections is a :class:`Projection`; bits and memory are those of
    :class:`CausalAttention`: the weights twice, and for a call Q, K and V, that is
    B * T * (H + 2 * Hkv) * head_dim numbers, and Z where there is an output projection.

    Examples
    --------
    >>> import numpy as np
    >>> import headway
    >>> module = headway.MultiHeadAttention.init(8, 8, num_heads=2, dtype=np.float64)
    >>> module
    MultiHeadAttention(d_in=8, d_out=8, num_heads=2, dtype=float64, num_parameters=192)
    >>> x = np.random.default_rng(0).standard_normal((3, 5, 8))
    >>> module(x).shape, module.heads(x).shape
    ((3, 5, 8), (2, 3, 5, 4))
    """

    _class_in_files = "MultiHeadAttention"

    w_query = Weight[Array]("Query weights, (d_in, num_heads * head_dim).")
    w_key = Weight[Array]("Key weights, (d_in, num_kv_heads * head_dim).")
    w_value = Weight[Array]("Value weights, (d_in, num_kv_heads * head_dim).")
    b_query = Weight[Array | None]("Query bias, (num_heads * head_dim,), or None.")
    b_key = Weight[Array | None]("Key bias, (num_kv_heads * head_dim,), or None.")
    b_value = Weight[Array | None]("Value bias, (num_kv_heads * head_dim,), or None.")
    w_out = Weight[Array | None]("Output projection, (d_out, width), or None.")
    b_out = Weight[Array | None]("Bias of the output projection, (width,), or None.")

    def __init__(
        self,
        w_query: ArrayInput,
        w_key: ArrayInput,
        w_value: ArrayInput,
        *,
        num_heads: int,
        num_kv_heads: int | None = None,
        b_query: ArrayInput | None = None,
        b_key: ArrayInput | None = None,
        b_value: ArrayInput | None = None,
        w_out: ArrayInput | None = None,
        b_out: ArrayInput | None = None,
        dropout: float = 0.0,
    ) -> None:
        query = checked_matrix("w_query", w_query, "(d_in, num_heads * head_dim)")
        self._num_heads, self._num_kv_heads = checked_head_counts(num_heads, num_kv_heads)
        d_in, width = query.shape
        if width % self._num_heads:
            raise ValueError(
                f"w_query: expected columns for {self._num_heads} heads of one head_dim, got "
                f"{width} in shape {query.shape}; num_heads has to divide the number of columns"
            )
        head_dim = width // self._num_heads
        weights = {"w_query": query}
        for name, value in (("w_key", w_key), ("w_value", w_value)):
            weights[name] = checked(name, value, query)
            why = (
                f"it has head_dim {head_dim} columns for each of {self._num_kv_heads} key and "
                "value heads; pass num_kv_heads if there are fewer of them than query heads"
            )
            check_shape(name, weights[name], (d_in, self._num_kv_heads * head_dim), why)
        biases = {"b_query": b_query, "b_key": b_key, "b_value": b_value}
        weights |= checked_biases(biases, weights)
        self._store(weights | checked_output(w_out, b_out, width, query))
        self.dropout = dropout

    @classmethod
    def init(
        cls,
        d_in: int,
        d_out: int,
        *,
        num_heads: int,
        num_kv_heads: int | None = None,
        qkv_bias: bool = False,
        out_proj: bool = False,
        dropout: float = 0.0,
        seed: int | None = 0,
        dtype: Any = np.float32,
    ) -> Self:
        """A module with random weights, drawn as torch's ``Linear`` draws them.

        Parameters
        ----------
        d_in, d_out, num_heads, qkv_bias, out_proj, dropout, seed, dtype
            As in :meth:`StackedMultiHeadAttention.init`; the same seed gives the same weights.
        num_kv_heads : int, optional
            Number of key and value heads, a divisor of num_heads; default num_heads.

        Returns
        -------
        MultiHeadAttention
            Weights are uniform between ``-1/sqrt(n)`` and ``1/sqrt(n)``, with n the rows of the
            weight.

        Raises
        ------
        TypeError, ValueError
            If an argument is of the wrong kind, or a size is out of range.

        Examples
        --------
        >>> import headway
        >>> module = headway.MultiHeadAttention.init(8, 8, num_heads=4, num_kv_heads=2)
        >>> module.w_query.shape, module.w_key.shape
        ((8, 8), (8, 4))
        """
        num_heads, num_kv_heads = checked_head_counts(num_heads, num_kv_heads)
        drawn = draw(
            checked_size("d_in", d_in),
            merged_widths(d_out, num_heads, num_kv_heads),
            qkv_bias=qkv_bias,
            out_proj=out_proj,
            seed=seed,
            dtype=dtype,
        )
        return cls(**drawn, num_heads=num_heads, num_kv_heads=num_kv_heads, dropout=dropout)

    @classmethod
    def from_state_dict(
        cls,
        state: Mapping[str, Any],
        *,
        num_heads: int | None = None,
        num_kv_heads: int | None = None,
        prefix: str = "",
    ) -> Self:
        """A module from a state dict with the course's or torch.nn.MultiheadAttention's names.

        Parameters
        ----------
        state : mapping of str to array
            NumPy arrays or tensors, the matrices (out, in) as torch stores them, under one of
            these sets of names, with or without biases and ``out_proj``:
            ``heads.0.W_query.weight``, ... for each head; ``W_query.weight``, ...;
            ``in_proj_weight``; ``q_proj_weight``, ... of one width. ``mask`` buffers are skipped.
        num_heads : int, optional
            Number of heads; needed where the names do not tell, as ``heads.0.W_query.weight`` does.
        num_kv_heads : int, optional
            Number of key and value heads; default what the shape of ``W_key.weight`` says.
        prefix : str, default ""
            What stands before the names, such as ``"self_attn."``; other keys are left alone.

        Returns
        -------
        MultiHeadAttention
            With copies of the weights.

        Raises
        ------
        ValueError
            If keys are missing or unknown (the text lists all of them), or the shapes do not fit.
        TypeError
            If a value is no array of one of the four dtypes, or of another one than the others.

        Examples
        --------
        >>> import numpy as np
        >>> import headway
        >>> state = {"in_proj_weight": np.ones((24, 8)), "out_proj.weight": np.ones((8, 8))}
        >>> headway.MultiHeadAttention.from_state_dict(state, num_heads=2).w_query.shape
        (8, 8)
        """
        return cls(**merged_arguments(state, num_heads, num_kv_heads, prefix))

    def state_dict(self, *, prefix: str = "") -> dict[str, Array]:
        """The weights as fresh arrays under the course's names, in torch's (out, in) orientation.

        Returns
        -------
        dict of str to ndarray
            C-contiguous copies; :meth:`from_state_dict` reads them.

        Examples
        --------
        >>> import headway
        >>> module = headway.MultiHeadAttention.init(8, 8, num_heads=2, out_proj=True)
        >>> list(module.state_dict())[2:]
        ['W_value.weight', 'out_proj.weight', 'out_proj.bias']
        """
        return names.to_state(self._weights, prefix)

    @classmethod
    def _from_file(cls, tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> Self:
        num_heads, num_kv_heads = int(metadata["num_heads"]), int(metadata["num_kv_heads"])
        return cls.from_state_dict(tensors, num_heads=num_heads, num_kv_heads=num_kv_heads)

    def split(self) -> StackedMultiHeadAttention:
        """The same weights as a list of single heads, which is run one head after another.

        Returns
        -------
        StackedMultiHeadAttention
            With copies of the weights; where a group of query heads shares its keys and values,
            each head gets a copy of them.

        Examples
        --------
        >>> import headway
        >>> module = headway.MultiHeadAttention.init(8, 4, num_heads=2)
        >>> [head.w_query.shape for head in module.split()]
        [(8, 2), (8, 2)]
        """
        return StackedMultiHeadAttention(single_heads(self), w_out=self.w_out, b_out=self.b_out)

    @property
    def num_heads(self) -> int:
        """Number of query heads H."""
        return self._num_heads

    @property
    def num_kv_heads(self) -> int:
        """Number of key and value heads Hkv, a divisor of num_heads."""
        return self._num_kv_heads

    @property
    def head_dim(self) -> int:
        """Numbers per token of one head's Q, K, V and Z."""
        return self.d_out // self._num_heads

    @property
    def d_out(self) -> int:
        """Width of all heads together: the last axis of Z, before an output projection."""
        return int(self._w_query.shape[1])

    def _more_sizes(self) -> dict[str, Any]:
        shared = self._num_kv_heads < self._num_heads
        kv_heads = {"num_kv_heads": self._num_kv_heads} if shared else {}
        return {"num_heads": self._num_heads} | kv_heads | super()._more_sizes()
