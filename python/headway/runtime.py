"""How the library runs: instruction set, threads, memory, and what it was built with."""

import operator
import platform
from typing import Any

import numpy as np

from . import _core
from ._version import __version__

__all__ = [
    "available_isas",
    "get_num_threads",
    "info",
    "isa",
    "release_memory",
    "set_isa",
    "set_num_threads",
]

_MOST_THREADS = 1024


def info() -> dict[str, Any]:
    """Version, instruction sets, threads and build, as a dict that ``json.dumps`` takes.

    Returns
    -------
    dict
        ``version``; ``isa`` (in use), ``available_isas``, ``compiled_isas``; ``num_threads`` and
        ``threads_source`` (where that number comes from); ``numpy``, ``python``, ``machine``; and
        ``build``, a dict of strings about the compiler and the OpenMP runtime.

    Raises
    ------
    ValueError
        If ``HEADWAY_ISA`` names an instruction set that is not available.

    Examples
    --------
    >>> import headway
    >>> headway.info()["version"] == headway.__version__
    True
    """
    return {
        "version": __version__,
        "isa": _core.isa(),
        "available_isas": _core.available_isas(),
        "compiled_isas": _core.compiled_isas(),
        "num_threads": _core.get_num_threads(),
        "threads_source": _core.threads_source(),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "build": _core.build_info(),
    }


def isa() -> str:
    """Name of the instruction set whose kernels are in use.

    The best one that the CPU has, unless the environment variable ``HEADWAY_ISA`` or
    :func:`set_isa` names another.

    Raises
    ------
    ValueError
        If ``HEADWAY_ISA`` names an instruction set that is not available.

    Examples
    --------
    >>> import headway
    >>> headway.isa() in headway.available_isas()
    True
    """
    return _core.isa()


def set_isa(name: str) -> None:
    """Use the kernels of another instruction set from the next call on, in the whole process.

    Parameters
    ----------
    name : str
        One of :func:`available_isas`. "scalar" is always among them.

    Raises
    ------
    TypeError
        If `name` is not a string.
    ValueError
        If this build or this CPU does not offer it.

    Examples
    --------
    >>> import headway
    >>> before = headway.isa()
    >>> headway.set_isa("scalar")
    >>> headway.isa()
    'scalar'
    >>> headway.set_isa(before)
    """
    names = _core.available_isas()
    wanted = "one of " + ", ".join(f'"{each}"' for each in names)
    if not isinstance(name, str):
        raise TypeError(
            f"name: expected {wanted}, got {type(name).__name__}; pass one of these names"
        )
    if name not in names:
        raise ValueError(
            f"name: expected {wanted} (what this build and this CPU offer), got {name!r}; "
            "pass one of these names"
        )
    _core.set_isa(name)


def available_isas() -> list[str]:
    """Names of the instruction sets that this build and this CPU offer, the best one first.

    Examples
    --------
    >>> import headway
    >>> "scalar" in headway.available_isas()
    True
    """
    return _core.available_isas()


def set_num_threads(n: int) -> None:
    """Use `n` threads from the next call on, in the whole process.

    Results do not depend on the number of threads.

    Parameters
    ----------
    n : int
        1 to 1024. More than there are usable CPUs is accepted; it is seldom faster.

    Raises
    ------
    TypeError
        If `n` is not an integer.
    ValueError
        If `n` is below 1 or above 1024.

    Examples
    --------
    >>> import headway
    >>> before = headway.get_num_threads()
    >>> headway.set_num_threads(1)
    >>> headway.get_num_threads()
    1
    >>> headway.set_num_threads(before)
    """
    wanted = f"an integer from 1 to {_MOST_THREADS}"
    try:
        if isinstance(n, (bool, np.bool_)):
            raise TypeError
        number = operator.index(n)
    except TypeError:
        raise TypeError(
            f"n: expected {wanted}, got {n!r} ({type(n).__name__}); convert with int(n)"
        ) from None
    if not 1 <= number <= _MOST_THREADS:
        raise ValueError(
            f"n: expected {wanted}, got {number}; info() tells the number in use and its source"
        )
    _core.set_num_threads(number)


def get_num_threads() -> int:
    """Number of threads that a call may use.

    The number given to :func:`set_num_threads`; else the environment variable
    ``HEADWAY_NUM_THREADS``; else ``OMP_NUM_THREADS``; else the usable CPUs, which is what affinity
    and the quota of a container leave.

    Examples
    --------
    >>> import headway
    >>> headway.get_num_threads() >= 1
    True
    """
    return _core.get_num_threads()


def release_memory() -> None:
    """Give back the working memory that threads keep for the next call.

    It is a fixed amount for each thread, whatever the number of tokens. The next call takes it
    anew.

    Examples
    --------
    >>> import headway
    >>> headway.release_memory()
    """
    _core.release_memory()
