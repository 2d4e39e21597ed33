"""Random calls of the functions, with what they must return, for ``fuzz_calls.py``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from fuzz_dice import Dice
from gradients import GRADIENT_TOLERANCE
from helpers import (
    HALF,
    LSE_TOLERANCE,
    TOLERANCE,
    Array,
    dtype_of,
    lse_dtype,
    multiplies_pairs,
    wide_tolerance,
)

import headway

reference = headway.reference


@dataclass
class Call:
    """One call: a function, its arguments, and what is known about its results."""

    function: Callable[..., Any]
    args: list[Any]
    options: dict[str, Any] = field(default_factory=dict)
    #: Shape and dtype of each result; None where nothing is known.
    wanted: list[tuple[tuple[int, ...], Any]] | None = None
    #: The same call in the reference, and the error allowed to each result.
    twin: Callable[..., Any] | None = None
    allowed: tuple[float, ...] = ()
    #: Errors count relative to this size at least.
    size: float = 0.0
    #: Which results may hold infinities (a log-sum-exp).
    unbounded: tuple[bool, ...] = ()
    #: Run after the call, whatever came of it.
    after: Callable[[], None] | None = None

    def run(self) -> tuple[Any, ...]:
        """Call it; one result stands alone."""
        found = self.function(*self.args, **self.options)
        return tuple(found) if isinstance(found, (tuple, list)) else (found,)

    def expected(self) -> tuple[Array, ...]:
        """The reference's results, in float64."""
        assert self.twin is not None
        args = [_wide(x) for x in self.args]
        options = {
            name: _wide(x) if name in ("sinks", "grad_lse") else x
            for name, x in self.options.items()
            if name != "out"
        }
        found = self.twin(*args, **options)
        return tuple(found) if isinstance(found, (tuple, list)) else (found,)


def _wide(x: Any) -> Any:
    if isinstance(x, (list, tuple)) and x and hasattr(x[0], "__array__"):
        return [_wide(each) for each in x]
    if not hasattr(x, "__array__"):
        return x
    x = np.asarray(x)
    return x if x.dtype.kind in "iub" else np.array(x, np.float64, order="C")


def in_layout(shape: tuple[int, int, int, int], rank: int, layout: str) -> tuple[int, ...]:
    """A (B, H, T, D) shape as it is given in a layout and a rank."""
    b, h, t, d = shape
    if rank == 2:
        return t, d
    inner = (h, t, d) if layout == "BHTD" else (t, h, d)
    return inner if rank == 3 else (b, *inner)


def _problem(dice: Dice) -> dict[str, Any]:
    """Sizes, dtype, rank, layout, arrays and options of a call of attention."""
    rank, layout = dice.one((4, 4, 4, 3, 2)), dice.one(("BHTD", "BHTD", "BTHD"))
    batch = dice.one((1, 1, 2, 3, 0)) if rank == 4 else 1
    kv_heads = dice.one((1, 1, 2)) if rank > 2 else 1
    heads = kv_heads * dice.one((1, 1, 2, 3)) if rank > 2 else 1
    tq, tk = dice.size(), dice.size()
    if dice.chance(0.01):
        tk = dice.one((130, 300, 520))
    if dice.chance(0.4):
        tk = tq
    width = dice.width()
    v_width = width if dice.chance(0.7) else dice.one((0, 1, 5, 32))
    dtype = dice.dtype()
    shapes = [
        (batch, heads, tq, width),
        (batch, kv_heads, tk, width),
        (batch, kv_heads, tk, v_width),
    ]
    arrays = [dice.array(in_layout(s, rank, layout), dtype) for s in shapes]
    options = dice.options((batch, heads, tq, tk), rank)
    if layout == "BTHD" or dice.chance(0.1):
        options["layout"] = layout
    if dice.chance(0.1):
        options |= {"dropout": dice.one((0.1, 0.5)), "seed": dice.random.getrandbits(64)}
    return {
        "dtype": dtype, "rank": rank, "layout": layout, "batch": batch, "heads": heads, "tq": tq,
        "tk": tk, "v_width": v_width, "arrays": arrays, "options": options,
    }  # fmt: skip


def _rows(p: dict[str, Any], *last: int) -> tuple[int, ...]:
    """(B, H, Tq, ...) without the axes that the call's rank has not."""
    full: tuple[int, ...] = (p["batch"], p["heads"], p["tq"], *last)
    return full[4 - p["rank"] :]


def attention(dice: Dice) -> Call:
    """A call of attention."""
    p = _problem(dice)
    shape = in_layout((p["batch"], p["heads"], p["tq"], p["v_width"]), p["rank"], p["layout"])
    options, dtype, result = p["options"], p["dtype"], p["dtype"]
    if dice.chance(0.2):
        options["out"] = dice.out(shape, dtype)
        result = str(options["out"].dtype.name)
    wanted: list[tuple[tuple[int, ...], Any]] = [(shape, dtype_of(result))]
    if dice.chance(0.3):
        options["return_lse"] = True
        wanted.append((_rows(p), lse_dtype(dtype)))
    wide = result != dtype
    allowed = wide_tolerance(dtype) if wide else TOLERANCE[dtype]
    args = [dice.lent(x) for x in p["arrays"]]
    return Call(
        headway.attention, args, options, wanted, reference.attention,
        (2 * allowed, LSE_TOLERANCE[dtype]), 1.0, (False, True),
    )  # fmt: skip


def matrices(dice: Dice) -> Call:
    """A call of attention_weights or attention_scores."""
    p = _problem(dice)
    options, dtype = p["options"], p["dtype"]
    shape = _rows(p, p["tk"])
    if dice.chance(0.5):
        return Call(
            headway.attention_weights, p["arrays"][:2], options, [(shape, dtype_of(dtype))],
            reference.attention_weights, (2 * TOLERANCE[dtype],), 1.0,
        )  # fmt: skip
    for name in ("dropout", "seed", "sinks"):
        options.pop(name, None)
    options["stage"] = dice.one(("scaled", "capped", "masked"))
    return Call(
        headway.attention_scores, p["arrays"][:2], options, [(shape, lse_dtype(dtype))],
        reference.attention_scores, (LSE_TOLERANCE[dtype],), 1.0, (True,),
    )  # fmt: skip


def backward(dice: Dice) -> Call:
    """A call of attention_backward after the forward pass."""
    p = _problem(dice)
    options, dtype = p["options"], p["dtype"]
    q, k, v = p["arrays"]
    out, lse = headway.attention(q, k, v, return_lse=True, **options)
    grad_out = dice.array(out.shape, dtype)
    options = dict(options)
    wanted = [(x.shape, dtype_of(dtype)) for x in (q, k, v)]
    if dice.chance(0.3):
        options["grad_lse"] = dice.array(lse.shape, lse.dtype.name)
    if "sinks" in options and dice.chance(0.5):
        options["sinks_grad"] = True
        wanted.append((options["sinks"].shape, options["sinks"].dtype))
    mask = options.get("mask")
    if mask is not None and mask.dtype != bool and dice.chance(0.5):
        options["mask_grad"] = True
        wanted.append((mask.shape, lse_dtype(dtype)))
    allowed = [4 * max(GRADIENT_TOLERANCE[dtype], GRADIENT_TOLERANCE[d.name]) for _, d in wanted]
    return Call(
        headway.attention_backward, [grad_out, q, k, v, out, lse], options, wanted,
        reference.attention_backward, tuple(allowed), 8.0,
    )  # fmt: skip


def packed(dice: Dice) -> Call:
    """A call of attention_varlen, or of its backward pass."""
    kv_heads = dice.one((1, 2))
    heads, count = kv_heads * dice.one((1, 2)), dice.one((0, 1, 2, 3))
    width, v_width, dtype = dice.width(), dice.width(), dice.dtype()
    cuts = [np.cumsum([0] + [dice.one((0, 1, 2, 3, 9)) for _ in range(count)]) for _ in range(2)]
    one = dice.chance(0.4)
    cu_q, cu_k = cuts[0], cuts[0] if one else cuts[1]
    q = dice.array((int(cu_q[-1]), heads, width), dtype)
    k = dice.array((int(cu_k[-1]), kv_heads, width), dtype)
    v = dice.array((int(cu_k[-1]), kv_heads, v_width), dtype)
    options = dice.options((count, heads, 9, 9), 4, packed=True)
    as_given = dice.one((list, tuple, np.int32, np.int64))
    given = [[int(n) for n in c] for c in (cu_q, cu_k)]
    both = [np.array(c, as_given) if as_given not in (list, tuple) else as_given(c) for c in given]
    ends = both[:1] if one else both
    out_shape, lse_shape = (len(q), heads, v_width), (heads, len(q))
    if dice.chance(0.6):
        options["return_lse"] = True
        wanted = [(out_shape, dtype_of(dtype)), (lse_shape, lse_dtype(dtype))]
        return Call(
            headway.attention_varlen, [q, k, v, *ends], options, wanted,
            reference.attention_varlen, (2 * TOLERANCE[dtype], LSE_TOLERANCE[dtype]), 1.0,
            (False, True),
        )  # fmt: skip
    out, lse = headway.attention_varlen(q, k, v, *ends, return_lse=True, **options)
    grad_out = dice.array(out.shape, dtype)
    wanted = [(x.shape, dtype_of(dtype)) for x in (q, k, v)]
    return Call(
        headway.attention_varlen_backward, [grad_out, q, k, v, out, lse, *ends], options, wanted,
        reference.attention_varlen_backward, (4 * GRADIENT_TOLERANCE[dtype],) * 3, 8.0,
    )  # fmt: skip


def merging(dice: Dice) -> Call:
    """A call of merge_partials."""
    rank, layout, dtype = dice.one((4, 3, 2)), dice.one(("BHTD", "BTHD")), dice.dtype()
    b, h, t, d = dice.one((0, 1, 2)), dice.one((1, 3)), dice.size(), dice.one((0, 1, 8))
    shape = in_layout((b, h, t, d), rank, layout)
    rows = (b, h, t)[4 - rank :] if rank < 4 else (b, h, t)
    kind, parts = dice.one(("float32", "float64")), dice.one((1, 2, 3))
    outs = [dice.array(shape, dtype) for _ in range(parts)]
    lses = [dice.array(rows, kind) for _ in range(parts)]
    wanted = [(shape, dtype_of(dtype)), (rows, dtype_of(kind))]
    options = {} if layout == "BHTD" and dice.chance(0.5) else {"layout": layout}
    return Call(headway.merge_partials, [outs, lses], options, wanted, unbounded=(True, True))


def rotary(dice: Dice) -> Call:
    """A call of rotary_embedding."""
    rank, layout, dtype = dice.one((4, 3, 2)), dice.one(("BHTD", "BTHD")), dice.dtype()
    b, h, t, d = dice.one((0, 1, 2)), dice.one((1, 3)), dice.size(), dice.one((2, 4, 6, 16, 20))
    b, h = (b if rank == 4 else 1), (h if rank > 2 else 1)
    shape = in_layout((b, h, t, d), rank, layout)
    places: Any = dice.one((0, 3, -5, 2**40, dice.ints(t, -9, 1000)))
    if rank == 4 and dice.chance(0.2):
        places = np.array(dice.ints(b * t, 0, 99), np.int64).reshape(b, t)
    options: dict[str, Any] = {"layout": layout}
    if dice.chance(0.4):
        options["base"] = dice.one((1, 10000, 5e5))
    if dice.chance(0.4):
        options["interleaved"] = dice.chance(0.5)
    if dice.chance(0.3):
        options["rotary_dim"] = dice.one((2, d))
    if dice.chance(0.2):
        options["scaling"] = {"rope_type": "linear", "factor": 4.0}
    x = dice.array(shape, dtype)
    if dice.chance(0.2):
        options["out"] = np.full(shape, 7, dtype_of(dtype))
    return Call(
        headway.rotary_embedding, [x, places], options, [(shape, dtype_of(dtype))],
        reference.rotary_embedding, (TOLERANCE[dtype],), 1.0,
    )  # fmt: skip


def numbers(dice: Dice) -> Call:
    """A call of alibi_slopes or cost, or of a setting."""
    if dice.chance(0.3):
        heads = dice.one((1, 2, 3, 8, 12))
        return Call(headway.alibi_slopes, [heads], {}, [((heads,), np.dtype(np.float32))])
    if dice.chance(0.2):
        names = [name for name in headway.available_isas() for _ in range(2)]
        return Call(headway.set_isa, [dice.one(names)])
    if dice.chance(0.2):
        return Call(headway.release_memory, [])
    heads = dice.one((1, 2, 4))
    sizes: dict[str, Any] = {
        "batch": dice.size(least=1), "num_tokens": dice.size(least=1), "d_in": dice.size(least=1),
        "d_out": heads * dice.size(least=1), "num_heads": heads,
    }  # fmt: skip
    return Call(headway.cost, [], sizes)


def tracing(dice: Dice) -> Call:
    """A call of trace."""
    p = _problem(dice)
    return Call(headway.trace, p["arrays"], p["options"])


def may_compare(call: Call, dice: Dice) -> bool:
    """Whether the reference says what the numbers must be: not beside NaN and huge numbers."""
    first = call.args[0] if call.args else None
    narrow = isinstance(first, np.ndarray) and first.dtype.name in HALF
    pairs = isinstance(first, np.ndarray) and multiplies_pairs(first.dtype.name)
    return call.twin is not None and not dice.odd and not (pairs and not narrow)
