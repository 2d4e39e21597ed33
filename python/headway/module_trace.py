"""The method ``trace`` of the modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from .arrays import ArrayInput

if TYPE_CHECKING:
    from .module_base import AttentionModule
    from .trace_record import Trace
    from .tracing import Tokens


class ModuleTrace:
    """Part of the base of the modules."""

    def trace(
        self,
        x: ArrayInput,
        *,
        tokens: Tokens | None = None,
        training: bool = False,
        seed: int | None = None,
    ) -> Trace:
        """Every object on the way from ``x`` to the module's result.

        Each step is computed in plain NumPy, from its formula, in the accumulation type: for each
        head the weights, Q, K, V, scores, mask, attention weights and Z_n; then Z, and the output
        projection where there is one. The last step is compared with what the module computes.

        Parameters
        ----------
        x : array, (B, T, d_in) or (T, d_in)
            As for the call of the module.
        tokens : sequence of T str, or B of them, optional
            What the tokens are called. Default their numbers, from 0.
        training, seed
            As for the call of the module: with dropout, the dropped weights are a step, too.

        Returns
        -------
        Trace
            The steps, each with array, formula and a sentence; ``print`` it, or see ``plot``,
            ``to_html`` and ``to_text``.

        Raises
        ------
        TypeError, ValueError
            As the call of the module; also if there are not as many names as tokens.

        Notes
        -----
        Memory: for each head, of each pair of tokens 3 or 4 numbers in the accumulation type and
        one bool. Of 16-bit modules the trace does not round between the steps, as the module does.

        Examples
        --------
        >>> import numpy as np
        >>> import headway
        >>> module = headway.MultiHeadAttention.init(6, 4, num_heads=2)
        >>> x = np.random.default_rng(0).standard_normal((3, 6), dtype=np.float32)
        >>> trace = module.trace(x, tokens=["the", "cat", "sat"])
        >>> trace["Z"]
        Step(Z (3, 4) = [Z_1 | Z_2])
        >>> trace["Q_2"]
        Step(Q_2 (3, 2) = x @ w_query_2)
        >>> np.allclose(trace["Z"].array, module(x), atol=1e-6)
        True
        """
        from .tracing import trace_module

        return trace_module(cast("AttentionModule", self), x, tokens, training, seed)
