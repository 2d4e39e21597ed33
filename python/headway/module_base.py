"""What the three modules have in common: checked input, their call, sizes, copies and pickling."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .arrays import Array, ArrayInput, empty_result, readable
from .costs import ModuleCost
from .functional import attention
from .module_backward import Places
from .module_files import ModuleFiles
from .module_trace import ModuleTrace
from .module_training import ModuleTraining
from .packed_weights import packed_side_by_side
from .projection import Projection
from .weights import KINDS, checked

if TYPE_CHECKING:
    from .cache import KVCache


class AttentionModule(ModuleTraining, ModuleFiles, ModuleCost, ModuleTrace):
    """Base of the modules. ``_weights`` holds read-only arrays by the name of their argument.

    They are views of the weights of the projections: one for Q, K and V, one for the output.
    """

    _weights: dict[str, Array]
    _qkv: Projection
    _out: Projection | None = None

    def __call__(
        self,
        x: ArrayInput,
        *,
        cache: KVCache | None = None,
        training: bool = False,
        seed: int | None = None,
    ) -> Array:
        """The context vectors of ``x``, those of all heads side by side.

        Parameters
        ----------
        x : array, (B, T, d_in) or (T, d_in)
            Embedded tokens in the module's dtype; B and T may be 0.
        cache : KVCache, optional
            Holds the keys and values of the tokens before x, for B sequences (one for (T, d_in))
            and num_kv_heads heads of head_dim numbers, in the module's dtype or an 8-bit format.
            Those of x are appended, and its queries see all of them. A call that fails appends
            nothing.
        training : bool, default False
            Whether attention weights are dropped, each with the probability `dropout` of the
            module, and the others divided by ``1 - dropout``. Then no cache is taken.
        seed : int from 0 to 2**64 - 1, optional
            Decides which weights are dropped, as in :func:`attention`, for training with dropout;
            otherwise nothing depends on it.

        Returns
        -------
        ndarray, (B, T, width) or (T, width)
            Z, or ``Z @ w_out + b_out`` where the module has an output projection. In the module's
            dtype, C-contiguous.

        Raises
        ------
        TypeError
            If x is no array, or of another dtype; or if the cache is none, or of another dtype.
        ValueError
            If the shape of x or the cache does not fit, the cache has no room, there is one in
            training, or there is dropout without a seed.

        Examples
        --------
        >>> import numpy as np
        >>> import headway
        >>> module = headway.MultiHeadAttention.init(6, 4, num_heads=2)
        >>> x = np.random.default_rng(0).standard_normal((1, 5, 6), dtype=np.float32)
        >>> cache = headway.KVCache(1, module.num_kv_heads, 8, module.head_dim)
        >>> pieces = [module(x[:, :4], cache=cache), module(x[:, 4:], cache=cache)]
        >>> np.allclose(np.concatenate(pieces, axis=1), module(x), atol=1e-6)
        True
        """
        return self.forward(x, cache=cache, training=training, seed=seed)

    def heads(self, x: ArrayInput) -> Array:
        """Z_1, ..., Z_H: the context vectors of each head by itself.

        Parameters
        ----------
        x : array, (B, T, d_in) or (T, d_in)
            As for the call of the module.

        Returns
        -------
        ndarray, (H, B, T, head_dim) or (H, T, head_dim)
            In the module's dtype, C-contiguous.

        Raises
        ------
        TypeError, ValueError
            As the call of the module; or if the heads differ in head_dim.

        Examples
        --------
        >>> import numpy as np
        >>> import headway
        >>> module = headway.MultiHeadAttention.init(6, 4, num_heads=2)
        >>> module.heads(np.ones((5, 6), np.float32)).shape
        (2, 5, 2)
        """
        head_dim = self.head_dim
        x = self._input(x)
        z = empty_result((self.num_heads, *x.shape[:-1], head_dim), x.dtype)
        self._write_heads(x, z)
        return z

    def _projected(self, x: Array) -> tuple[Array, Array, Array]:
        """Q, K and V of a checked ``x``, each (..., T, heads, head_dim)."""
        return self._per_head(self._qkv(x))

    def _per_head(self, qkv: Array) -> tuple[Array, Array, Array]:
        """Views of Q, K and V, each (..., T, heads, head_dim), that lie side by side."""
        queries, kv_heads = self.num_heads, self.num_kv_heads
        end = queries + kv_heads  # of the keys
        heads = qkv.reshape(*qkv.shape[:-1], end + kv_heads, self.head_dim)
        return heads[..., :queries, :], heads[..., queries:end, :], heads[..., end:, :]

    def _merged(self, x: Array) -> Array:
        """Z of a checked ``x``, (..., T, d_out)."""
        z = attention(*self._projected(x), layout="BTHD")
        return z.reshape(*x.shape[:-1], self.d_out)  # a view

    def _write_merged(self, x: Array, z: Array) -> None:
        """Write Z of a checked ``x`` to ``z`` (..., T, d_out)."""
        place = z.reshape(*x.shape[:-1], self.num_heads, self.head_dim)  # a view of z
        attention(*self._projected(x), layout="BTHD", out=place)

    def _write_heads(self, x: Array, z: Array) -> None:
        """Write Z_1, ..., Z_H of a checked ``x`` to ``z`` (H, ..., T, head_dim)."""
        attention(*self._projected(x), layout="BTHD", out=np.moveaxis(z, 0, -2))

    def _places(self, outer: tuple[int, ...], together: bool) -> Places:
        """New memory for what the projections give for tokens (..., T).

        `together`: one call of the attention serves all heads.
        """
        qkv = empty_result((*outer, self._qkv.d_out), self.dtype)
        return Places([qkv], [self._per_head(qkv)])

    @property
    def _w_query(self) -> Array:
        """A weight of shape (d_in, ...) in the dtype of all of them."""
        return self._weights["w_query"]

    @property
    @abstractmethod
    def head_dim(self) -> int:
        """Numbers per token of one head's Q, K, V and Z."""

    @property
    @abstractmethod
    def d_out(self) -> int:
        """Width of all heads together: the last axis of Z, before an output projection."""

    @property
    def d_in(self) -> int:
        """Numbers per token of the input."""
        return int(self._w_query.shape[0])

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of all weights, of the input and of the result."""
        dtype: np.dtype[Any] = self._w_query.dtype
        return dtype

    @property
    def num_parameters(self) -> int:
        """How many numbers the weights and biases hold."""
        return sum(array.size for array in self._arrays())

    def _arrays(self) -> Iterator[Array]:
        """Every weight and bias, once."""
        yield from self._weights.values()

    def __repr__(self) -> str:
        sizes = {"d_in": self.d_in, "d_out": self.d_out, **self._more_sizes()}
        if rates := [rate for rate in self._rates() if rate]:
            sizes["dropout"] = rates[0] if len(rates) == 1 else rates
        sizes |= {"dtype": self.dtype.name, "num_parameters": self.num_parameters}
        return f"{type(self).__name__}({', '.join(f'{n}={size}' for n, size in sizes.items())})"

    def _more_sizes(self) -> dict[str, Any]:
        w_out = self._weights.get("w_out")
        return {"num_heads": self.num_heads} | ({} if w_out is None else {"w_out": w_out.shape})

    # Weights ------------------------------------------------------------------------------------

    def _store(self, weights: Mapping[str, Array]) -> None:
        """Copy in these weights; the others stay. What they are part of is packed anew."""
        every = getattr(self, "_weights", {}) | dict(weights)
        kinds = {name.partition("_")[2] for name in weights}
        if not kinds.isdisjoint(KINDS):
            self._qkv, views = packed_side_by_side(every, KINDS)
            every |= views
        if "out" in kinds:
            self._out, views = packed_side_by_side(every, ("out",))
            every |= views
        self._weights = every
        self._saved = None

    def _assign(self, name: str, value: Any) -> None:
        """Replace one weight by another one of its shape and dtype."""
        old = self._weights.get(name)
        if old is None:
            raise ValueError(
                f"{name}: expected a weight that this module has, and it was built without "
                f"{name}; build a new {type(self).__name__} with {name}=..."
            )
        self.assign({name: value})

    def __getstate__(self) -> dict[str, Any]:
        left_behind = ("_qkv", "_out", "_saved")
        return {n: value for n, value in self.__dict__.items() if n not in left_behind}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Unpickle or copy: the arrays are copied in, as in a new module."""
        self.__dict__.update(state)
        self._store(self._weights)

    # Input --------------------------------------------------------------------------------------

    def _input(self, x: ArrayInput) -> Array:
        """``x`` as (B, T, d_in) or (T, d_in) in the module's dtype, where the core can read it."""
        array = checked("x", x, self._w_query, "the module's weights")
        d_in = self.d_in
        if array.ndim not in (2, 3):
            fix = "add a token axis, x[None]" if array.ndim == 1 else "reshape it"
            raise ValueError(
                f"x: expected (B, T, {d_in}) or (T, {d_in}), got shape {array.shape}; {fix}"
            )
        if array.shape[-1] != d_in:
            raise ValueError(
                f"x: expected {d_in} numbers per token (last axis) like the rows of w_query, got "
                f"{array.shape[-1]} in shape {array.shape}; embed the tokens in {d_in} numbers"
            )
        return readable(array)
