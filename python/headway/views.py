"""The fused pass on memory that the caller has looked at: for layers above that own tensors.

:func:`headway.attention` is the same with every check and every conversion.
"""

from . import _core

Operand = tuple[int, tuple[int, ...], tuple[int, ...]]
"""The address of a (B, heads, tokens, width) operand, its shape, and its strides in elements."""
Result = tuple[int, tuple[int, ...]]
"""The address of a result whose shape follows from the operands, and its strides in elements."""


def attend_at(
    q: Operand,
    k: Operand,
    v: Operand,
    out: Result,
    lse: Result | None,
    kind: str,
    causal: bool,
    scale: float | None,
) -> bool:
    """Fill `out`, and `lse`, with the attention whose query 0 stands at key 0, without options.

    Parameters
    ----------
    q, k, v : (address, shape, strides)
        Memory of (B, H, Tq, D), (B, Hkv, Tk, D) and (B, Hkv, Tk, Dv) elements of `kind`, which the
        caller keeps alive. That an address and its strides lie inside of memory is not checked.
    out : (address, strides)
        Memory that takes the (B, H, Tq, Dv) result; it shares no element with an input.
    lse : (address, strides), or None
        Memory that takes the (B, H, Tq) log-sum-exps: float64 for float64, else float32.
    kind : {"float32", "float64", "float16", "bfloat16"}
        What the elements are.
    causal : bool
        A query sees the keys up to its own position only.
    scale : float or None
        Finite; None is ``1 / sqrt(D)``.

    Returns
    -------
    bool
        False, with nothing done, where sizes do not fit each other or one of them is 0, an address
        is null or not aligned, or the last axis is not contiguous.

    Raises
    ------
    ValueError
        If ``HEADWAY_ISA`` names an instruction set that is not available.
    """
    return _core.attention_at(q, k, v, out, lse, kind, causal, scale)
