"""A step of a trace: one object on the way, its name, formula and meaning."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from .arrays import Array


class Step:
    """One object on the way through attention.

    Attributes
    ----------
    name : str
        Its name in the trace: "x", "Z", "output"; of head n "Q_n", "weights_n", "Z_n" and so on.
    array : ndarray
        The numbers, read-only: in the accumulation type, or bool for a mask.
    formula : str
        How it is made from earlier steps; empty for what was given.
    about : str
        What it is, in one sentence.
    axes : tuple of str
        What each axis of the array counts: "batch", "tokens", "queries", "keys", "heads", ...
    head : int or None
        The number of its head, from 1; None for what belongs to all.

    Examples
    --------
    >>> import numpy as np
    >>> import headway
    >>> x = np.eye(3, dtype=np.float32)
    >>> step = headway.CausalAttention.init(3, 2).trace(x)["weights_1"]
    >>> step.kind, step.head, step.shape, step.axes
    ('weights', 1, (3, 3), ('queries', 'keys'))
    >>> np.asarray(step).sum(axis=1)
    array([1., 1., 1.], dtype=float32)
    """

    __slots__ = ("about", "array", "axes", "formula", "head", "name")

    def __init__(
        self,
        name: str,
        array: Array,
        formula: str,
        about: str,
        axes: tuple[str, ...],
        head: int | None = None,
    ) -> None:
        self.name = name
        self.array = array
        self.formula = formula
        self.about = about
        self.axes = axes
        self.head = head

    @property
    def kind(self) -> str:
        """The name without the number of the head; "Z_n" for the context of one head."""
        if self.head is None:
            return self.name
        base = self.name.rpartition("_")[0]
        return "Z_n" if base == "Z" else base

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array."""
        shape: tuple[int, ...] = self.array.shape
        return shape

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """The array, so that NumPy's functions take a step."""
        if copy is False and dtype is not None and np.dtype(dtype) != self.array.dtype:
            raise ValueError("copy: expected True or None for another dtype, got False")
        return (
            np.array(self.array, dtype)
            if copy
            else self.array.astype(self.array.dtype if dtype is None else dtype, copy=False)
        )

    def __repr__(self) -> str:
        made = f" = {self.formula}" if self.formula else ""
        return f"Step({self.name} {shape_text(self.shape)}{made})"

    def matrix(self, batch: int = 0) -> Array:
        """The step as rows and columns, of one batch entry; several heads side by side."""
        array, axes = self.array, self.axes
        if axes and axes[0] == "batch":
            array, axes = array[batch], axes[1:]
        if "heads" in axes:
            rows = np.moveaxis(array, axes.index("heads"), 1)
            return rows.reshape(rows.shape[0], rows.shape[1] * rows.shape[2])
        return array if array.ndim == 2 else array.reshape(1, -1)

    @property
    def row_axis(self) -> str:
        """What a row of :meth:`matrix` is."""
        inner = [axis for axis in self.axes if axis not in ("batch", "heads")]
        return inner[0] if len(inner) > 1 else ""

    @property
    def column_axis(self) -> str:
        """What a column of :meth:`matrix` is."""
        return self.axes[-1]


def record(array: Array) -> Array:
    """A read-only view of an array, for a step."""
    view = array.view()
    view.flags.writeable = False
    return view


def shape_text(shape: Iterable[int]) -> str:
    """A shape as Python writes it, with commas in large sizes left out: "(8, 6)"."""
    sizes = [str(size) for size in shape]
    return f"({sizes[0]},)" if len(sizes) == 1 else f"({', '.join(sizes)})"


def joined(names: Sequence[str]) -> str:
    """Names side by side, the middle ones left out where there are many: "[Z_1 | ... | Z_9]"."""
    if len(names) > 4:
        names = [names[0], "...", names[-1]]
    return f"[{' | '.join(names)}]"


def number(value: float) -> str:
    """A number in a formula, short."""
    return f"{value:.6g}"
