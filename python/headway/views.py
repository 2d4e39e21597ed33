"""The fused pass on arrays that the caller has checked: for layers above that make their own views.

:func:`headway.attention` is the same with every check and every conversion.
"""

from . import _core
from .arrays import Array


def attend_views(
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array | None,
    kind: str,
    causal: bool,
    scale: float | None,
) -> None:
    """Fill `out`, and `lse`, with the attention whose query 0 stands at key 0, without options.

    Parameters
    ----------
    q, k, v : ndarray, (B, H, Tq, D), (B, Hkv, Tk, D), (B, Hkv, Tk, Dv)
        Views of sizes that fit each other, none of them 0; of any dtype that has the size of
        `kind`: the bits are what is read.
    out : ndarray, (B, H, Tq, Dv)
        Takes the result; it shares no memory with an input.
    lse : ndarray, (B, H, Tq), or None
        Takes the log-sum-exps: float64 for float64, else float32.
    kind : {"float32", "float64", "float16", "bfloat16"}
        What the elements are.
    causal : bool
        A query sees the keys up to its own position only.
    scale : float or None
        Finite; None is ``1 / sqrt(D)``.

    Raises
    ------
    ValueError
        If the core cannot read or fill an array where it lies (see `headway.arrays.is_readable`),
        or if ``HEADWAY_ISA`` names an instruction set that is not available.
    """
    _core.attention(q, k, v, out, lse, kind, kind, scale, causal, [0] * q.shape[0], None)
