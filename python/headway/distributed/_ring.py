"""Attention over the ranks of a communicator: keys and values travel, queries stay."""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy as np

from ..arrays import Array, ArrayInput, Integers, Numbers, Window, head_first
from ..calls import target_of
from ..functional import attention
from ._calls import Given, RingCall, agreed_forward, options_of, shift_of
from ._carrier import BLOCK, Carrier, Message
from ._joining import Joined
from ._parts import parts
from ._record import Clock, RingStep
from ._waiting import ends_the_job

Block = tuple[Array, Array]
"""Keys (B, Hkv, n, D) and values (B, Hkv, n, Dv) of one rank; C-contiguous where they travel."""


class Blocks:
    """The blocks of keys and values that a rank has: its own, one at hand, one that arrives."""

    def __init__(self, ring: RingCall) -> None:
        self._plan = ring.plan
        self.own: Block = ring.call.k, ring.call.v
        if ring.plan.size > 1:
            self.own = np.ascontiguousarray(ring.call.k), np.ascontiguousarray(ring.call.v)
        self._places: list[Block | None] = [None, None]

    def at(self, step: int) -> Block:
        """The block that is at hand in a step."""
        if step == 0:
            return self.own
        place = self._places[step % 2]
        assert place is not None
        return place

    def messages(self, step: int) -> tuple[list[Message], list[Message]]:
        """What leaves and what arrives for a step, during the one before it."""
        plan = self._plan
        arriving = plan.block_from(step)
        receives: list[Message] = []
        if arriving is not None:
            sender, owner = arriving
            block = self._empty(step, plan.rows(owner))
            receives = [Message(x, sender, BLOCK) for x in block]
        sends: list[Message] = []
        for receiver, owner in plan.blocks_to(step):
            block = self.own if owner == plan.rank else self.at(step - 1)
            sends += [Message(x, receiver, BLOCK) for x in block]
        return sends, receives

    def _empty(self, step: int, num_rows: int) -> Block:
        """A block to be filled, in the memory of that of two steps before if its size is right."""
        before = self._places[step % 2]
        if before is None or before[0].shape[2] != num_rows:
            self._places[step % 2] = before = None  # its memory is free before the new one is made
            k, v = (np.empty((*x.shape[:2], num_rows, x.shape[3]), x.dtype) for x in self.own)
            self._places[step % 2] = before = k, v
        return before


@overload
def ring_attention(
    q: ArrayInput,
    k: ArrayInput,
    v: ArrayInput,
    comm: Any,
    *,
    causal: bool = ...,
    sharding: str = ...,
    scale: float | None = ...,
    window: Window | None = ...,
    softcap: float | None = ...,
    alibi_slopes: Numbers | None = ...,
    sinks: Numbers | None = ...,
    cu_seqlens: Integers | None = ...,
    layout: str = ...,
    out: Array | None = ...,
    return_lse: Literal[False] = ...,
    record: list[RingStep] | None = ...,
) -> Array: ...


@overload
def ring_attention(
    q: ArrayInput,
    k: ArrayInput,
    v: ArrayInput,
    comm: Any,
    *,
    causal: bool = ...,
    sharding: str = ...,
    scale: float | None = ...,
    window: Window | None = ...,
    softcap: float | None = ...,
    alibi_slopes: Numbers | None = ...,
    sinks: Numbers | None = ...,
    cu_seqlens: Integers | None = ...,
    layout: str = ...,
    out: Array | None = ...,
    return_lse: bool,
    record: list[RingStep] | None = ...,
) -> Array | tuple[Array, Array]: ...


def ring_attention(
    q: ArrayInput,
    k: ArrayInput,
    v: ArrayInput,
    comm: Any,
    *,
    causal: bool = True,
    sharding: str = "zigzag",
    scale: float | None = None,
    window: Window | None = None,
    softcap: float | None = None,
    alibi_slopes: Numbers | None = None,
    sinks: Numbers | None = None,
    cu_seqlens: Integers | None = None,
    layout: str = "BHTD",
    out: Array | None = None,
    return_lse: bool = False,
    record: list[RingStep] | None = None,
) -> Array | tuple[Array, Array]:
    """Causal attention of a sequence whose rows are spread over the ranks of a communicator.

    Every rank calls it with its own rows, as :func:`shard` cuts them, and gets the result of its
    rows: those of :func:`headway.attention` on the whole sequence. Keys and values travel around
    the ring of ranks, in W - 1 steps, while the kernel works on the block at hand.

    Parameters
    ----------
    q : array, (B, H, n, D)
        Queries of the rank's n rows, in the dtypes, ranks and layouts of
        :func:`headway.attention`; n may differ between ranks, and may be 0.
    k, v : array, (B, Hkv, n, D) and (B, Hkv, n, Dv)
        Keys and values of the same rows.
    comm : mpi4py.MPI.Comm
        The ranks. A communicator of one computes without MPI.
    causal : bool, default True
        A query sees the keys up to its own position in the whole sequence only.
    sharding : {"zigzag", "contiguous", "striped"}, default "zigzag"
        Which rows the ranks hold, see :func:`positions`. "zigzag" gives every rank the same work.
    scale, window, softcap, alibi_slopes, sinks
        As in :func:`headway.attention`, by positions in the whole sequence: the same on every rank.
    cu_seqlens : (n + 1,) ints, optional
        Where packed sequences begin and end in the whole sequence, see
        :func:`headway.attention_varlen`: a query sees keys of its own sequence only. The ranks cut
        the packed tokens, wherever a sequence ends; `layout` says how they lie.
    layout : {"BHTD", "BTHD"}, default "BHTD"
        Order of the axes of q, k, v and the result.
    out : ndarray, optional
        Array that takes the result, as in :func:`headway.attention`.
    return_lse : bool, default False
        Return the log-sum-exp of each row, too.
    record : list, optional
        Takes a :class:`RingStep` for each of the W steps.

    Returns
    -------
    out : ndarray, (B, H, n, Dv)
        Context vectors of the rank's rows, in the layout and dtype of q.
    lse : ndarray, (B, H, n)
        Only with `return_lse`; as in :func:`headway.attention`.

    Raises
    ------
    TypeError, ValueError
        As in :func:`headway.attention`, on every rank, where one rank's arguments are wrong; or if
        dtypes, sizes or options differ between ranks, or a rank has not the rows that `sharding`
        gives it. The text names the ranks.
    MemoryError
        If the copies of the inputs do not fit in one rank's memory: on every rank.

    Notes
    -----
    Before the ring one allreduce of ``8 * (65 + W)`` bytes compares the calls. What fails on one
    rank after that ends the job with one line on stderr, for the others would wait forever. So does
    ``HEADWAY_RING_TIMEOUT`` (seconds) where it is set and a rank waits longer than that for
    messages. ``mpiexec`` ends the job by itself when a rank is killed; start programs as ``python
    -m mpi4py program.py``, and it does for an exception outside of this call, too.

    Parts are joined by their log-sum-exps, in float32 (float64 for float64 inputs), and rounded
    once: the result is that of one machine up to rounding. Bits do not depend on threads or on the
    time that messages take; they do depend on the number of ranks and on the sharding. Sinks are
    joined once, at the end.

    A block goes to the ranks that see a key of it, and past the others; a step without such a block
    costs nothing. :func:`ring_traffic` has the bytes. With "striped" and W ranks the slopes of
    ALiBi count W times, and each part's log-sum-exp is corrected by a constant for each head.

    Memory of a rank beyond inputs and result: two blocks of keys and values (the one at hand and
    the one that arrives), of ``B * Hkv * (D + Dv) * itemsize`` bytes a row; one result in the
    accumulation dtype for the part at hand, and another one for 16-bit inputs; 64 bytes for each
    row and head; what :func:`headway.attention` takes. In "BTHD", and where they are not
    contiguous, the rank's own k and v are copied before they leave.

    MPI has to be started with ``THREAD_SERIALIZED`` or more, which is mpi4py's default, for
    messages to move while the kernel works: a thread of the call looks after them. Tags 26701 to
    26703 of `comm` are used.

    Sources. The ring: Liu et al., "Ring Attention with Blockwise Transformers for Near-Infinite
    Context" (2023, arXiv:2310.01889). Shardings: :func:`positions`. Joining: Dao et al.,
    "FlashAttention" (2022, arXiv:2205.14135), section 3.1.

    Examples
    --------
    A program for any number of ranks, ``mpiexec -n 4 python -m mpi4py program.py``:

    >>> import numpy as np
    >>> from mpi4py import MPI
    >>> from headway.distributed import ring_attention, shard
    >>> comm = MPI.COMM_WORLD
    >>> x = np.zeros((2, 10, 4), np.float32)  # (H, T, D)
    >>> q = shard(x, comm.rank, comm.size)
    >>> out, lse = ring_attention(q, q, q, comm, return_lse=True)
    >>> out.shape == q.shape, lse.shape == q.shape[:2]
    (True, True)
    """
    given = Given(causal, sharding, scale, window, softcap, alibi_slopes, sinks, cu_seqlens, layout)
    ring = agreed_forward(q, k, v, comm, given, out, return_lse, record)
    with ends_the_job(comm, "ring_attention"):
        result, place, filled, _ = target_of(ring.call, out, layout)
        wide = np.dtype(ring.call.wide)
        contexts = filled if filled.dtype == wide else np.empty(filled.shape, wide)
        joined = _around(ring, Joined(contexts, contexts.shape[2]), comm, Clock(record))
        if contexts is not place:
            with np.errstate(all="ignore"):  # a context may pass the range of 16 bits
                place[...] = contexts
    if not return_lse:
        return result
    return result, head_first(joined.lse.astype(wide), ring.call.rank)


def _around(ring: RingCall, joined: Joined, comm: Any, clock: Clock) -> Joined:
    """All steps of one rank."""
    plan = ring.plan
    blocks = Blocks(ring)
    with Carrier(comm) as carrier:
        for step in range(plan.size):
            sends, receives = blocks.messages(step + 1)
            clock.start()
            carrier.start(sends, receives)
            owner = plan.at_hand(step)
            if owner is not None:
                _attend(ring, owner, blocks.at(step), joined, clock)
            clock.computed()
            carrier.finish()
            clock.arrived(step, owner, sum(each.array.nbytes for each in receives))
    if ring.sinks is not None:
        joined.add_sinks(ring.sinks)
    joined.finish()
    return joined


def _attend(ring: RingCall, owner: int, block: Block, joined: Joined, clock: Clock) -> None:
    """Attention of the rank's queries to one block."""
    plan, q = ring.plan, ring.call.q
    keys, values = block
    for part in parts(plan.segments(plan.rank), plan.segments(owner), plan.sight):
        contexts, lse = attention(
            q[:, :, part.queries],
            keys[:, :, part.keys],
            values[:, :, part.keys],
            out=joined.place_for(part.queries),
            return_lse=True,
            **options_of(ring, part),
        )
        clock.kernel()
        shift = shift_of(ring, part)
        joined.add(part.queries, contexts, lse if shift is None else lse + shift)
        clock.join()
