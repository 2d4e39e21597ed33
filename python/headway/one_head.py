"""One causal attention head as a module: the unit that both multi-head modules are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from . import state as names
from .arrays import Array, ArrayInput
from .module_base import AttentionModule
from .weights import (
    Weight,
    check_shape,
    checked,
    checked_biases,
    checked_matrix,
    checked_size,
    draw,
)

if TYPE_CHECKING:
    from typing_extensions import Self


class CausalAttention(AttentionModule):
    """One attention head: queries, keys and values of one input, each token sees itself and before.

    For one sequence x (T, d_in)::

        Q = x @ w_query + b_query        K = x @ w_key + b_key        V = x @ w_value + b_value
        Z = softmax(Q @ K.T / sqrt(head_dim), -inf where a key lies ahead of its query) @ V

    Parameters
    ----------
    w_query, w_key, w_value : array, (d_in, head_dim)
        Weights of one shape and one dtype: float32, float64, float16 or bfloat16. They are copied.
    b_query, b_key, b_value : array, (head_dim,), optional
        Biases, each with or without the others.
    dropout : float from 0 to less than 1, default 0.0
        Probability with which an attention weight is dropped in training mode.

    Attributes
    ----------
    w_query, w_key, w_value, b_query, b_key, b_value : ndarray
        Read-only; a bias that was not given is None. Assigning one copies it in, if it has the
        same shape and dtype.
    d_in, d_out, head_dim : int
        Sizes; ``d_out == head_dim``.
    num_heads, num_kv_heads : int
        Both 1.
    dropout : float
        May be assigned.
    dtype : numpy.dtype
        Of the weights, the input and the result.
    num_parameters : int
        How many numbers the weights and biases hold.

    Notes
    -----
    Q, K and V are one :class:`Projection` of x; of 16-bit numbers they are summed in float32 and
    rounded once. The bits of a row of the result depend on its token, on the earlier ones, the
    weights, the dtype and the instruction set: every x that shares these tokens gives the same row,
    whatever T, the batch, the strides and the number of threads.

    Memory: the weights twice, as they are shown and packed. A call: Q, K and V, that is
    3 * B * T * head_dim numbers, which the attention reads where the projection wrote them; never a
    (T, T) matrix.

    Examples
    --------
    >>> import numpy as np
    >>> import headway
    >>> w = np.eye(2, dtype=np.float32)
    >>> head = headway.CausalAttention(w, w, w)
    >>> head
    CausalAttention(d_in=2, d_out=2, num_heads=1, dtype=float32, num_parameters=12)
    >>> x = np.array([[1, 0], [0, 1], [1, 1]], np.float32)
    >>> head(x).round(2)
    array([[1.  , 0.  ],
           [0.33, 0.67],
           [0.75, 0.75]], dtype=float32)
    """

    _class_in_files = "CausalAttention"

    w_query = Weight[Array]("Query weights, (d_in, head_dim).")
    w_key = Weight[Array]("Key weights, (d_in, head_dim).")
    w_value = Weight[Array]("Value weights, (d_in, head_dim).")
    b_query = Weight[Array | None]("Query bias, (head_dim,), or None.")
    b_key = Weight[Array | None]("Key bias, (head_dim,), or None.")
    b_value = Weight[Array | None]("Value bias, (head_dim,), or None.")

    def __init__(
        self,
        w_query: ArrayInput,
        w_key: ArrayInput,
        w_value: ArrayInput,
        *,
        b_query: ArrayInput | None = None,
        b_key: ArrayInput | None = None,
        b_value: ArrayInput | None = None,
        dropout: float = 0.0,
    ) -> None:
        query = checked_matrix("w_query", w_query, "(d_in, head_dim)")
        weights = {"w_query": query}
        for name, value in (("w_key", w_key), ("w_value", w_value)):
            weights[name] = checked(name, value, query)
            why = "the three matrices of a head have the shape of w_query"
            check_shape(name, weights[name], query.shape, why)
        biases = {"b_query": b_query, "b_key": b_key, "b_value": b_value}
        self._store(weights | checked_biases(biases, weights))
        self.dropout = dropout

    @classmethod
    def init(
        cls,
        d_in: int,
        d_out: int,
        *,
        qkv_bias: bool = False,
        dropout: float = 0.0,
        seed: int | None = 0,
        dtype: Any = np.float32,
    ) -> Self:
        """A head with random weights, drawn as torch's ``Linear`` draws them.

        Parameters
        ----------
        d_in : int
            Numbers per token of the input.
        d_out : int
            Numbers per token of the result: the head_dim.
        qkv_bias : bool, default False
            Whether queries, keys and values get biases.
        dropout : float, default 0.0
            As for the class.
        seed : int or None, default 0
            The same seed gives the same weights; None gives new ones each time.
        dtype : dtype, default numpy.float32
            float32, float64, float16 or bfloat16, also by name.

        Returns
        -------
        CausalAttention
            Weights and biases are uniform between ``-1/sqrt(d_in)`` and ``1/sqrt(d_in)``.

        Raises
        ------
        TypeError, ValueError
            If an argument is of the wrong kind, or a size is out of range.

        Examples
        --------
        >>> import headway
        >>> headway.CausalAttention.init(3, 2, qkv_bias=True).num_parameters
        24
        """
        width = checked_size("d_out", d_out)
        return cls(
            **draw(
                checked_size("d_in", d_in),
                (width, width, width),
                qkv_bias=qkv_bias,
                out_proj=False,
                seed=seed,
                dtype=dtype,
            ),
            dropout=dropout,
        )

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any], *, prefix: str = "") -> Self:
        """A head from a state dict with the course's names.

        Parameters
        ----------
        state : mapping of str to array
            ``W_query.weight``, ``W_key.weight`` and ``W_value.weight``, each (head_dim, d_in) as
            torch stores it, and perhaps their ``bias``; NumPy arrays or tensors. A ``mask`` is
            skipped.
        prefix : str, default ""
            What stands before these names, such as ``"heads.0."``; other keys are left alone.

        Returns
        -------
        CausalAttention
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
        >>> w = np.ones((2, 3), np.float32)  # (head_dim, d_in)
        >>> state = {"W_query.weight": w, "W_key.weight": w, "W_value.weight": w}
        >>> headway.CausalAttention.from_state_dict(state).w_query.shape
        (3, 2)
        """
        weights: dict[str, Any] = {**names.read_head(state, prefix)}
        return cls(**weights)

    def state_dict(self, *, prefix: str = "") -> dict[str, Array]:
        """The weights as fresh arrays under the course's names, in torch's (out, in) orientation.

        Parameters
        ----------
        prefix : str, default ""
            What to put before each name.

        Returns
        -------
        dict of str to ndarray
            C-contiguous copies; :meth:`from_state_dict` reads them.

        Examples
        --------
        >>> import headway
        >>> state = headway.CausalAttention.init(3, 2).state_dict()
        >>> [(name, array.shape) for name, array in state.items()]
        [('W_query.weight', (2, 3)), ('W_key.weight', (2, 3)), ('W_value.weight', (2, 3))]
        """
        return names.to_state(self._weights, prefix)

    @classmethod
    def _from_file(cls, tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> Self:
        return cls.from_state_dict(tensors)

    @property
    def num_heads(self) -> int:
        """Number of query heads: 1."""
        return 1

    @property
    def num_kv_heads(self) -> int:
        """Number of key and value heads: 1."""
        return 1

    @property
    def head_dim(self) -> int:
        """Numbers per token of Q, K, V and Z."""
        return int(self._w_query.shape[1])

    @property
    def d_out(self) -> int:
        """Numbers per token of the result; the same as head_dim."""
        return self.head_dim
