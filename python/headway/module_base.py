"""What the three modules have in common: checked input, sizes, copies, pickling and files."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .arrays import Array, ArrayInput, readable
from .module_cache import call_with_cache
from .module_trace import ModuleTrace
from .packed_weights import packed_side_by_side
from .projection import Projection
from .weights import KINDS, check_shape, checked

if TYPE_CHECKING:
    from typing_extensions import Self

    from .cache import KVCache


class AttentionModule(ModuleTrace, ABC):
    """Base of the modules. ``_weights`` holds read-only arrays by the name of their argument.

    They are views of the weights of the projections: one for Q, K and V, one for the output.
    """

    _class_in_files: ClassVar[str]
    _weights: dict[str, Array]
    _qkv: Projection
    _out: Projection | None = None

    def __call__(self, x: ArrayInput, *, cache: KVCache | None = None) -> Array:
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
            If the shape of x or the cache does not fit, or the cache has no room.

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
        x = self._input(x)
        if cache is not None:
            return call_with_cache(self, x, cache)
        z = np.empty((*x.shape[:-1], self.d_out), x.dtype)
        self._write_merged(x, z)
        return z if self._out is None else self._out(z)

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
        z = np.empty((self.num_heads, *x.shape[:-1], head_dim), x.dtype)
        self._write_heads(x, z)
        return z

    @abstractmethod
    def _projected(self, x: Array) -> tuple[Array, Array, Array]:
        """Q, K and V of a checked ``x``, each (..., T, heads, head_dim)."""

    @abstractmethod
    def _write_merged(self, x: Array, z: Array) -> None:
        """Write Z of a checked ``x`` to ``z`` (..., T, d_out)."""

    @abstractmethod
    def _write_heads(self, x: Array, z: Array) -> None:
        """Write Z_1, ..., Z_H of a checked ``x`` to ``z`` (H, ..., T, head_dim)."""

    @abstractmethod
    def state_dict(self, *, prefix: str = "") -> dict[str, Array]:
        """The weights under the names of the course."""

    @classmethod
    @abstractmethod
    def _from_file(cls, tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> Self:
        """The module whose ``state_dict`` and metadata a file held."""

    @property
    def _w_query(self) -> Array:
        """A weight of shape (d_in, ...) in the dtype of all of them."""
        return self._weights["w_query"]

    @property
    @abstractmethod
    def num_heads(self) -> int:
        """Number of query heads H."""

    @property
    @abstractmethod
    def num_kv_heads(self) -> int:
        """Number of key and value heads Hkv."""

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

    def _assign(self, name: str, value: Any) -> None:
        """Replace one weight by another one of its shape and dtype."""
        old = self._weights.get(name)
        if old is None:
            raise ValueError(
                f"{name}: expected a weight that this module has, and it was built without "
                f"{name}; build a new {type(self).__name__} with {name}=..."
            )
        array = checked(name, value, old, "the weight it replaces")
        check_shape(name, array, old.shape, "a weight is replaced by one of the same shape")
        self._store({name: array})

    def __getstate__(self) -> dict[str, Any]:
        return {n: value for n, value in self.__dict__.items() if n not in ("_qkv", "_out")}

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

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the weights to a safetensors file, in one piece or not at all.

        The file holds what :meth:`state_dict` returns, so torch can read it, too; its metadata
        hold the class, the version of the format and the numbers of heads. It is written beside
        its place and moved there at the end: a write that fails leaves an older file as it was.
        Memory: two copies of the weights.

        Parameters
        ----------
        path : str or path
            Where to write; an existing file is replaced.

        Raises
        ------
        ImportError
            If the package ``safetensors`` is not installed: ``pip install 'headway[io]'``.
        OSError
            If the file cannot be written.

        Examples
        --------
        >>> import tempfile
        >>> import headway
        >>> head = headway.CausalAttention.init(3, 2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     head.save(f"{folder}/head.safetensors")
        ...     again = headway.CausalAttention.load(f"{folder}/head.safetensors")
        >>> again.w_query.tobytes() == head.w_query.tobytes()
        True
        """
        from . import storage

        metadata = {"num_heads": str(self.num_heads), "num_kv_heads": str(self.num_kv_heads)}
        storage.write(path, self._class_in_files, self.state_dict(), metadata)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a module from a file that :meth:`save` wrote.

        Parameters
        ----------
        path : str or path
            The file. Only arrays and text are read from it, never code.

        Returns
        -------
        module
            A module of this class with the very bits of the saved one.

        Raises
        ------
        ImportError
            If the package ``safetensors`` is not installed: ``pip install 'headway[io]'``.
        OSError
            If there is no such file, or it cannot be read.
        ValueError
            If the file is damaged, was not written by :meth:`save`, or holds another class.

        Examples
        --------
        >>> import tempfile
        >>> import headway
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     headway.CausalAttention.init(3, 2).save(f"{folder}/head.safetensors")
        ...     headway.CausalAttention.load(f"{folder}/head.safetensors")
        CausalAttention(d_in=3, d_out=2, num_heads=1, dtype=float32, num_parameters=18)
        """
        from . import storage

        tensors, metadata = storage.read(path, cls._class_in_files)
        try:
            return cls._from_file(tensors, metadata)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"path: expected a sound {cls._class_in_files} in {os.fspath(path)}, got {error}; "
                "save the module again"
            ) from error
