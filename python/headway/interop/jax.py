"""headway's attention as a function of JAX, under jit, vmap and grad.

It needs the package jax (``pip install 'headway[jax]'``), which is imported at the first call.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np

from ..arrays import Align, Array, Numbers, Window, result_shape
from . import _jax_host as host
from ._jax_host import Settings

__all__ = ["attention"]


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = True,
    align: Align = "end",
    scale: float | None = None,
    mask: Any = None,
    window: Window | None = None,
    softcap: float | None = None,
    alibi_slopes: Numbers | None = None,
    sinks: Any = None,
    kv_lengths: Any = None,
    layout: str = "BHTD",
    return_lse: bool = False,
    dropout: float = 0.0,
    seed: Any = None,
) -> Any:
    """:func:`headway.attention` on JAX's arrays, traced or not.

    Parameters
    ----------
    q, k, v : jax.Array
        As in :func:`headway.attention`; bfloat16, too. They may be traced.
    mask : jax.Array, optional
        bool, or a float dtype, with gradient. It may be traced.
    sinks : jax.Array, (H,), optional
        With gradient. They may be traced.
    kv_lengths : jax.Array, (B,), optional
        Integers. They may be traced.
    align : {"end", "start"}, int or (B,) ints, default "end"
        As in :func:`headway.attention`; an array of integers may be traced.
    causal, scale, window, softcap, alibi_slopes, layout
        As in :func:`headway.attention`; known when the function is traced, without gradient.
    return_lse : bool, default False
        Return the log-sum-exps, too, with gradient.
    dropout : float, default 0.0
        Probability with which a weight is dropped; known when the function is traced.
    seed : int or jax.Array, (), optional
        Of the dropout; it may be traced. A key makes one: ``jax.random.bits(key)``.

    Returns
    -------
    out : jax.Array, (B, H, Tq, Dv)
        Context vectors in the rank, layout and dtype of q.
    lse : jax.Array, (B, H, Tq)
        Only with `return_lse`.

    Raises
    ------
    ImportError
        If jax is absent.
    TypeError, ValueError
        As in :func:`headway.attention`. What depends on traced values alone, such as a length
        beyond the keys, is an error of the callback when the compiled function runs.

    Notes
    -----
    The work is done on the host by ``jax.pure_callback``, with a ``jax.custom_vjp`` around it whose
    backward pass is :func:`headway.attention_backward`. First derivatives in reverse mode; JAX
    refuses forward mode and second derivatives. The gradients of q, k, v, mask, sinks and lse are
    those of the formulas in :func:`headway.attention_backward`.

    Under ``vmap`` the mapped axes become more batch entries of one call; where sinks are mapped,
    gradients of a mask or of sinks are wanted, or weights are dropped, each example is a call of
    its own. An array that is not mapped beside mapped ones is repeated for that one call, if an
    example has a batch axis. Examples that share a seed drop the same weights.

    Memory: as :func:`headway.attention`; for the backward pass q, k, v, out and lse are kept.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> from headway.interop.jax import attention
    >>> q = k = jnp.zeros((1, 2, 2, 4))
    >>> v = jnp.arange(4.0).reshape(1, 2, 2, 1)
    >>> jax.jit(attention)(q, k, v)[0, :, :, 0]
    Array([[0. , 0.5],
           [2. , 2.5]], dtype=float32)
    >>> jax.grad(lambda v: attention(q, k, v).sum())(v)[0, :, :, 0]
    Array([[1.5, 0.5],
           [1.5, 0.5]], dtype=float32)
    """
    jax = _jax()
    jnp = jax.numpy
    if isinstance(alibi_slopes, jax.core.Tracer):
        raise TypeError(
            "alibi_slopes: expected numbers that are known when the function is traced, got a "
            "traced array; make them outside of it, e.g. with headway.alibi_slopes(num_heads)"
        )
    drawn = None
    if seed is not None and not isinstance(seed, (int, np.integer)):
        drawn = jnp.asarray(seed)
        if drawn.shape or drawn.dtype.kind not in "iu":
            raise TypeError(
                f"seed: expected one integer, got {drawn.dtype} of shape {drawn.shape}; "
                "make one of a key with jax.random.bits(key)"
            )
    starts = None
    if not isinstance(align, (str, int, np.integer)) or isinstance(align, bool):
        starts = jnp.asarray(align)
    arrays: host.Arrays = {
        "q": jnp.asarray(q),
        "k": jnp.asarray(k),
        "v": jnp.asarray(v),
        "mask": None if mask is None else jnp.asarray(mask),
        "sinks": None if sinks is None else jnp.asarray(sinks),
        "lengths": None if kv_lengths is None else jnp.asarray(kv_lengths),
        "starts": starts,
        "seed": drawn,
    }
    settings = Settings(
        rank=arrays["q"].ndim,
        causal=causal,
        align=None if starts is not None else align,  # type: ignore[arg-type]
        scale=scale,
        window=_hashable(window),
        softcap=softcap,
        slopes=None if alibi_slopes is None else _hashable(np.asarray(alibi_slopes)),
        layout=layout,
        dropout=dropout,
        seed=None if drawn is not None else seed,
    )
    host.check(settings, arrays)
    out, lse = _function()(settings, *arrays.values())
    return (out, lse) if return_lse else out


def _jax() -> Any:
    try:
        import jax
    except ImportError:
        raise ImportError(
            "interop.jax.attention needs the package jax: pip install 'headway[jax]'"
        ) from None
    return jax


def _hashable(x: Any) -> Any:
    """Numbers of an array or a sequence as nested tuples."""
    if isinstance(x, (np.ndarray, np.generic)):
        x = x.tolist()
    return tuple(_hashable(each) for each in x) if isinstance(x, (list, tuple)) else x


_NAMES = ("q", "k", "v", "mask", "sinks", "lengths", "starts", "seed")


def _attend(settings: Settings, *arrays: Any) -> Any:
    """Contexts and log-sum-exps by a callback."""
    jax = _jax()
    q, v = arrays[0], arrays[2]
    rank, wide = settings.rank, np.float64 if q.dtype == np.float64 else np.float32
    tokens, heads = (-2, -3) if settings.layout == "BHTD" else (-3, -2)
    batch, count = q.shape[0] if rank == 4 else 1, q.shape[heads] if rank > 2 else 1
    tq = q.shape[tokens] if rank > 2 else q.shape[0]
    shape = result_shape(rank, settings.layout, batch, count, tq, v.shape[-1])
    results = (
        jax.ShapeDtypeStruct(shape, q.dtype),
        jax.ShapeDtypeStruct((batch, count, tq)[4 - rank :], wide),
    )

    def run(*given: Any) -> tuple[Array, ...]:
        return host.forward(settings, dict(zip(_NAMES, given, strict=True)))

    return jax.pure_callback(run, results, *arrays, vmap_method="expand_dims")


def _keep(settings: Settings, *primals: Any) -> Any:
    """The forward pass of a gradient, and what its backward pass needs."""
    arrays = [None if x is None else x.value for x in primals]
    wanted = [() if x is not None and x.perturbed else None for x in primals[3:5]]
    out, lse = _attend(settings, *arrays)
    return (out, lse), (arrays, out, lse, wanted)


def _gradients(settings: Settings, kept: Any, above: Any) -> tuple[Any, ...]:
    """Gradients by the arrays of a call, None for those that have none."""
    jax = _jax()
    arrays, out, lse, wanted = kept
    mask_grad, sinks_grad = (each is not None for each in wanted)
    grad_out, grad_lse = (
        None if isinstance(x, jax.custom_derivatives.SymbolicZero) else x for x in above
    )
    if grad_out is None:
        grad_out = jax.numpy.zeros_like(out)
    like = [*arrays[:3], *[arrays[4]] * sinks_grad, *[arrays[3]] * mask_grad]
    results = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in like]
    names = (*_NAMES, "out", "lse", "grad_out", "grad_lse")

    def run(*given: Any) -> tuple[Array, ...]:
        found = dict(zip(names, given, strict=True))
        return host.backward(settings, mask_grad, sinks_grad, found)

    dq, dk, dv, *rest = jax.pure_callback(
        run, tuple(results), *arrays, out, lse, grad_out, grad_lse, vmap_method="expand_dims"
    )
    of_mask = rest.pop() if mask_grad else None
    return dq, dk, dv, of_mask, rest.pop() if sinks_grad else None, None, None, None


@cache
def _function() -> Any:
    """The function with its own gradients; made when it is first needed."""
    function = partial(_jax().custom_vjp, nondiff_argnums=(0,))(_attend)
    function.defvjp(_keep, _gradients, symbolic_zeros=True)
    return function
