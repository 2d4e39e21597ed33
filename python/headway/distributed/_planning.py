"""What attention over many ranks would take: a model of time, traffic and memory."""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np

from ..arrays import Window
from ..checks import check_flag
from ..cost_record import SIZES
from ..options import FAR, check_window
from ..weights import checked_dtype, checked_head_counts, checked_size
from ._model import (
    Machine,
    PassSum,
    Sizes,
    backward_row,
    decode_step,
    forward_row,
    largest_tokens,
    ring_steps,
    works,
)
from ._pairs import rows_of_ranks
from ._plan_record import Largest, RingPlan
from ._sharding import check_sharding

MOST_TOKENS = 2**31  # products of two positions stay below 2**62
MOST_RANKS = 4096
MOST = 2**31  # of everything else that is counted
MOST_BYTES = 2**62  # of all keys and values and their gradients: sums are kept in int64
RATES = 1e-3, 1e24  # per second
LONGEST = 1e9  # seconds of latency
_LESS = "plan a smaller problem"


def plan(
    *,
    num_tokens: int,
    num_heads: int,
    head_dim: int,
    num_ranks: int,
    flop_rate: float,
    bandwidth: float,
    num_kv_heads: int | None = None,
    v_head_dim: int | None = None,
    batch: int = 1,
    dtype: Any = "float32",
    sharding: str = "zigzag",
    causal: bool = True,
    window: Window | None = None,
    latency: float = 0.0,
    backward_flop_rate: float | None = None,
    memory_bandwidth: float | None = None,
    memory: int | None = None,
) -> RingPlan:
    """Predict time, traffic and memory of attention over the ranks of a ring.

    Nothing is run and no other package is needed. The model::

        work of a step     2 * (D + Dv) * B * H floating point operations for each visible pair,
                           2 * (3 * D + 2 * Dv) * B * H in the backward pass: counted exactly
        bytes of a step    B * Hkv * (D + Dv) numbers for each row of the block that is sent on
        time of a step     max(work / flop_rate, latency + bytes / bandwidth), of the slowest rank
        time of a pass     the sum over its steps, W at most

    Parameters
    ----------
    num_tokens : int
        Tokens T of a sequence, on all ranks together; at most 2**31.
    num_heads, head_dim : int
        Query heads H, and numbers per token of a query or key head, D.
    num_ranks : int
        Ranks W, at most 4,096.
    flop_rate : float
        Floating point operations of a rank per second, as measured with one rank; a multiply-add
        is two.
    bandwidth : float
        Bytes per second that a rank sends, while it receives as many.
    num_kv_heads : int, optional
        Key and value heads Hkv, a divisor of num_heads; default num_heads.
    v_head_dim : int, optional
        Numbers per token of a value head, Dv; default head_dim.
    batch : int, default 1
        Sequences B.
    dtype : dtype, default "float32"
        float32, float64, float16 or bfloat16, also by name.
    sharding : {"zigzag", "contiguous", "striped"}, default "zigzag"
        Which rows a rank holds, see :func:`positions`.
    causal : bool, default True
        Whether a query sees no later key.
    window : int or (left, right), optional
        As in :func:`headway.attention`.
    latency : float, default 0
        Seconds from one rank to the next, whatever the size.
    backward_flop_rate : float, optional
        That of the backward pass; default `flop_rate`.
    memory_bandwidth : float, optional
        Bytes per second that a rank reads; decoding takes the longer of reading and computing.
    memory : int, optional
        Bytes that a rank may use: the largest number of tokens is then part of the plan.

    Returns
    -------
    RingPlan
        Numbers; ``print`` shows them as tables.

    Raises
    ------
    TypeError
        If an argument is of the wrong kind.
    ValueError
        If one is out of range, the heads do not fit, or the sharding is unknown. Sizes go up to
        2**31, rates from 1e-3 to 1e24, the bytes of all keys and values, with their gradients, and
        `memory` to 2**62.

    Notes
    -----
    Sources. The ring, and the block size from which its communication hides: Liu et al., "Ring
    Attention with Blockwise Transformers" (2023, arXiv:2310.01889), section 3. Why contiguous
    shares take twice the time under a causal mask: Brandon et al., "Striped Attention" (2023,
    arXiv:2311.09431). Zigzag shares and decoding by moving queries: Yang et al., "Context
    Parallelism for Scalable Million-Token Inference" (2024, arXiv:2411.01783).

    With work ``a * n * n`` and bytes ``b * n`` for n rows of a rank, communication hides from
    ``n = (b + sqrt(b * b + 4 * a * latency)) / (2 * a)`` on, a and b in seconds. Under a
    causal mask half of the pairs of a step are visible, with contiguous shares those of step 0.

    Time: some seconds with thousands of ranks. Memory: a few arrays of W numbers.

    Examples
    --------
    >>> from headway.distributed import plan
    >>> sizes = dict(num_tokens=131072, num_heads=32, num_kv_heads=8, head_dim=128, num_ranks=8)
    >>> one = plan(**sizes, dtype="bfloat16", flop_rate=1e12, bandwidth=12.5e9, latency=5e-6)
    >>> one.forward.flops == 4 * 128 * 32 * 131072 * 131073 // 2
    True
    >>> one.forward.sent_bytes == 7 * 16384 * 8 * 256 * 2
    True
    >>> f"{one.forward.seconds:.1f} s, {one.forward.efficiency:.0%}, {one.forward.hidden_tokens}"
    '17.6 s, 100%, 52'
    """
    heads, kv_heads = checked_head_counts(num_heads, num_kv_heads)
    _at_most("num_heads", heads, MOST, _LESS)
    width = _at_most("head_dim", head_dim, MOST, _LESS)
    v_width = width if v_head_dim is None else _at_most("v_head_dim", v_head_dim, MOST, _LESS)
    tokens = _at_most("num_tokens", num_tokens, MOST_TOKENS, "split the sequence")
    ranks = _at_most("num_ranks", num_ranks, MOST_RANKS, "plan with fewer, faster ranks")
    entries = _at_most("batch", batch, MOST, _LESS)
    name = dtype if isinstance(dtype, str) and dtype in SIZES else checked_dtype(dtype).name
    kind = check_sharding(sharding)
    check_flag("causal", causal)
    left, right = check_window(window, bool(causal))
    back = backward_flop_rate
    rates = Machine(
        _rate("flop_rate", flop_rate),
        _rate("backward_flop_rate", flop_rate if back is None else back),
        _rate("bandwidth", bandwidth),
        _seconds("latency", latency),
        None if memory_bandwidth is None else _rate("memory_bandwidth", memory_bandwidth),
    )
    budget = None if memory is None else _at_most("memory", memory, MOST_BYTES, _LESS)

    wide = 8 if name == "float64" else 4
    sizes = Sizes(entries, heads, kv_heads, width, v_width, SIZES[name], wide)
    moved = tokens * (sizes.kv_bytes + sizes.gradient_bytes)
    if moved > MOST_BYTES:
        raise ValueError(
            f"num_tokens: expected keys and values of at most {MOST_BYTES:,} bytes, their "
            f"gradients included, got {moved:,}; {_LESS}"
        )
    rows = rows_of_ranks(ranks, tokens, kind)
    full = None
    if left == FAR and right in (0, FAR):  # a window has no full steps
        full = (0.5 if causal else 1.0, 0.5 if causal and kind != "contiguous" else 1.0)
    passes = [PassSum(work, rates, rows) for work in works(sizes, rates, full)]
    for number, step in enumerate(ring_steps(rows, left, right)):
        for each in passes:
            each.add(number, step)
    forward, backward = (each.result() for each in passes)
    share = -(-tokens // ranks)
    largest = None
    if budget is not None:
        held = forward_row(sizes), backward_row(sizes), sizes.kv_bytes
        largest = Largest(*(largest_tokens(row, budget, ranks) for row in held))
    return RingPlan(
        batch=entries,
        num_tokens=tokens,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=width,
        v_head_dim=v_width,
        dtype=name,
        num_ranks=ranks,
        sharding=kind,
        causal=bool(causal),
        window=(-1 if left == FAR else left, -1 if right == FAR else right),
        flop_rate=rates.flop_rate,
        backward_flop_rate=rates.backward_flop_rate,
        bandwidth=rates.bandwidth,
        latency=rates.latency,
        memory_bandwidth=rates.memory_bandwidth,
        memory=budget,
        forward=forward,
        backward=backward,
        decode=decode_step(share, ranks, sizes, rates),
        largest=largest,
    )


def _at_most(name: str, value: Any, most: int, fix: str) -> int:
    size = checked_size(name, value)
    if size > most:
        raise ValueError(f"{name}: expected at most {most:,}, got {size:,}; {fix}")
    return size


def _number(name: str, value: Any, wanted: str, fix: str) -> float:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        got = f"{value!r} ({type(value).__name__})"
        raise TypeError(f"{name}: expected {wanted}, got {got}; {fix}")
    try:
        return float(value)
    except OverflowError:  # a fraction or an int beyond the range of a float
        return math.inf


def _rate(name: str, value: Any) -> float:
    least, most = RATES
    wanted, fix = f"a number from {least:g} to {most:g}, per second", f"pass e.g. {name}=1e9"
    rate = _number(name, value, wanted, fix)
    if not least <= rate <= most:
        raise ValueError(f"{name}: expected {wanted}, got {rate}; {fix}")
    return rate


def _seconds(name: str, value: Any) -> float:
    wanted, fix = f"seconds, a number from 0 to {LONGEST:g}", f"pass e.g. {name}=5e-6"
    seconds = _number(name, value, wanted, fix)
    if not 0.0 <= seconds <= LONGEST:
        raise ValueError(f"{name}: expected {wanted}, got {seconds}; {fix}")
    return seconds
