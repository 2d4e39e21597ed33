"""The thread's floating-point mode while NumPy computes a part of a result."""

from __future__ import annotations

from types import TracebackType

from . import _core


class UsualFloatMode:
    """Rounding to nearest, no flush-to-zero in this thread, until the caller's mode is put back.

    The core does the same for all that it computes itself.
    """

    __slots__ = ("_callers",)

    def __enter__(self) -> None:
        self._callers = _core.enter_usual_float_mode()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _core.leave_usual_float_mode(self._callers)
