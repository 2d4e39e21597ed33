"""Stage 1 of causal multi-head attention: single heads, run one after another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from . import state as names
from .arrays import Array, ArrayInput, empty_result
from .conversions import checked_heads, common_head_dim, side_by_side, single_heads
from .module_backward import Places
from .module_base import AttentionModule
from .one_head import CausalAttention
from .weights import Weight, checked_output

if TYPE_CHECKING:
    from typing_extensions import Self

    from .all_heads import MultiHeadAttention


class StackedMultiHeadAttention(AttentionModule):
    """Multi-head attention, stage 1: a list of single heads, their results joined side by side.

    Every head reads the same x with weights of its own::

        Z_n = heads[n](x)
        Z   = [Z_1 | Z_2 | ... | Z_H]            result: Z, or Z @ w_out + b_out

    :class:`MultiHeadAttention` gives the same result to the bit, all heads at once.

    Parameters
    ----------
    heads : iterable of CausalAttention
        At least one head, all with the same d_in, dtype and dropout; the head_dim may differ. The
        heads are copied, so that no two of them share a weight.
    w_out : array, (d_out, width), optional
        Output projection.
    b_out : array, (width,), optional
        Its bias.

    Attributes
    ----------
    w_out, b_out : ndarray or None
        Read-only; assigning one copies it in, if it has the same shape and dtype.
    d_in : int
        Numbers per token of the input.
    d_out : int
        Width of all heads together, the sum of their head_dim.
    num_heads, num_kv_heads : int
        The number of heads, twice: each has its own keys and values.
    dtype : numpy.dtype
        Of the weights, the input and the result.
    num_parameters : int
        How many numbers the weights and biases hold.

    Notes
    -----
    The module is a sequence: ``len(module)``, ``module[n]`` and ``for head in module``. A weight of
    a head is replaced by ``module[n].w_query = new``. If the heads differ in head_dim, the method
    ``heads`` and ``fuse`` raise a ValueError; ``[head(x) for head in module]`` serves there.

    Bits and memory are those of :class:`CausalAttention`; Z is written once, each head to its
    columns. In training with dropout one attention serves all heads, which have one head_dim then:
    what is dropped depends on the index of the head, and both stages drop the same.

    Examples
    --------
    >>> import numpy as np
    >>> import headway
    >>> w = np.eye(2, dtype=np.float32)
    >>> first, second = headway.CausalAttention(w, w, w), headway.CausalAttention(w, -w, 10 * w)
    >>> module = headway.StackedMultiHeadAttention([first, second])
    >>> module
    StackedMultiHeadAttention(d_in=2, d_out=4, num_heads=2, dtype=float32, num_parameters=24)
    >>> x = np.array([[1, 0], [0, 1], [1, 1]], np.float32)
    >>> module(x).round(2)
    array([[ 1.  ,  0.  , 10.  ,  0.  ],
           [ 0.33,  0.67,  6.7 ,  3.3 ],
           [ 0.75,  0.75,  5.99,  5.99]], dtype=float32)
    """

    _class_in_files = "StackedMultiHeadAttention"

    w_out = Weight[Array | None]("Output projection, (d_out, width), or None.")
    b_out = Weight[Array | None]("Bias of the output projection, (width,), or None.")

    def __init__(
        self,
        heads: Iterable[CausalAttention],
        *,
        w_out: ArrayInput | None = None,
        b_out: ArrayInput | None = None,
    ) -> None:
        self._heads = checked_heads(heads)
        self._store(checked_output(w_out, b_out, self.d_out, self._w_query))

    @classmethod
    def init(
        cls,
        d_in: int,
        d_out: int,
        *,
        num_heads: int,
        qkv_bias: bool = False,
        out_proj: bool = False,
        dropout: float = 0.0,
        seed: int | None = 0,
        dtype: Any = np.float32,
    ) -> Self:
        """A module with random weights, drawn as torch's ``Linear`` draws them.

        Parameters
        ----------
        d_in : int
            Numbers per token of the input.
        d_out : int
            Width of all heads together, a multiple of num_heads.
        num_heads : int
            Number of heads, each of head_dim ``d_out // num_heads``.
        qkv_bias : bool, default False
            Whether queries, keys and values get biases.
        out_proj : bool, default False
            Whether there is an output projection (d_out, d_out), with a bias.
        dropout : float, default 0.0
            As for each head.
        seed : int or None, default 0
            The same seed gives the same weights, here and in :meth:`MultiHeadAttention.init`; None
            gives new ones each time.
        dtype : dtype, default numpy.float32
            float32, float64, float16 or bfloat16, also by name.

        Returns
        -------
        StackedMultiHeadAttention
            Weights are uniform between ``-1/sqrt(n)`` and ``1/sqrt(n)``, with n the rows of the
            weight.

        Raises
        ------
        TypeError, ValueError
            If an argument is of the wrong kind, or a size is out of range.

        Examples
        --------
        >>> import headway
        >>> headway.StackedMultiHeadAttention.init(8, 8, num_heads=2, out_proj=True).num_parameters
        264
        """
        from .all_heads import MultiHeadAttention

        merged = MultiHeadAttention.init(
            d_in,
            d_out,
            num_heads=num_heads,
            qkv_bias=qkv_bias,
            out_proj=out_proj,
            dropout=dropout,
            seed=seed,
            dtype=dtype,
        )
        return cls(single_heads(merged), w_out=merged.w_out, b_out=merged.b_out)

    @classmethod
    def from_state_dict(
        cls, state: Mapping[str, Any], *, num_heads: int | None = None, prefix: str = ""
    ) -> Self:
        """A module from a state dict with the course's or torch.nn.MultiheadAttention's names.

        Takes and refuses what :meth:`MultiHeadAttention.from_state_dict` does. Where a group of
        query heads shares keys and values, each head gets a copy of them.

        Parameters
        ----------
        state, num_heads, prefix
            As in :meth:`MultiHeadAttention.from_state_dict`.

        Returns
        -------
        StackedMultiHeadAttention
            With copies of the weights.

        Examples
        --------
        >>> import headway
        >>> state = headway.StackedMultiHeadAttention.init(3, 4, num_heads=2).state_dict()
        >>> headway.StackedMultiHeadAttention.from_state_dict(state).num_heads
        2
        """
        from .all_heads import MultiHeadAttention

        parts = names.read_heads(state, prefix)
        if parts.heads:
            names.check_count("num_heads", num_heads, len(parts.heads))
            return cls([CausalAttention(**head) for head in parts.heads], **parts.output)
        merged = MultiHeadAttention.from_state_dict(state, num_heads=num_heads, prefix=prefix)
        return cls(single_heads(merged), **parts.output)

    def state_dict(self, *, prefix: str = "") -> dict[str, Array]:
        """The weights as fresh arrays under the course's names, in torch's (out, in) orientation.

        Returns
        -------
        dict of str to ndarray
            C-contiguous copies; :meth:`from_state_dict` reads them.

        Examples
        --------
        >>> import headway
        >>> module = headway.StackedMultiHeadAttention.init(3, 2, num_heads=2)
        >>> list(module.state_dict())[:3]
        ['heads.0.W_query.weight', 'heads.0.W_key.weight', 'heads.0.W_value.weight']
        """
        state: dict[str, Array] = {}
        for n, head in enumerate(self._heads):
            state |= head.state_dict(prefix=f"{prefix}heads.{n}.")
        return state | names.to_state(self._weights, prefix)

    @classmethod
    def _from_file(cls, tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> Self:
        return cls.from_state_dict(tensors, num_heads=int(metadata["num_heads"]))

    def fuse(self) -> MultiHeadAttention:
        """The same weights as :class:`MultiHeadAttention`, which computes all heads at once.

        Returns
        -------
        MultiHeadAttention
            With copies of the weights, one key head each; a bias that a head lacks is 0.

        Raises
        ------
        ValueError
            If the heads differ in head_dim.

        Examples
        --------
        >>> import headway
        >>> headway.StackedMultiHeadAttention.init(8, 4, num_heads=2).fuse().w_query.shape
        (8, 4)
        """
        from .all_heads import MultiHeadAttention

        arguments: dict[str, Any] = {**side_by_side(self._heads), **self._weights}
        return MultiHeadAttention(**arguments, num_heads=self.num_heads, dropout=self.dropout)

    def _arrays(self) -> Iterator[Array]:
        for head in self._heads:
            yield from head._arrays()
        yield from super()._arrays()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._heads = checked_heads(self._heads)

    @property
    def _w_query(self) -> Array:
        return self._heads[0].w_query

    @property
    def num_heads(self) -> int:
        """Number of heads H."""
        return len(self._heads)

    @property
    def num_kv_heads(self) -> int:
        """Number of key and value heads: H."""
        return len(self._heads)

    @property
    def head_dim(self) -> int:
        """Numbers per token of one head's Z; a ValueError if the heads differ in it."""
        return common_head_dim(self._heads)

    @property
    def d_out(self) -> int:
        """Width of all heads together: the last axis of Z, before an output projection."""
        return sum(head.head_dim for head in self._heads)

    def __len__(self) -> int:
        return len(self._heads)

    def __getitem__(self, n: int) -> CausalAttention:
        return self._heads[n]

    def __iter__(self) -> Iterator[CausalAttention]:
        return iter(self._heads)

    def _merged(self, x: Array) -> Array:
        self._write_merged(x, z := empty_result((*x.shape[:-1], self.d_out), x.dtype))
        return z

    def _write_merged(self, x: Array, z: Array) -> None:
        start = 0
        for head in self._heads:
            head._write_merged(x, z[..., start : start + head.head_dim])
            start += head.head_dim

    def _write_heads(self, x: Array, z: Array) -> None:
        for n, head in enumerate(self._heads):
            head._write_merged(x, z[n])

    def _places(self, outer: tuple[int, ...], together: bool) -> Places:
        if not together:
            places = [head._places(outer, False) for head in self._heads]
            return Places([p.projected[0] for p in places], [p.calls[0] for p in places])
        qkv = empty_result((*outer, self.num_heads, 3, self.head_dim), self.dtype)
        rows = [qkv[..., n, :, :].reshape(*outer, 3 * self.head_dim) for n in range(len(self))]
        return Places(rows, [(qkv[..., 0, :], qkv[..., 1, :], qkv[..., 2, :])])

    def _owners(self) -> list[tuple[str, AttentionModule]]:
        return [(f"heads.{n}.", head) for n, head in enumerate(self._heads)]

    def _projected(self, x: Array) -> tuple[Array, Array, Array]:
        places = self._places(x.shape[:-1], True)
        for head, place in zip(self._heads, places.projected, strict=True):
            head._qkv(x, out=place)
        return places.calls[0]
