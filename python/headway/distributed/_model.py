"""The model behind :func:`plan`: what one rank computes, sends and holds in every step.

In every step of the ring a rank attends to the keys at hand and meanwhile sends them on: a step
takes the longer of both, for the slowest rank, since a rank waits for its neighbour. Arithmetic is
in whole numbers up to the division by a rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ..arrays import Array
from ._pairs import Rows, step_pairs
from ._plan_record import Decode, Pass, PlannedStep
from ._sharding import rows_of


class Sizes(NamedTuple):
    """Of the problem, all ranks together, but for its tokens."""

    batch: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    item: int  # bytes of a number
    wide: int  # bytes of a number that sums are kept in

    @property
    def width(self) -> int:
        """Numbers per token of one key head and one value head."""
        return self.head_dim + self.v_head_dim

    @property
    def kv_bytes(self) -> int:
        """Of the keys and values of one position, all sequences and heads."""
        return self.batch * self.num_kv_heads * self.width * self.item

    @property
    def gradient_bytes(self) -> int:
        """Of their gradients, which are summed up in the wider type."""
        return self.batch * self.num_kv_heads * self.width * self.wide

    @property
    def forward_flops(self) -> int:
        """Of one pair of positions, all sequences and heads: ``q.k`` and ``weight * v``."""
        return 2 * self.batch * self.num_heads * self.width

    @property
    def backward_flops(self) -> int:
        """Of a pair: scores anew, dS from dO and v, then dV, dK and dQ."""
        products = 3 * self.head_dim + 2 * self.v_head_dim
        return 2 * self.batch * self.num_heads * products


class Machine(NamedTuple):
    """A rank: operations, bytes and seconds."""

    flop_rate: float
    backward_flop_rate: float
    bandwidth: float
    latency: float
    memory_bandwidth: float | None


class Step(NamedTuple):
    """A step of all ranks: what they compute, and how many rows of others leave meanwhile."""

    pairs: Array  # (W,) int64: visible pairs of the keys at hand
    blocks: Array  # (W,) int64: rows of keys and values that a rank sends for the next step
    gradients: Array  # (W,) int64: rows whose gradients a rank sends, which it summed a step before


def ring_steps(rows: Rows, left: int, right: int) -> Iterator[Step]:
    """The steps of a ring of W ranks; in step W the last gradients go home.

    In step t rank r works on the block of rank r - t, if it sees a key of it. The block comes from
    rank r - 1 or, where that does not need it, from its owner.
    """
    ranks = len(rows.first)
    own = rows.per_rank
    nothing = np.zeros(ranks, dtype=np.int64)
    pairs, summed = step_pairs(rows, 0, left, right), nothing
    for step in range(ranks + 1):
        blocks, following = nothing, nothing
        if step + 1 < ranks:
            following = step_pairs(rows, step + 1, left, right)
            needed = following > 0
            held = np.roll(pairs > 0, 1) if step else needed  # by rank r - 1
            owner = (np.arange(ranks) - step - 1) % ranks
            sender = np.where(held, np.arange(ranks) - 1, owner) % ranks
            sizes = np.where(needed, own[owner], 0)
            blocks = np.bincount(sender, sizes, ranks).astype(np.int64)
        yield Step(pairs, blocks, summed)
        summed = np.where(pairs > 0, np.roll(own, step), 0) if step else nothing
        pairs = following


class Work(NamedTuple):
    """What a pass costs: operations of a pair and of a second, bytes of what moves for a row."""

    flops: int
    flop_rate: float
    block_bytes: int
    gradient_bytes: int
    row_memory: int
    full: tuple[float, float] | None  # pairs of the first and of a later step by ``rows * rows``


class PassSum:
    """The steps of a pass, one after another, and their sums."""

    def __init__(self, work: Work, machine: Machine, rows: Rows) -> None:
        self._work, self._machine, self._rows = work, machine, rows.per_rank
        self._sent = np.zeros_like(self._rows)
        self._total = self._critical = 0
        self._compute = self._communication = self._seconds = 0.0
        self._steps: list[PlannedStep] = []

    def add(self, number: int, step: Step) -> None:
        """The next step."""
        work, machine = self._work, self._machine
        sent = step.blocks * work.block_bytes + step.gradients * work.gradient_bytes
        pairs, most = int(step.pairs.max()), int(sent.max())
        compute = pairs * work.flops / work.flop_rate
        wire = most / machine.bandwidth + machine.latency if most else 0.0
        self._sent += sent
        self._total += int(step.pairs.sum()) * work.flops
        self._critical += pairs * work.flops
        self._compute += compute
        self._communication += wire
        self._seconds += max(compute, wire)
        if not pairs and not most:
            return
        new = PlannedStep(number, number, pairs, most, compute, wire, max(compute, wire))
        if self._steps and self._steps[-1][1:] == (number - 1, *new[2:]):
            new = new._replace(first=self._steps.pop().first)
        self._steps.append(new)

    def result(self) -> Pass:
        """All of it."""
        work, machine, ranks = self._work, self._machine, len(self._rows)
        even = self._total / ranks / work.flop_rate
        hidden = None
        if work.full is not None:
            moved = work.block_bytes, work.block_bytes + work.gradient_bytes
            rates = work.flops / work.flop_rate, machine.bandwidth, machine.latency
            steps = list(zip(work.full, moved, strict=True))[: max(ranks - 1, 0)]
            hidden = max((_hidden_rows(*step, *rates) for step in steps), default=1)
        return Pass(
            flops=self._total,
            critical_flops=self._critical,
            sent_bytes=int(self._sent.max()),
            memory_bytes=work.row_memory * int(self._rows.max()),
            compute_seconds=self._compute,
            communication_seconds=self._communication,
            seconds=self._seconds,
            exposed_seconds=max(self._seconds - self._compute, 0.0),
            efficiency=even / self._seconds if self._seconds else 1.0,
            hidden_tokens=hidden,
            steps=tuple(self._steps),
        )


def _hidden_rows(
    full: float, moved: int, pair_seconds: float, bandwidth: float, latency: float
) -> int:
    """The least n with ``work * n * n >= wire * n + latency``: Ring Attention, section 3."""
    work, wire = full * pair_seconds, moved / bandwidth
    root = math.sqrt(wire * wire + 4.0 * work * latency)
    return max(math.ceil((wire + root) / (2.0 * work)), 1)


def works(sizes: Sizes, machine: Machine, full: tuple[float, float] | None) -> tuple[Work, Work]:
    """Of the forward pass, in which K and V travel, and of the backward pass, with gradients."""
    kv, back = sizes.kv_bytes, machine.backward_flop_rate
    return (
        Work(sizes.forward_flops, machine.flop_rate, kv, 0, forward_row(sizes), full),
        Work(sizes.backward_flops, back, kv, sizes.gradient_bytes, backward_row(sizes), full),
    )


# Memory -------------------------------------------------------------------------------------------


def forward_row(sizes: Sizes) -> int:
    """Bytes of a row in :func:`ring_attention`: inputs and result, two blocks, sums, lse."""
    width, wide = sizes.head_dim + sizes.v_head_dim, sizes.wide
    sums = 1 + (sizes.item < wide)  # of the part at hand; of all where they are not the result
    each = width * sizes.item + (sums * sizes.v_head_dim + 1) * wide + 64
    return sizes.batch * sizes.num_heads * each + 3 * sizes.kv_bytes


def backward_row(sizes: Sizes) -> int:
    """Bytes of a row in :func:`ring_attention_backward`, as its notes list them.

    Of q: q, grad_out, out, lse, dq and two sums like it. Of k and v: they, their results and two
    blocks, and six gradients. 16-bit inputs and the block at hand are copied.
    """
    width, wide = sizes.head_dim + 2 * sizes.v_head_dim, sizes.wide
    copies = sizes.item < wide
    sums = (1 + 2 * sizes.head_dim + copies * width) * wide + 64
    each = (width + sizes.head_dim) * sizes.item + sums
    moved = 4 * sizes.kv_bytes + (6 + copies) * sizes.gradient_bytes
    return sizes.batch * sizes.num_heads * each + moved


def largest_tokens(row_bytes: int, memory: int, ranks: int) -> int:
    """The most tokens of which no rank holds more rows than fit: every sharding is even enough."""
    return memory // row_bytes * ranks


# Decoding -----------------------------------------------------------------------------------------


def decode_step(rows: int, ranks: int, sizes: Sizes, machine: Machine) -> Decode:
    """One query of each sequence over shares of at most `rows` tokens (pass-Q).

    The messages are those of :class:`ShardedKVCache`: the allreduce that compares the calls, then
    two exchanges, each of ``log2(W)`` rounds.
    """
    flops = sizes.forward_flops * rows
    read = sizes.kv_bytes * rows
    queries = sizes.batch * sizes.num_heads
    sent = max(reduction_bytes(queries, rank, ranks, sizes) for rank in (0, ranks - 1))
    rounds = 3 * math.ceil(math.log2(ranks)) if ranks > 1 else 0
    compute = flops / machine.flop_rate
    if machine.memory_bandwidth is not None:
        compute = max(compute, read / machine.memory_bandwidth)
    wire = sent / machine.bandwidth + rounds * machine.latency
    return Decode(flops, read, sent, read, compute, wire, compute + wire)


def reduction_bytes(queries: int, rank: int, ranks: int, sizes: Sizes) -> int:
    """What a rank sends for the partial results of so many (sequence, head, query).

    They are cut into W parts. A rank sends each other rank its part, contexts and lse as they are
    summed up, joins those that come, and sends the joined part, contexts rounded, to all others.
    """
    part = rows_of(rank, ranks, queries, "contiguous")
    partial = (sizes.v_head_dim + 1) * sizes.wide
    joined = sizes.v_head_dim * sizes.item + sizes.wide
    return (queries - part) * partial + (ranks - 1) * part * joined
