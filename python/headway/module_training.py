"""Training of the modules: the methods ``forward``, ``backward``, ``parameters``, ``assign``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from .arrays import Array, ArrayInput, empty_result
from .checks import check_flag
from .dropout import check_dropout
from .layer_gradients import Gradients, checked_gradient, no_saved_forward
from .module_backward import Kept, gradients_of, is_in_use, kept_run
from .module_cache import call_with_cache
from .weights import check_shape, checked

if TYPE_CHECKING:
    from .cache import KVCache
    from .module_base import AttentionModule


class ModuleTraining:
    """Part of the base of the modules."""

    _saved: Kept | None = None
    _dropout: float = 0.0

    def forward(
        self,
        x: ArrayInput,
        *,
        save: bool = False,
        training: bool = False,
        seed: int | None = None,
        cache: KVCache | None = None,
    ) -> Array:
        """The context vectors of ``x``: what the call gives, and what backward needs if wanted.

        Parameters
        ----------
        x, training, seed, cache
            As in the call of the module; with save no cache.
        save : bool, default False
            Whether to keep what :meth:`backward` needs, in the place of what was kept before, until
            backward frees it or a weight is assigned. x is not copied, unless the core cannot read
            it: do not write to it before backward.

        Returns
        -------
        ndarray, (B, T, width) or (T, width)
            As from the call.

        Raises
        ------
        TypeError, ValueError, MemoryError
            As in the call, or if save comes with a cache; nothing is kept then.

        Notes
        -----
        Memory: what is kept is x, Q, K, V and Z, that is B * T * (H + 2 * Hkv) * head_dim and
        B * T * d_out numbers, and B * T * H numbers in float32, or float64 for float64. It is no
        part of a copy, of a pickle or of :meth:`state_dict`.

        Examples
        --------
        >>> import numpy as np
        >>> import headway
        >>> module = headway.MultiHeadAttention.init(6, 4, num_heads=2, out_proj=True)
        >>> x = np.ones((1, 5, 6), np.float32)
        >>> y = module.forward(x, save=True)
        >>> gradients = module.backward(2 * y)  # of the sum of the squares of y
        >>> steps = {name: -0.01 * array for name, array in gradients.weights.items()}
        >>> module.assign({name: w + steps[name] for name, w in module.parameters().items()})
        >>> bool((module(x) ** 2).sum() < (y**2).sum())
        True
        """
        module = cast("AttentionModule", self)
        check_flag("save", save)
        if save:
            module._saved = None
        array = module._input(x)
        dropout = self._rate(training, seed)
        if cache is not None:
            if save or training:
                raise ValueError(
                    "cache: expected None with save=True or training=True, got a cache; "
                    "pass all tokens in one x"
                )
            return call_with_cache(module, array, cache)
        if not (save or dropout):
            z = module._merged(array)
            return z if module._out is None else module._out(z)
        z = empty_result((*array.shape[:-1], module.d_out), array.dtype)
        kept = kept_run(module, array, z, dropout, seed)
        if module._out is not None:
            z = module._out(z)
        elif save:
            z = empty_result(z.shape, z.dtype)  # it may be written to, and what is kept may not
            z[...] = kept.z
        module._saved = kept if save else module._saved
        return z

    def backward(self, grad: ArrayInput) -> Gradients:
        """The gradients of x and of every weight and bias, for the last ``forward(x, save=True)``.

        Parameters
        ----------
        grad : array, (B, T, width) or (T, width)
            Gradient at the result of forward: its shape, the module's dtype, any strides.

        Returns
        -------
        Gradients
            ``x``, in its shape, and ``weights``: a dict with the names, shapes and order of
            :meth:`parameters`. All in the module's dtype; x C-contiguous, those of Q, K and V
            views of one array.

        Raises
        ------
        RuntimeError
            If there was no forward with save=True, backward has used it, or a weight was assigned
            since then.
        TypeError, ValueError
            If grad is no array, or of another dtype or shape; what was saved stays.
        MemoryError
            If there is no memory for the gradients.

        Notes
        -----
        The steps of the forward pass in reverse: the output projection, the attention as in
        :func:`attention_backward`, the projection of Q, K and V. Sums are made as there and in
        :meth:`Projection.backward`; of 16-bit numbers the gradients at Z, Q, K and V are rounded in
        between. The bits do not depend on the number of threads.

        Both stages give the same gradients of the weights, to the bit: those of head h in the stack
        are the columns ``h*D`` to ``(h+1)*D`` of those of all heads at once, where every head owns
        its keys and values. That of x is one sum over the columns of all heads there, and in the
        stack the sum of each head's sum, rounded once.

        Memory: the gradients at Z, Q, K and V, and the workspaces of the steps; never a (T, T)
        matrix.

        Examples
        --------
        >>> import numpy as np
        >>> import headway
        >>> head = headway.CausalAttention.init(3, 2)
        >>> z = head.forward(np.ones((4, 3), np.float32), save=True)
        >>> gradients = head.backward(np.ones_like(z))
        >>> gradients.x.shape, list(gradients.weights)
        ((4, 3), ['w_query', 'w_key', 'w_value'])
        """
        module = cast("AttentionModule", self)
        kept = module._saved
        if kept is None or not is_in_use(kept, module):
            raise no_saved_forward(self)
        shape = (*kept.x.shape[:-1], module.d_out if kept.out is None else kept.out.d_out)
        array = checked_gradient(grad, shape, module._w_query, "the module's weights")
        gradients = gradients_of(module, kept, array)
        module._saved = None
        return gradients

    @property
    def dropout(self) -> float:
        """Probability with which an attention weight is dropped in training; may be assigned.

        A stack gives it to all its heads; if they differ in it, asking for it is a ValueError.
        """
        rates = self._rates()
        if len(rates) > 1:
            raise ValueError(
                f"dropout: expected heads of one dropout, got {rates}; assign module.dropout"
            )
        return rates[0]

    @dropout.setter
    def dropout(self, value: float) -> None:
        rate, _ = check_dropout(value, 0)
        for _, owner in self._owners():
            owner._dropout = rate

    def _rates(self) -> list[float]:
        """The dropout of the heads, each number once."""
        return sorted({owner._dropout for _, owner in self._owners()})

    def _rate(self, training: Any, seed: Any) -> float:
        """The checked dropout of a call."""
        check_flag("training", training)
        return check_dropout(self.dropout if training else 0.0, seed)[0]

    def parameters(self) -> dict[str, Array]:
        """Every weight and bias, by the name of its attribute.

        Returns
        -------
        dict of str to ndarray
            Read-only arrays; those of a stack's heads are named "heads.0.w_query" and so on. The
            names are those of the gradients, and what :meth:`assign` takes.

        Examples
        --------
        >>> import headway
        >>> list(headway.CausalAttention.init(3, 2).parameters())
        ['w_query', 'w_key', 'w_value']
        """
        return {name: owner._weights[last] for name, (owner, last) in self._named().items()}

    def assign(self, weights: Mapping[str, ArrayInput]) -> None:
        """Replace several weights at once.

        It does what assigning the attributes one after another does, but what lies side by side is
        packed once. All are checked before the first one is replaced.

        Parameters
        ----------
        weights : mapping of str to array
            New weights by the names of :meth:`parameters`, of the same shape and dtype; others stay
            as they are. They are copied in.

        Raises
        ------
        TypeError, ValueError
            If weights are no mapping, a name is unknown, or a weight of another shape or dtype.

        Examples
        --------
        >>> import headway
        >>> module = headway.StackedMultiHeadAttention.init(3, 4, num_heads=2)
        >>> module.assign({name: 2 * w for name, w in module.parameters().items()})
        """
        if not isinstance(weights, Mapping):
            raise TypeError(
                f"weights: expected a mapping of names to arrays, got {type(weights).__name__}; "
                "pass e.g. {'w_query': array}"
            )
        known = self._named()
        stores: dict[int, tuple[AttentionModule, dict[str, Array]]] = {}
        for name, value in weights.items():
            if name not in known:
                raise ValueError(
                    f"weights: expected names of parameters(), got {name!r}; "
                    f"this module has {', '.join(known)}"
                )
            owner, last = known[name]
            old = owner._weights[last]
            array = checked(name, value, old, "the weight it replaces")
            check_shape(name, array, old.shape, "a weight is replaced by one of the same shape")
            stores.setdefault(id(owner), (owner, {}))[1][last] = array
        for owner, new in stores.values():
            owner._store(new)

    def _owners(self) -> list[tuple[str, AttentionModule]]:
        """The modules that project x, and what stands before the names of their weights."""
        return [("", cast("AttentionModule", self))]

    def _named(self) -> dict[str, tuple[AttentionModule, str]]:
        """For each parameter the module that holds it, and its name there."""
        owners = dict(self._owners()) | {"": cast("AttentionModule", self)}
        return {
            prefix + name: (owner, name)
            for prefix, owner in owners.items()
            for name in owner._weights
        }
