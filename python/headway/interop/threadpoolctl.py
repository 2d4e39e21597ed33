"""headway's threads in threadpoolctl: shown by ``threadpool_info``, held by ``threadpool_limits``.

``pip install threadpoolctl``.
"""

import os
from typing import Any

try:
    import threadpoolctl
except ImportError:
    raise ImportError(
        "headway.interop.threadpoolctl needs threadpoolctl: pip install threadpoolctl"
    ) from None

from .. import _core
from .._version import __version__
from ..runtime import get_num_threads, set_num_threads

__all__ = ["HeadwayController", "register"]

_FILE = os.path.realpath(str(_core.__file__))


class HeadwayController(threadpoolctl.LibController):  # type: ignore[misc]
    """What threadpoolctl asks about headway: the number of threads, which it may set."""

    user_api = "headway"
    internal_api = "headway"
    filename_prefixes = ("_core",)
    check_symbols = ("PyInit__core",)

    def get_num_threads(self) -> int:
        """Number of threads that a call may use."""
        return get_num_threads()

    def set_num_threads(self, num_threads: int) -> None:
        """Set it, in the whole process."""
        set_num_threads(num_threads)

    def get_version(self) -> str:
        """Version of headway."""
        return __version__

    def set_additional_attributes(self) -> None:
        """Disown another package's library of the same name: it is then not listed."""
        if os.path.realpath(self.filepath) != _FILE:
            self.dynlib = None


def register() -> None:
    """Let threadpoolctl see headway's threads and limit them; a second call changes nothing.

    ``threadpoolctl.threadpool_limits(n)`` then holds for headway, too, in the whole process, and
    gives back the former number at its end. The OpenMP runtime, which threadpoolctl sees by itself,
    does not decide how many threads headway takes.

    Raises
    ------
    ImportError
        By importing this module, if threadpoolctl is not installed.

    Notes
    -----
    A limit is given back by :func:`headway.set_num_threads`, so that environment variables are not
    asked again afterwards.

    Examples
    --------
    >>> import headway, threadpoolctl
    >>> from headway.interop.threadpoolctl import register
    >>> register()
    >>> with threadpoolctl.threadpool_limits(1, user_api="headway"):
    ...     headway.get_num_threads()
    1
    """
    known: Any = threadpoolctl._ALL_CONTROLLERS
    if HeadwayController not in known:
        threadpoolctl.register(HeadwayController)
