"""One ring call, checked on every rank and agreed between the ranks."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..arrays import Array, as_array
from ..calls import Call, check_attention
from ..checks import check_flag
from ..cuts import check_offsets
from ..gradient_calls import Saved, check_backward
from ..options import FAR, check_window
from ._agreement import Same, Text, agree
from ._parts import Part, Sight
from ._plan import Plan
from ._record import check_record
from ._sharding import check_rows, check_sharding
from ._waiting import patience

_SAME_CUT = "cut q, k and v alike with headway.distributed.shard"
_CALL_ALIKE = "make the same call on every rank"


class RingCall(NamedTuple):
    """What every rank knows once it may start."""

    call: Call
    plan: Plan
    slopes: Array | None  # (B, H)
    sinks: Array | None  # (H,)
    softcap: float


class Given(NamedTuple):
    """The options of a ring call as they were given."""

    causal: Any
    sharding: Any
    scale: Any
    window: Any
    softcap: Any
    alibi_slopes: Any
    sinks: Any
    cu_seqlens: Any
    layout: Any


def agreed_forward(
    q: Any, k: Any, v: Any, comm: Any, given: Given, out: Any, return_lse: Any, record: Any
) -> RingCall:
    """Check a forward call; every rank gets its plan, or all raise the same."""
    call, failure = None, None
    try:
        check_record(record)
        call = _checked(q, k, v, given, out)
        check_flag("return_lse", return_lse)
    except Exception as error:
        failure = error
    return _agreed("ring_attention", call, comm, given, failure, {})


def agreed_backward(
    q: Any,
    k: Any,
    v: Any,
    comm: Any,
    given: Given,
    saved: tuple[Any, ...],
    wanted: Any,
    record: Any,
) -> tuple[RingCall, Saved]:
    """The same for a backward call; ``saved`` is grad_out, out, lse and grad_lse."""
    call, rows, failure = None, None, None
    more: dict[str, Same] = {}
    try:
        check_record(record)
        _checked(q, k, v, given, None)
        options = None, given.window, given.softcap, given.alibi_slopes, given.sinks, None
        place = given.causal, "start", given.scale, given.layout, options
        call, rows = check_backward(q, k, v, *place, saved, wanted, False, (0.0, None))
        more["sinks_grad"] = Same(bool(wanted))
        more["grad_out"] = Same(Text(rows.kind), TypeError, "convert it on the others")
    except Exception as error:
        failure = error
    agreed = _agreed("ring_attention_backward", call, comm, given, failure, more)
    assert rows is not None  # else the agreement raised
    return agreed, rows


def _checked(q: Any, k: Any, v: Any, given: Given, out: Any) -> Call:
    check_sharding(given.sharding)
    patience()
    options = None, given.window, given.softcap, given.alibi_slopes, given.sinks, None
    place = given.causal, "start", given.scale, given.layout, options
    call = check_attention(q, k, v, *place, out)
    tokens, keys = call.q.shape[2], call.k.shape[2]
    if keys != tokens:
        raise ValueError(
            f"k: expected {tokens} tokens like q, got {keys}; each rank holds the same rows of "
            f"q, k and v: {_SAME_CUT}"
        )
    return call


def _agreed(
    name: str,
    call: Call | None,
    comm: Any,
    given: Given,
    failure: Exception | None,
    more: dict[str, Same],
) -> RingCall:
    same: dict[str, Same] = {}
    options = None if call is None else call.options
    cuts = None
    if failure is None and call is not None:
        cuts = _comparable(given.cu_seqlens)
        q, k, v = call.q, call.k, call.v
        sizes = "pass arrays that differ along the tokens only"
        same = {
            "q": Same(Text(call.kind), TypeError, "convert q, k and v on the others"),
            "q's batch, heads and head_dim": Same((*q.shape[:2], q.shape[3]), fix=sizes),
            "k's heads": Same(k.shape[1], fix=sizes),
            "v's head_dim": Same(v.shape[3], fix=sizes),
            "causal": Same(call.causal),
            "sharding": Same(given.sharding),
            "scale": Same(call.scale),
            "window": Same(_window(given.window, call.causal)),
            "softcap": Same(0.0 if options is None else options.softcap),
            "alibi_slopes": Same(None if options is None else options.slopes),
            "sinks": Same(None if options is None else options.sinks),
            "cu_seqlens": Same(cuts),
            **more,
        }
    counts = agree(comm, name, same, 0 if call is None else call.q.shape[2], failure)
    assert call is not None
    check_rows(counts, given.sharding, "q")
    total = sum(counts)
    if cuts is not None:
        cuts = check_offsets("cu_seqlens", given.cu_seqlens, total, "the whole sequence")
    biased = options is not None and options.slopes is not None
    left, right = check_window(given.window, call.causal)
    plan = Plan(comm.rank, comm.size, total, given.sharding, Sight(left, right, biased, cuts))
    if options is None:
        return RingCall(call, plan, None, None, 0.0)
    return RingCall(call, plan, options.slopes, options.sinks, options.softcap)


def _window(window: Any, causal: bool) -> tuple[int, int]:
    left, right = (-1 if side >= FAR else side for side in check_window(window, causal))
    return left, right


def _comparable(offsets: Any) -> Any:
    """Offsets as an array of int64, so that a list equals an array; what is none stays itself."""
    if offsets is None:
        return None
    try:
        array = np.asarray(offsets) if isinstance(offsets, list | tuple) else as_array("", offsets)
    except (TypeError, ValueError):
        return Text(type(offsets).__name__)
    return array.astype(np.int64) if array.dtype.kind in "iu" else Text(array.dtype.name)


def options_of(ring: RingCall, part: Part) -> dict[str, Any]:
    """The arguments of the kernel for a part; its lse lacks `shift_of`."""
    found: dict[str, Any] = {
        "causal": part.causal,
        "align": part.align,
        "scale": ring.call.scale,
        "window": part.window,
        "softcap": ring.softcap or None,
    }
    if ring.slopes is not None:
        found["alibi_slopes"] = ring.slopes * part.stride
    return found


def shift_of(ring: RingCall, part: Part) -> Array | None:
    """(B, H, 1) to be added to the kernel's lse: what its distances are too short by."""
    if ring.slopes is None or part.shift == 0:
        return None
    shift: Array = -ring.slopes[..., None] * part.shift
    return shift
