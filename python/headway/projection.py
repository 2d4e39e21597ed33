"""The product of rows with a weight that is packed once."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _core
from .arrays import (
    Array,
    ArrayInput,
    as_array,
    empty_result,
    kind_of,
    readable,
    rows_are_readable,
)
from .checks import check_flag, check_out
from .layer_gradients import Gradients, checked_gradient, no_saved_forward
from .weights import check_shape, checked, checked_matrix, checked_rows, frozen_copies

__all__ = ["Projection"]


class Projection:
    """A linear layer: ``x @ weight + bias``, with the weight packed once for the kernels.

    Parameters
    ----------
    weight : array, (d_in, d_out)
        float32, float64, float16 or bfloat16; both sizes at least 1. It is copied.
    bias : array, (d_out,), optional
        In the dtype of the weight; copied, too.

    Attributes
    ----------
    weight : ndarray, (d_in, d_out)
        Read-only, as is every attribute: another weight takes another Projection.
    bias : ndarray, (d_out,), or None
        Read-only.
    d_in, d_out : int
        Numbers per row of x and of the result.
    dtype : numpy.dtype
        Of the weight, the bias, x and the result.
    num_parameters : int
        How many numbers the weight and the bias hold.

    Notes
    -----
    The product runs on the tiles of the attention's kernels, in the same threads. NumPy's product
    runs in the threads of a BLAS library, which go on spinning after it and slow down an attention
    that follows; and it has none for bfloat16.

    Every number of the result is one sum in ascending order of the d_in products, each added in one
    fused step (where the instruction set has it; "scalar" rounds the product first; of bfloat16,
    "avx512bf16" adds two products in a step and "amx" 32), and then the bias. It is made in float64
    for float64, else in float32, and rounded once. So the bits of a row depend on that row, the
    weight, the bias, the dtype and the instruction set; not on the number of rows, the batch, the
    strides or the number of threads. NaN and infinity stay in their row.
    "avx512bf16" and "amx" take subnormal numbers of bfloat16, in the input or on the way, for 0.

    Memory: the weight twice, as it is shown and packed, the packed columns padded to whole vectors
    (of 16 for float32 and 16-bit numbers, of 8 for float64, or less). The first call packs it, and
    the first call after ``set_isa`` with an instruction set that was not used before packs it for
    that one as well. The first backward packs its transpose likewise. A call takes a workspace of
    less than 2 MB for each thread.

    A Projection may be called from several threads at once; but ``forward(x, save=True)`` and the
    ``backward`` that follows it belong to one thread. It can be copied and pickled; the packed
    weight is made anew, and what was saved is left behind.

    Examples
    --------
    >>> import numpy as np
    >>> import headway
    >>> weight = np.array([[1, 0, 2], [0, 1, 2]], np.float32)
    >>> project = headway.Projection(weight, np.array([0, 0, 100], np.float32))
    >>> project
    Projection(d_in=2, d_out=3, bias=True, dtype=float32, num_parameters=9)
    >>> project(np.array([[1, 2], [3, 4]], np.float32))
    array([[  1.,   2., 106.],
           [  3.,   4., 114.]], dtype=float32)
    """

    def __init__(self, weight: ArrayInput, bias: ArrayInput | None = None) -> None:
        arrays = {"weight": checked_matrix("weight", weight, "(d_in, d_out)")}
        if bias is not None:
            arrays["bias"] = checked("bias", bias, arrays["weight"], "weight")
            shape = arrays["weight"].shape[1:]
            check_shape("bias", arrays["bias"], shape, "one number for each column of weight")
        copies = frozen_copies(arrays)
        self._hold(copies["weight"], copies.get("bias"))

    @classmethod
    def _of(cls, weight: Array, bias: Array | None) -> Projection:
        """The projection of checked, C-contiguous arrays that nobody writes any more: no copy."""
        projection = cls.__new__(cls)
        projection._hold(weight, bias)
        return projection

    def _hold(self, weight: Array, bias: Array | None) -> None:
        self._weight = weight
        self._bias = bias
        self._kind = kind_of("weight", weight)
        self._packed = _core.Projection(weight, bias, self._kind)
        self._turned: _core.Projection | None = None  # of the transposed weight, for backward
        self._saved: Array | None = None  # x

    def __call__(self, x: ArrayInput, *, out: Array | None = None) -> Array:
        """``x @ weight + bias``.

        Parameters
        ----------
        x : array, (..., d_in)
            Rows in the dtype of the weight, in any number of axes, one at least; all but the last
            may be 0. Any strides are read without a copy as long as the last axis is contiguous.
        out : ndarray, (..., d_out), optional
            Array that takes the result: its shape; its dtype, or float32 for 16-bit weights (the
            result unrounded); any strides. It may overlap neither x nor itself.

        Returns
        -------
        ndarray, (..., d_out)
            In the dtype of the weight, C-contiguous; or `out` itself.

        Raises
        ------
        TypeError
            If x or out is no array, or of another dtype.
        ValueError
            If a shape does not fit, or out is read-only or overlaps x or itself.
        MemoryError
            If there is no memory for the result or the packed weight.

        Notes
        -----
        An x or an `out` whose last axis is not contiguous costs a temporary array of its size.
        """
        return self._product(checked_rows(x, self._weight), out)

    def forward(self, x: ArrayInput, *, save: bool = False, out: Array | None = None) -> Array:
        """``x @ weight + bias``, what the call gives, and x kept for :meth:`backward` if wanted.

        Parameters
        ----------
        x, out
            As in the call.
        save : bool, default False
            Whether to keep x, in the place of what was kept before, until backward frees it. It is
            not copied, unless the core cannot read it: do not write to it before backward.

        Returns
        -------
        ndarray, (..., d_out)
            As from the call.

        Raises
        ------
        TypeError, ValueError, MemoryError
            As in the call; nothing is kept then.

        Examples
        --------
        >>> import numpy as np
        >>> import headway
        >>> project = headway.Projection(np.array([[1, 0], [0, 2]], np.float32))
        >>> project.forward(np.array([[3, 4]], np.float32), save=True)
        array([[3., 8.]], dtype=float32)
        >>> project.backward(np.array([[1, 1]], np.float32)).x
        array([[1., 2.]], dtype=float32)
        """
        check_flag("save", save)
        if not save:
            return self(x, out=out)
        self._saved = None
        array = readable(checked_rows(x, self._weight))
        result = self._product(array, out)
        self._saved = array
        return result

    def backward(self, grad: ArrayInput) -> Gradients:
        """The gradients of x, weight and bias, for the last ``forward(x, save=True)``.

        With the rows of x and grad as matrices: ``grad @ weight.T`` for x, ``x.T @ grad`` for the
        weight, and the sum of the rows of grad for the bias.

        Parameters
        ----------
        grad : array, (..., d_out)
            Gradient at the result of forward: its shape, the dtype of the weight, any strides.

        Returns
        -------
        Gradients
            ``x`` (..., d_in), and ``weights`` with "weight" (d_in, d_out) and, where there is one,
            "bias" (d_out,); new C-contiguous arrays in the dtype of the weight.

        Raises
        ------
        RuntimeError
            If there was no forward with save=True, or backward has used it.
        TypeError, ValueError
            If grad is no array, or of another dtype or shape; what was saved stays.
        MemoryError
            If there is no memory for the gradients.

        Notes
        -----
        Each number is a sum in float64 for float64, else in float32, rounded once. For x it is a
        chain in ascending d_out, as in the call. For weight and bias it is one chain for every 2048
        rows in their order, chain added to chain. So the bits do not depend on threads or strides.

        Memory: beside the result, a workspace of at most 2048 * (d_in + d_out) numbers in the dtype
        of the weight; for 16-bit numbers and more than 2048 rows, (d_in + 1) * d_out float32
        numbers, too. An x or a grad whose rows do not lie one stride apart costs a copy.

        Examples
        --------
        >>> import numpy as np
        >>> import headway
        >>> project = headway.Projection(np.ones((2, 1)), np.zeros(1))
        >>> y = project.forward(np.array([[1.0, 2.0], [3.0, 4.0]]), save=True)
        >>> project.backward(np.array([[1.0], [10.0]])).weights
        {'weight': array([[31.],
               [42.]]), 'bias': array([11.])}
        """
        if self._saved is None:
            raise no_saved_forward(self)
        shape = (*self._saved.shape[:-1], self.d_out)
        array = checked_gradient(grad, shape, self._weight, "weight")
        gradients = self._gradients(self._saved, array)
        self._saved = None
        return gradients

    def _gradients(self, x: Array, grad: Array, out: Array | None = None) -> Gradients:
        """For a checked x and grad. `out` takes the gradient of x, also as float32 for 16 bits."""
        weight, kind = self._weight, self._kind
        d_in, d_out = weight.shape
        if self._turned is None:
            self._turned = _core.Projection(weight.T, None, kind)
        of_x = empty_result(x.shape, weight.dtype) if out is None else out
        of_weight = empty_result(weight.shape, weight.dtype)
        of_bias = None if self._bias is None else np.empty(d_out, weight.dtype)
        self._turned.multiply(grad, of_x, "float32" if of_x.dtype == np.float32 else kind)
        rows, row_gradients = x.reshape(-1, d_in), grad.reshape(-1, d_out)
        _core.weight_gradient(rows, row_gradients, of_weight, of_bias, kind)
        weights = {"weight": of_weight}
        return Gradients(of_x, weights if of_bias is None else weights | {"bias": of_bias})

    def _product(self, x: Array, out: Array | None) -> Array:
        weight, kind = self._weight, self._kind
        shape = (*x.shape[:-1], weight.shape[1])
        if out is None:
            result = empty_result(shape, weight.dtype)
            self._packed.multiply(readable(x), result, kind)
            return result
        check_out(out, shape, weight.dtype, kind, {"x": x}, like="x")
        target = as_array("out", out)  # plain, whatever its subclass does
        place = target if rows_are_readable(target) else empty_result(shape, out.dtype)
        self._packed.multiply(readable(x), place, "float32" if out.dtype == np.float32 else kind)
        if place is not target:
            target[...] = place
        return out

    @property
    def weight(self) -> Array:
        """The weight, (d_in, d_out), read-only."""
        return self._weight.view()  # of a read-only array: it cannot be made writeable

    @property
    def bias(self) -> Array | None:
        """The bias, (d_out,), read-only; or None."""
        return None if self._bias is None else self._bias.view()

    @property
    def d_in(self) -> int:
        """Numbers per row of x."""
        return int(self._weight.shape[0])

    @property
    def d_out(self) -> int:
        """Numbers per row of the result."""
        return int(self._weight.shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the weight, the bias, x and the result."""
        dtype: np.dtype[Any] = self._weight.dtype
        return dtype

    @property
    def num_parameters(self) -> int:
        """How many numbers the weight and the bias hold."""
        return self._weight.size + (0 if self._bias is None else self._bias.size)

    def parameters(self) -> dict[str, Array]:
        """The weight and, where there is one, the bias, by name and read-only."""
        return {"weight": self.weight} | ({} if self._bias is None else {"bias": self._bias.view()})

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(d_in={self.d_in}, d_out={self.d_out}, "
            f"bias={self._bias is not None}, dtype={self.dtype.name}, "
            f"num_parameters={self.num_parameters})"
        )

    def __reduce__(self) -> tuple[type[Projection], tuple[Array, Array | None]]:
        return type(self), (self._weight, self._bias)
