"""Module files: safetensors with the module's class and numbers of heads in the metadata.

What needs another package is here, and imports it inside of functions.
"""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from .arrays import Array

FORMAT_VERSION = 1

_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def write(
    path: str | os.PathLike[str],
    module_class: str,
    tensors: Mapping[str, Array],
    metadata: Mapping[str, str],
) -> None:
    """Write C-contiguous arrays and text to ``path``, which holds all of them or is unchanged."""
    _safetensors()
    from safetensors.numpy import save

    head = {"class": module_class, "format_version": str(FORMAT_VERSION), **metadata}
    _write_atomically(os.path.realpath(path), save(dict(tensors), head))


def read(
    path: str | os.PathLike[str], module_class: str
) -> tuple[dict[str, Array], dict[str, str]]:
    """Arrays and metadata of a file that holds a module of this class."""
    safetensors = _safetensors()
    import json

    with open(path, "rb") as file:
        content = file.read()
    name = os.fspath(path)
    try:
        stored = safetensors.deserialize(content)
        head_size = int.from_bytes(content[:8], "little")
        metadata = dict(json.loads(content[8 : 8 + head_size]).get("__metadata__") or {})
    except Exception as error:
        raise ValueError(
            f"path: expected a safetensors file, got {name} ({error}); save the module again"
        ) from error

    found = metadata.get("class")
    if found is None:
        raise ValueError(
            f"path: expected a file written by {module_class}.save, got {name} without the name "
            f"of a class; read it with safetensors.numpy.load_file and {module_class}."
            "from_state_dict"
        )
    if found != module_class:
        raise ValueError(
            f"path: expected a {module_class} in {name}, got a {found}; "
            f"load it with headway.{found}.load"
        )
    if metadata.get("format_version") != str(FORMAT_VERSION):
        raise ValueError(
            f"path: expected format version {FORMAT_VERSION} in {name}, got "
            f"{metadata.get('format_version')}; read it with the version of headway that wrote it"
        )
    return {key: _array(name, key, about) for key, about in stored}, metadata


def _array(path: str, key: str, about: Mapping[str, Any]) -> Array:
    kind = _DTYPES.get(about["dtype"])
    if kind is None:
        raise ValueError(
            f"path: expected float32, float64, float16 or bfloat16 in {path}, got "
            f"{about['dtype']} for {key}; save the module again"
        )
    dtype = bfloat16() if kind == "bfloat16" else np.dtype(kind)
    return np.frombuffer(about["data"], dtype).reshape(about["shape"])


def _safetensors() -> Any:
    try:
        import safetensors
    except ImportError:
        raise ImportError(
            "save and load need the package safetensors: pip install 'headway[io]'"
        ) from None
    return safetensors


def _write_atomically(path: str, content: bytes) -> None:
    """Write beside ``path``, bring it to the disk, then put it in place in one step."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name[:100]}.{os.urandom(8).hex()}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    descriptor = os.open(temporary, flags, 0o666)  # the process's umask applies
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def bfloat16() -> Any:
    """The dtype of that name, which the package ``ml_dtypes`` brings."""
    try:
        import ml_dtypes
    except ImportError:
        raise ImportError(
            "bfloat16 arrays need the package ml_dtypes: pip install 'headway[bfloat16]'"
        ) from None
    return np.dtype(ml_dtypes.bfloat16)
