"""The backward pass around the ring: keys, values and their gradients travel together."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..arrays import (
    Array,
    ArrayInput,
    Integers,
    Numbers,
    Window,
    empty_result,
    result_shape,
    with_four_axes,
)
from ..gradient_calls import Saved, dtype_of_sinks
from ..gradients import attention_backward
from ._calls import Given, RingCall, agreed_backward, options_of, shift_of
from ._carrier import GRADIENT, HOME, Carrier, Message
from ._parts import parts
from ._record import Clock, RingStep
from ._ring import Block, Blocks
from ._waiting import ends_the_job, wait


def ring_attention_backward(
    grad_out: ArrayInput,
    q: ArrayInput,
    k: ArrayInput,
    v: ArrayInput,
    out: ArrayInput,
    lse: ArrayInput,
    comm: Any,
    *,
    grad_lse: ArrayInput | None = None,
    sinks_grad: bool = False,
    causal: bool = True,
    sharding: str = "zigzag",
    scale: float | None = None,
    window: Window | None = None,
    softcap: float | None = None,
    alibi_slopes: Numbers | None = None,
    sinks: Numbers | None = None,
    cu_seqlens: Integers | None = None,
    layout: str = "BHTD",
    record: list[RingStep] | None = None,
) -> tuple[Array, ...]:
    """Gradients of a loss by a rank's rows of q, k and v, and by sinks where asked for.

    Every rank calls it with its own rows and gets the gradients of its own rows: those of
    :func:`headway.attention_backward` on the whole sequence.

    Parameters
    ----------
    grad_out : array, (B, H, n, Dv)
        Gradient of the loss by the rank's rows of the result, in the dtype of q, or float32 for
        16-bit q.
    q, k, v : array
        The inputs of :func:`ring_attention` on this rank.
    out : array, (B, H, n, Dv)
        Its result, in the dtype of `grad_out`.
    lse : array, (B, H, n)
        The log-sum-exp that it returned with ``return_lse=True``.
    comm : mpi4py.MPI.Comm
        The ranks.
    grad_lse : array, (B, H, n), optional
        Gradient of the loss by `lse`. Default: the loss does not use it.
    sinks_grad : bool, default False
        Return the gradient by `sinks`, too.
    causal, sharding, scale, window, softcap, alibi_slopes, sinks, cu_seqlens, layout
        Those of the forward pass, as in :func:`ring_attention`.
    record : list, optional
        Takes a :class:`RingStep` for each of the W + 1 steps.

    Returns
    -------
    dq, dk, dv : ndarray
        Gradients of the rank's rows, in the shape, layout and dtype of q, k and v.
    dsinks : ndarray, (H,)
        Only with `sinks_grad`: over all rows of all ranks, the same bits on every rank; in the
        dtype that :func:`headway.attention_backward` gives.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As in :func:`ring_attention` and :func:`headway.attention_backward`, on every rank alike.

    Notes
    -----
    Formulas: :func:`headway.attention_backward`, each part with the log-sum-exp of the whole row.
    The gradient of a block follows it around the ring, one step behind; every rank adds its own
    share, and the last one sends the sum home. :func:`ring_traffic` has the bytes. Sums are kept
    in float32 (float64 for float64 inputs), added in the order of the steps, and rounded once:
    bits do not depend on threads or on the time that messages take. 16-bit inputs travel as they
    are and are widened to float32 where they are used.

    Memory of a rank beyond inputs and results: two blocks of keys and values, as in
    :func:`ring_attention`; at most six of their gradients, of ``B * Hkv * (D + Dv)`` numbers a row
    in the accumulation dtype (the sum of the rank's own block, the share of the block at hand and
    of the part at hand, those that arrive, leave and come home); two arrays like q in the
    accumulation dtype; 64 bytes for each row and head; for 16-bit inputs copies of q, `grad_out`,
    `out` and the block at hand in float32; what :func:`headway.attention_backward` takes.

    Sources: Liu et al., "Ring Attention" (2023, arXiv:2310.01889), section 3; Dao,
    "FlashAttention-2" (2023, arXiv:2307.08691), section 2.3.

    Examples
    --------
    >>> import numpy as np
    >>> from mpi4py import MPI
    >>> from headway.distributed import ring_attention, ring_attention_backward
    >>> q = k = np.zeros((2, 4), np.float32)  # two rows on each rank
    >>> v = np.array([[0.0], [1.0]], np.float32)
    >>> grad_out = np.ones((2, 1), np.float32)
    >>> out, lse = ring_attention(q, k, v, MPI.COMM_SELF, return_lse=True)
    >>> dq, dk, dv = ring_attention_backward(grad_out, q, k, v, out, lse, MPI.COMM_SELF)
    >>> dv
    array([[1.5],
           [0.5]], dtype=float32)
    """
    given = Given(causal, sharding, scale, window, softcap, alibi_slopes, sinks, cu_seqlens, layout)
    saved = grad_out, out, lse, grad_lse
    ring, rows = agreed_backward(q, k, v, comm, given, saved, sinks_grad, record)
    with ends_the_job(comm, "ring_attention_backward"):
        call = ring.call
        results = [
            empty_result(result_shape(call.rank, layout, *x.shape), x.dtype)
            for x in (call.q, call.k, call.v)
        ]
        gradients = _around(ring, rows, comm, Clock(record))
        with np.errstate(all="ignore"):  # a gradient may pass the range of 16 bits
            for result, gradient in zip(results, gradients, strict=True):
                with_four_axes(result, layout)[...] = gradient
            if sinks_grad:
                dsinks = _over_ranks(_sinks_gradient(ring, rows), comm)
                results.append(dsinks.astype(dtype_of_sinks(sinks, call)))
    return tuple(results)


class _Rows(NamedTuple):
    """This rank's queries and what belongs to them, in the accumulation dtype."""

    q: Array
    grad_out: Array
    out: Array
    lse: Array
    grad_lse: Array | None


class _Gradients:
    """The gradients of blocks on their way: those that this rank adds to, and its own."""

    def __init__(self, ring: RingCall) -> None:
        self._plan = ring.plan
        self._shapes = [(*x.shape[:2], x.shape[3]) for x in (ring.call.k, ring.call.v)]
        self._wide = np.dtype(ring.call.wide)
        self.own = self.zeros(ring.plan.rank)
        self._leaving: Block | None = None  # what this rank summed in the step before
        self._arriving: Block | None = None
        self._home: Block | None = None

    def zeros(self, owner: int) -> Block:
        """A gradient of the block of a rank."""
        rows = self._plan.rows(owner)
        dk, dv = (np.zeros((b, h, rows, d), self._wide) for b, h, d in self._shapes)
        return dk, dv

    def messages(self, step: int) -> tuple[list[Message], list[Message]]:
        """What leaves and arrives during a step."""
        plan = self._plan
        sends, receives = [], []
        going = plan.gradient_to(step - 1)
        if going is not None and self._leaving is not None:
            receiver, home = going
            sends = [Message(x, receiver, HOME if home else GRADIENT) for x in self._leaving]
        owner = plan.gradient_from(step)
        self._arriving = None if owner is None else self.zeros(owner)
        if self._arriving is not None:
            before = (plan.rank - 1) % plan.size
            receives += [Message(x, before, GRADIENT) for x in self._arriving]
        last = plan.gradient_home(step - 1)
        self._home = None if last is None else self.zeros(plan.rank)
        if self._home is not None and last is not None:
            receives += [Message(x, last, HOME) for x in self._home]
        return sends, receives

    def take(self, share: Block | None) -> None:
        """After a step: the arrived sum and this rank's share leave in the next one."""
        if self._home is not None:
            _add(self.own, self._home)
        if share is not None and self._arriving is not None:
            _add(share, self._arriving)
        self._leaving = share


def _add(total: Block, more: Block) -> None:
    with np.errstate(all="ignore"):
        for x, y in zip(total, more, strict=True):
            x += y


def _around(ring: RingCall, saved: Saved, comm: Any, clock: Clock) -> tuple[Array, Array, Array]:
    """All steps of one rank, and one more in which the last gradients come home."""
    plan, call = ring.plan, ring.call
    wide = np.dtype(call.wide)
    q, grad_out, out = (x.astype(wide, copy=False) for x in (call.q, saved.grad_out, saved.out))
    rows = _Rows(q, grad_out, out, saved.lse, saved.grad_lse)
    blocks, gradients = Blocks(ring), _Gradients(ring)
    dq = np.zeros(q.shape, wide)
    with Carrier(comm) as carrier:
        for step in range(plan.size + 1):
            sends, receives = blocks.messages(step + 1)
            more_sends, more_receives = gradients.messages(step)
            receives += more_receives
            clock.start()
            carrier.start([*sends, *more_sends], receives)
            owner = plan.at_hand(step)
            share = None
            if owner is not None:
                share = gradients.own if step == 0 else gradients.zeros(owner)
                _backward(ring, owner, blocks.at(step), rows, (dq, *share), clock)
            clock.computed()
            carrier.finish()
            gradients.take(share if step else None)
            clock.arrived(step, owner, sum(each.array.nbytes for each in receives))
    return (dq, *gradients.own)


def _backward(
    ring: RingCall,
    owner: int,
    block: Block,
    rows: _Rows,
    sums: tuple[Array, Array, Array],
    clock: Clock,
) -> None:
    """Add the gradients of the rank's queries and one block."""
    plan = ring.plan
    keys, values = (x.astype(rows.q.dtype, copy=False) for x in block)
    for part in parts(plan.segments(plan.rank), plan.segments(owner), plan.sight):
        shift = shift_of(ring, part)
        lse = rows.lse[:, :, part.queries]
        found = attention_backward(
            rows.grad_out[:, :, part.queries],
            rows.q[:, :, part.queries],
            keys[:, :, part.keys],
            values[:, :, part.keys],
            rows.out[:, :, part.queries],
            lse if shift is None else (lse - shift).astype(lse.dtype),
            grad_lse=None if rows.grad_lse is None else rows.grad_lse[:, :, part.queries],
            **options_of(ring, part),
        )
        clock.kernel()
        with np.errstate(all="ignore"):
            places = part.queries, part.keys, part.keys
            for total, place, share in zip(sums, places, found, strict=True):
                total[:, :, place] += share
        clock.join()


# Sinks --------------------------------------------------------------------------------------------


def _sinks_gradient(ring: RingCall, saved: Saved) -> Array:
    """(H,) float64: this rank's share, ``sum exp(sink - lse) * (grad_lse - grad_out . out)``."""
    assert ring.sinks is not None
    total = np.zeros(ring.sinks.size)
    for h, sink in enumerate(ring.sinks.tolist()):
        if sink == -np.inf:
            continue
        grad_out, out = (x[:, h].astype(np.float64) for x in (saved.grad_out, saved.out))
        with np.errstate(all="ignore"):
            pull = -(grad_out * out).sum(axis=-1)
            if saved.grad_lse is not None:
                pull += saved.grad_lse[:, h]
            total[h] = (np.exp(sink - saved.lse[:, h].astype(np.float64)) * pull).sum()
    return total


def _over_ranks(share: Array, comm: Any) -> Array:
    """The sum over all ranks, added in their order: the same bits on each of them."""
    if comm.size == 1:
        return share
    shares = np.empty((comm.size, share.size))
    wait([comm.Iallgather(np.ascontiguousarray(share), shares)])
    total: Array = np.zeros(share.shape)
    for each in shares:
        total = total + each
    return total
