"""One call, checked: arrays as views that the core can read, options as numbers."""

from typing import Any, NamedTuple

import numpy as np

from .arrays import (
    Array,
    as_array,
    empty_result,
    is_readable,
    readable,
    result_shape,
    with_four_axes,
)
from .checks import (
    check_align,
    check_flag,
    check_layout,
    check_out,
    check_scale,
    explained_operands,
    plain_operands,
)
from .cuts import check_cu_seqlens
from .options import Options, check_options


class Call(NamedTuple):
    """A checked call: (B, H, T, D) views that the core can read, the dtype's name, q's rank."""

    q: Array
    k: Array
    v: Array
    kind: str
    rank: int
    scale: float | None  # None: 1 / sqrt(head_dim)
    causal: bool
    offset: int | list[int]  # key position of query 0: one for all batch entries, or one for each
    options: Options | None  # None: no option acts on the scores

    @property
    def offsets(self) -> list[int]:
        """(B,): the key position of query 0 in each batch entry."""
        return self.offset if isinstance(self.offset, list) else [self.offset] * self.q.shape[0]

    @property
    def wide(self) -> Any:
        """The accumulation dtype: float64 for float64, else float32."""
        return np.float64 if self.kind == "float64" else np.float32


class Target(NamedTuple):
    """Where a result goes."""

    result: Array  # what the caller gets: `out`, or a new array
    place: Array  # its (B, H, Tq, Dv) view
    filled: Array  # what the core fills: that view, or a new array to be copied into it
    kind: str  # the dtype's name


def check_attention(
    q: Any,
    k: Any,
    v: Any,
    causal: Any,
    align: Any,
    scale: Any,
    layout: Any,
    given: tuple[Any, Any, Any, Any, Any, Any],
    out: Any = None,
    return_lse: Any = False,
    dropout: Any = 0.0,
    seed: Any = None,
) -> Call:
    """Check one call of the attention functions; a call without values gives k for v.

    ``given`` is mask, window, softcap, alibi_slopes, sinks and kv_lengths.
    """
    if causal is not True and causal is not False:
        check_flag("causal", causal)
    if return_lse is not True and return_lse is not False:
        check_flag("return_lse", return_lse)
    operands = plain_operands(q, k, v) if type(layout) is str and layout == "BHTD" else None
    plain = operands is not None
    if operands is None:
        check_layout(layout)
        operands = explained_operands(q, k, v, layout)
    q4, k4, v4, kind, rank = operands
    batch, num_heads, tq, _ = q4.shape
    factor = None if scale is None else check_scale(scale)
    tk = k4.shape[2]
    shape = batch, num_heads, tq, tk
    options = check_options(shape, rank, kind, bool(causal), *given, dropout, seed)
    if not isinstance(align, str) or align != "end":
        offset = check_align(align, batch, tq, tk)
    elif options is not None and options.lengths is not None:
        offset = [length - tq for length in options.lengths]
    else:
        offset = tk - tq
    if out is not None:
        wanted = result_shape(rank, layout, batch, num_heads, tq, v4.shape[3])
        inputs = {"q": q4, "k": k4, "v": v4}
        if options is not None:
            mask, _, _, slopes, sinks, _ = given
            inputs |= given_arrays(mask=mask, alibi_slopes=slopes, sinks=sinks)
        check_out(out, wanted, q4.dtype, kind, inputs)
    if not plain:  # copy what the core cannot read where it lies
        same = v4 is k4
        q4, k4 = readable(q4), readable(k4)
        v4 = k4 if same else readable(v4)
    return Call(q4, k4, v4, kind, rank, factor, bool(causal), offset, options)


def check_packed(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    causal: Any,
    align: Any,
    scale: Any,
    given: tuple[Any, Any, Any, Any],
    out: Any,
    return_lse: Any,
    dropout: Any = 0.0,
    seed: Any = None,
) -> tuple[Call, Array, Array]:
    """Check a call on packed sequences; (n + 1,) int64 say where each begins in q, and in k.

    ``given`` is window, softcap, alibi_slopes and sinks. The call has one batch entry, but one
    offset and one row of slopes for each sequence.
    """
    check_flag("causal", causal)
    check_flag("return_lse", return_lse)
    q = as_array("q", q)
    if q.ndim != 3:
        raise ValueError(
            f"q: expected 3 axes, (total_q, heads, head_dim), got shape {q.shape}; "
            "put the tokens of all sequences one after another, e.g. with np.concatenate"
        )
    q4, k4, v4, kind, rank = explained_operands(q, k, v, "BTHD")
    _, num_heads, total_q, _ = q4.shape
    total_k = k4.shape[2]
    queries, keys = check_cu_seqlens(cu_seqlens_q, cu_seqlens_k, total_q, total_k)
    count = queries.size - 1
    factor = None if scale is None else check_scale(scale)
    position = check_align(align, count, 0, 0, each="sequence")
    if isinstance(align, str) and align == "end":
        offsets = (np.diff(keys) - np.diff(queries)).tolist()
    else:
        offsets = position if isinstance(position, list) else [position] * count
    shape = count, num_heads, total_q, total_k
    options = check_options(shape, rank, kind, bool(causal), None, *given, None, dropout, seed)
    if out is not None:
        _, _, slopes, sinks = given
        inputs = {"q": q4, "k": k4, "v": v4, **given_arrays(alibi_slopes=slopes, sinks=sinks)}
        check_out(out, (total_q, num_heads, v4.shape[3]), q4.dtype, kind, inputs)
    same = v4 is k4
    q4, k4 = readable(q4), readable(k4)
    v4 = k4 if same else readable(v4)
    call = Call(q4, k4, v4, kind, rank, factor, bool(causal), offsets, options)
    return call, queries, keys


def given_arrays(**given: Any) -> dict[str, Array]:
    """Those of the arguments that are arrays: `out` may not overlap them."""
    return {
        name: as_array(name, x)
        for name, x in given.items()
        if hasattr(x, "__array__") or hasattr(x, "__dlpack__")
    }


def target_of(call: Call, out: Array | None, layout: str) -> Target:
    """The array that takes the result of a call: the checked `out`, or a new one."""
    if out is None:
        shape = (*call.q.shape[:3], call.v.shape[3])
        result = empty_result(result_shape(call.rank, layout, *shape), call.q.dtype)
        kind = call.kind
    else:
        result = out
        kind = "float32" if out.dtype == np.float32 else call.kind
    place = with_four_axes(as_array("out", result), layout)
    filled = place if is_readable(place) else empty_result(place.shape, place.dtype)
    return Target(result, place, filled, kind)


def lse_of(call: Call) -> Array:
    """A new (B, H, Tq) array for the log-sum-exp, in the accumulation dtype."""
    return empty_result(call.q.shape[:3], call.wide)
