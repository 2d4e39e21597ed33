"""What a backward pass returns, and how the gradient it starts from is checked."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .arrays import Array, readable
from .state import name_in_state
from .weights import checked


class Gradients(NamedTuple):
    """The gradients of a layer's input and weights: what ``backward`` of a layer returns.

    Each is the gradient of the scalar whose gradient at the layer's result was passed in. All have
    the dtype of the layer, and no two share memory with a weight.

    Attributes
    ----------
    x : ndarray
        For the input, in its shape.
    weights : dict of str to ndarray
        For each weight and bias that the layer has, under the name of its attribute and in its
        shape: "weight" and "bias" of a Projection; "w_query", "w_key", "w_value", "b_query", ...,
        "w_out" and "b_out" of the modules; those of a stack's heads are "heads.0.w_query" and so
        on. The order is that of the layer's ``parameters()``.

    Examples
    --------
    >>> import numpy as np
    >>> import headway
    >>> project = headway.Projection(np.ones((2, 3), np.float32))
    >>> y = project.forward(np.ones((5, 2), np.float32), save=True)
    >>> gradients = project.backward(np.ones_like(y))
    >>> gradients.x.shape, {name: array.shape for name, array in gradients.weights.items()}
    ((5, 2), {'weight': (2, 3)})
    """

    x: Array
    weights: dict[str, Array]

    def state_dict(self, *, prefix: str = "") -> dict[str, Array]:
        """The gradients of the weights under the names and in the shapes of the state dict.

        Parameters
        ----------
        prefix : str, default ""
            What to put before each name.

        Returns
        -------
        dict of str to ndarray
            C-contiguous copies, the matrices (out, in) as torch stores them: what fits the
            ``state_dict`` of the module key by key.

        Examples
        --------
        >>> import numpy as np
        >>> import headway
        >>> project = headway.Projection(np.ones((2, 3), np.float32))
        >>> y = project.forward(np.ones((5, 2), np.float32), save=True)
        >>> project.backward(y).state_dict(prefix="mlp.")["mlp.weight"].shape
        (3, 2)
        """
        return {
            prefix + name_in_state(name): np.array(array.T, order="C")
            for name, array in self.weights.items()
        }


def checked_gradient(grad: Any, shape: tuple[int, ...], like: Array, owner: str) -> Array:
    """``grad`` as an array that the core can read, of the shape of the result and the dtype."""
    array = checked("grad", grad, like, owner)
    if array.shape != shape:
        raise ValueError(
            f"grad: expected shape {shape} like the result of forward, got {array.shape}; "
            "pass the gradient of every number of the result"
        )
    return readable(array)


def no_saved_forward(layer: object) -> RuntimeError:
    """The error of a backward without a forward before it."""
    return RuntimeError(
        f"backward: expected a forward call of this {type(layer).__name__} that was saved, with "
        "the weights it has now, got none; call forward(x, save=True) before each backward"
    )
