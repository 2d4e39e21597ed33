"""Modules in files: the methods ``save`` and ``load``."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, cast

from .arrays import Array

if TYPE_CHECKING:
    from typing_extensions import Self

    from .module_base import AttentionModule


class ModuleFiles(ABC):
    """Part of the base of the modules."""

    _class_in_files: ClassVar[str]

    @abstractmethod
    def state_dict(self, *, prefix: str = "") -> dict[str, Array]:
        """The weights under the names of the course."""

    @classmethod
    @abstractmethod
    def _from_file(cls, tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> Self:
        """The module whose ``state_dict`` and metadata a file held."""

    @property
    @abstractmethod
    def num_heads(self) -> int:
        """Number of query heads H."""

    @property
    @abstractmethod
    def num_kv_heads(self) -> int:
        """Number of key and value heads Hkv."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the weights to a safetensors file, in one piece or not at all.

        The file holds what :meth:`state_dict` returns, so torch can read it, too; its metadata
        hold the class, the version of the format, the numbers of heads and the dropout. It is
        written beside its place and moved there at the end: a write that fails leaves an older file
        as it was.
        Memory: two copies of the weights.

        Parameters
        ----------
        path : str or path
            Where to write; an existing file is replaced.

        Returns
        -------
        None

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
        if dropout := cast("AttentionModule", self).dropout:
            metadata["dropout"] = repr(dropout)
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
            module = cls._from_file(tensors, metadata)
            cast("AttentionModule", module).dropout = float(metadata.get("dropout", 0.0))
            return module
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"path: expected a sound {cls._class_in_files} in {os.fspath(path)}, got {error}; "
                "save the module again"
            ) from error
