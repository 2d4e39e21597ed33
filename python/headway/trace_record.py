"""The record of a trace: its steps by name, the comparison, and the forms it is shown in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from . import runtime
from .arrays import Array
from .trace_build import ALLOWED, compare
from .trace_labels import Labels, batch_entry, integer
from .trace_steps import Step

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Trace:
    """Every object on the way through attention, in order, with the fused kernel's result.

    Made by :func:`trace` and by the method ``trace`` of the modules. ``print(trace)`` is a walk
    through the steps, laid out for the terminal; in a notebook a trace is shown as a picture.

    The steps of head n, counted from 1, are ``w_query_n``, ``w_key_n``, ``w_value_n`` (and
    ``b_query_n`` ..., of modules with biases), ``Q_n``, ``K_n``, ``V_n``, ``scores_n``,
    ``scaled_n``, ``capped_n`` (with a soft cap), ``biased_n`` (with ALiBi or a mask of numbers),
    ``mask_n`` (True: may attend), ``sink_n`` (with sinks), ``weights_n``, ``sink_weights_n``,
    ``dropped_weights_n`` (with dropout) and ``Z_n``. ``x`` comes before all heads; ``Z``, and
    with an output projection ``w_out``, ``b_out`` and ``output``, come after them.

    Attributes
    ----------
    steps : tuple of Step
        All steps in order.
    subject : str
        What was traced: the call, or the module.
    options : str
        The options of the call as they were given, but arrays as their shapes; "" for none.
    num_heads, num_batches : int
        How many heads there are, and entries in the batch (1 where there is no batch axis).
    dtype : str
        Of the input. The steps are in the accumulation type: float64 for float64, else float32.
    isa : str
        The instruction set of the kernel.
    kernel : ndarray
        The result of the fused kernel, to compare with the last step.
    difference : float
        Largest difference between the last step and the kernel's result; infinite where one has a
        NaN or an infinity that the other has not.
    largest : float
        Largest number in the last step.
    agrees : bool
        Whether the difference is within what the dtype allows to scores of ordinary size; the
        rounding error of a score grows with the score.

    Examples
    --------
    >>> import numpy as np
    >>> import headway
    >>> x = np.array([[1, 0], [0, 1], [1, 1]], np.float32)
    >>> w = np.eye(2, dtype=np.float32)
    >>> trace = headway.CausalAttention(w, w, w).trace(x, tokens=["a", "b", "c"])
    >>> trace.names
    ['x', 'w_query_1', 'w_key_1', 'w_value_1', 'Q_1', 'K_1', 'V_1', 'scores_1', 'scaled_1',
     'mask_1', 'weights_1', 'Z_1', 'Z']
    >>> trace["weights_1"]
    Step(weights_1 (3, 3) = softmax(scaled_1 where mask_1))
    >>> trace["weights_1"].array.round(2)
    array([[1.  , 0.  , 0.  ],
           [0.33, 0.67, 0.  ],
           [0.25, 0.25, 0.5 ]], dtype=float32)
    >>> trace.agrees
    True
    """

    def __init__(
        self,
        steps: Iterator[Step],
        kernel: Array,
        subject: str,
        options: str,
        dtype: str,
        labels: Labels,
    ) -> None:
        self.steps = tuple(steps)
        self.kernel = kernel
        self.subject = subject
        self.options = options
        self.dtype = dtype
        self.isa = runtime.isa()
        self.labels = labels
        self.num_batches = len(labels.keys)
        self.num_heads = max((step.head or 0 for step in self.steps), default=0)
        self.difference, self.largest = compare(self.steps[-1].array, kernel)
        self.agrees = self.difference <= ALLOWED[dtype] * self.largest
        self._by_name = {step.name: step for step in self.steps}

    # A sequence of steps ------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """The names of the steps, in order."""
        return list(self._by_name)

    def __getitem__(self, name: str | int) -> Step:
        """A step by its name, or by its place."""
        if isinstance(name, str):
            if name not in self._by_name:
                raise KeyError(f"{name}: expected one of {', '.join(self._by_name)}")
            return self._by_name[name]
        return self.steps[name]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def of_head(self, n: int) -> list[Step]:
        """The steps of head n, from 1."""
        return [step for step in self.steps if step.head == n]

    # Shown --------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"<Trace of {self.subject}: {len(self)} steps, difference {self.difference:.1e}>"

    def __str__(self) -> str:
        return self.to_text() if self.num_batches else f"Trace of {self.subject}: an empty batch."

    def to_text(
        self,
        *,
        width: int | None = None,
        color: bool | None = None,
        ascii: bool | None = None,
        batch: int = 0,
    ) -> str:
        """The walk through the steps that ``print`` shows.

        Hidden cells are dots, never zeros. Of large arrays the first and the last rows and columns
        are shown, of many heads the first ones.

        Parameters
        ----------
        width : int, optional
            Columns, 40 or more. Default those of the terminal, 80 where there is none.
        color : bool, optional
            Whether to use ANSI escapes. Default where standard output is a terminal, unless
            ``NO_COLOR`` is set.
        ascii : bool, optional
            Whether to use nothing but ASCII. Default where the encoding of standard output has
            nothing else.
        batch : int, default 0
            The batch entry that is shown.

        Returns
        -------
        str
            Lines of at most `width` columns.

        Raises
        ------
        TypeError, ValueError
            If `batch` or `width` is no int, or `batch` is not a batch entry.

        Examples
        --------
        >>> import numpy as np
        >>> import headway
        >>> x = np.zeros((2, 2))
        >>> trace = headway.trace(x, x, x, tokens=["cat", "sat"])
        >>> text = trace.to_text(width=60, color=False, ascii=True)
        >>> start = text.index("      weights_1")
        >>> print(text[start : start + 150])
              weights_1    Z_1
                cat   sat
        cat    1.00     .    0.00  0.00
        sat    0.50  0.50    0.00  0.00
        ...
        """
        from .terminal import this_terminal
        from .trace_text import walk

        columns = None if width is None else integer("width", width)
        terminal = this_terminal(columns, color, ascii)
        return "\n".join(walk(self, terminal, batch_entry(batch, self.num_batches)))

    def to_html(self, path: str | os.PathLike[str] | None = None, *, batch: int = 0) -> str:
        """A page to look at: the way from x to Z, and the weights of every head.

        One file in HTML with inline SVG and CSS. It loads nothing, needs no script, and adapts to
        narrow and wide, light and dark screens. Values are shown where the pointer rests, and as
        tables. Matrices of more than some dozen rows or columns are aggregated: a cell then is the
        weight that a query of its block gives to the keys of its block, on average.

        Parameters
        ----------
        path : str or path, optional
            Where to write the page, too, in UTF-8; an existing file is replaced.
        batch : int, default 0
            The batch entry that is shown.

        Returns
        -------
        str
            The page.

        Raises
        ------
        TypeError, ValueError
            If `batch` is no int, or not a batch entry.
        OSError
            If the file cannot be written.

        Examples
        --------
        >>> import numpy as np
        >>> import headway
        >>> x = np.ones((3, 4))
        >>> page = headway.trace(x, x, x, tokens=["<b>", "&", "c"]).to_html()
        >>> "<b>" in page, "&lt;b&gt;" in page
        (False, True)
        """
        from .trace_html import page

        text = page(self, batch_entry(batch, self.num_batches))
        if path is not None:
            with open(path, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
        return text

    def _repr_html_(self) -> str | None:
        """What a notebook shows: the page without its frame."""
        from .trace_html import fragment

        return fragment(self, 0) if self.num_batches else None

    def plot(self, *, batch: int = 0) -> Figure:
        """A picture of the way from x to Z, and of the weights of every head.

        Parameters
        ----------
        batch : int, default 0
            The batch entry that is shown.

        Returns
        -------
        matplotlib.figure.Figure
            A figure of ``matplotlib.pyplot``.

        Raises
        ------
        ImportError
            If the package ``matplotlib`` is not installed: ``pip install 'headway[plot]'``.
        TypeError, ValueError
            If `batch` is no int, or not a batch entry.

        Examples
        --------
        >>> trace.plot().savefig("trace.png")  # doctest: +SKIP
        """
        from . import plotting

        return plotting.plot_trace(self, batch_entry(batch, self.num_batches))

    def to_bertviz(self, *, batch: int = 0) -> tuple[tuple[Any, ...], list[str]]:
        """The weights as bertviz takes them: ``head_view(*trace.to_bertviz())``.

        Parameters
        ----------
        batch : int, default 0
            The batch entry.

        Returns
        -------
        attention : tuple of one torch.Tensor, (1, H, T, T)
            The weights of all heads, one entry for the one layer; float32.
        tokens : list of str
            The names of the T tokens.

        Raises
        ------
        ImportError
            If the package ``torch`` is not installed: ``pip install torch``.
        TypeError, ValueError
            If `batch` is no int or not a batch entry, or there are not as many queries as keys.

        Examples
        --------
        >>> bertviz.head_view(*trace.to_bertviz())  # doctest: +SKIP
        """
        from . import plotting

        return plotting.bertviz_arguments(self, batch_entry(batch, self.num_batches))
