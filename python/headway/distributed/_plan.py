"""Who sends what to whom, in which step: the way of every block of keys around the ring.

In step t rank r works on the block of rank r - t (modulo W), if it needs it. The block comes from
rank r - 1, which has it in step t - 1, or from its owner where rank r - 1 does not need it: ranks
out of reach are skipped. Its gradient goes the same way one step later, and from the last rank of
every run of neighbours home to the owner.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ..arrays import ArrayInput, Integers, Window
from ..checks import check_flag
from ..cuts import check_offsets
from ..options import check_window
from ._parts import Sight, sees
from ._sharding import Segment, _size, check_sharding, rows_of, segments


class Plan:
    """The steps of one rank."""

    def __init__(self, rank: int, size: int, num_tokens: int, sharding: str, sight: Sight) -> None:
        self.rank, self.size, self.sight = rank, size, sight
        self._tokens, self._sharding = num_tokens, sharding if size > 1 else "contiguous"
        self._rows = lru_cache(maxsize=None)(self._find_rows)
        self.needs = lru_cache(maxsize=None)(self._find_needs)

    def rows(self, rank: int) -> int:
        """How many rows a rank holds."""
        return sum(each.length for each in self.segments(rank))

    def segments(self, rank: int) -> tuple[Segment, ...]:
        """The rows that a rank holds."""
        return self._rows(rank)

    def _find_rows(self, rank: int) -> tuple[Segment, ...]:
        return segments(rank, self.size, self._tokens, self._sharding)

    def _find_needs(self, rank: int, owner: int) -> bool:
        return sees(self._rows(rank), self._rows(owner), self.sight)

    def at_hand(self, step: int) -> int | None:
        """Whose block this rank works on in a step; None where it needs none."""
        owner = (self.rank - step) % self.size
        return owner if 0 <= step < self.size and self.needs(self.rank, owner) else None

    # Keys and values --------------------------------------------------------------------------

    def block_from(self, step: int) -> tuple[int, int] | None:
        """(sender, owner) of the block that arrives for a step, during the one before it."""
        owner = self.at_hand(step)
        if owner is None or step < 1:
            return None
        before = (self.rank - 1) % self.size
        return (before if step == 1 or self.needs(before, owner) else owner), owner

    def blocks_to(self, step: int) -> list[tuple[int, int]]:
        """(receiver, owner) of the blocks that leave this rank for a step."""
        found = []
        if 1 <= step < self.size:
            receiver = (self.rank + step) % self.size
            before = (receiver - 1) % self.size
            if self.needs(receiver, self.rank) and (step == 1 or not self.needs(before, self.rank)):
                found.append((receiver, self.rank))
            owner, after = (self.rank + 1 - step) % self.size, (self.rank + 1) % self.size
            if step > 1 and self.needs(after, owner) and self.needs(self.rank, owner):
                found.append((after, owner))
        return found

    # Gradients --------------------------------------------------------------------------------

    def gradient_from(self, step: int) -> int | None:
        """Owner of the block whose gradient rank - 1 hands over during a step."""
        owner = self.at_hand(step)
        before = (self.rank - 1) % self.size
        return owner if owner is not None and step > 1 and self.needs(before, owner) else None

    def gradient_to(self, step: int) -> tuple[int, bool] | None:
        """(receiver, is it the owner?) of the gradient that this rank summed in a step.

        It leaves during the next step.
        """
        owner = self.at_hand(step)
        if owner is None or step < 1:
            return None
        after = (self.rank + 1) % self.size
        ends = step + 1 == self.size or not self.needs(after, owner)
        return (owner, True) if ends else (after, False)

    def gradient_home(self, step: int) -> int | None:
        """The rank that summed the gradient of this rank's own block, and ends a run, in a step."""
        if not 1 <= step < self.size:
            return None
        last, after = (self.rank + step) % self.size, (self.rank + step + 1) % self.size
        if not self.needs(last, self.rank):
            return None
        ends = step + 1 == self.size or not self.needs(after, self.rank)
        return last if ends else None


class Traffic(NamedTuple):
    """Bytes that each rank sends and receives, in messages between two ranks.

    Attributes
    ----------
    sent, received : list of int
        One number for each rank.
    """

    sent: list[int]
    received: list[int]


def ring_traffic(
    num_tokens: int,
    size: int,
    *,
    num_kv_heads: int,
    head_dim: int,
    v_head_dim: int | None = None,
    batch: int = 1,
    dtype: Any = np.float32,
    causal: bool = True,
    window: Window | None = None,
    cu_seqlens: Integers | ArrayInput | None = None,
    sharding: str = "zigzag",
    backward: bool = False,
) -> Traffic:
    """The bytes that :func:`ring_attention` sends, exactly, or its backward pass.

    Parameters
    ----------
    num_tokens : int
        Tokens T of the whole sequence.
    size : int
        Number of ranks W.
    num_kv_heads, head_dim, v_head_dim, batch : int
        Hkv, D, Dv (default D) and B of the call.
    dtype : dtype, default numpy.float32
        That of q, k and v.
    causal, window, cu_seqlens, sharding
        As in :func:`ring_attention`; they decide which ranks need which block.
    backward : bool, default False
        Count :func:`ring_attention_backward`, in which gradients travel, too.

    Returns
    -------
    Traffic
        ``sent`` and ``received``, a list each with one number of bytes for each rank. The small
        agreement before a call is not in it: one allreduce of ``8 * (65 + W)`` bytes, and for the
        gradient of sinks an allgather of 8 H bytes.

    Raises
    ------
    TypeError, ValueError
        As in :func:`ring_attention`.

    Notes
    -----
    With n_s the rows of rank s, a row of k and v has ``m = B * Hkv * (D + Dv)`` numbers, and rank r
    receives ``m * itemsize * sum(n_s)`` over the other ranks s of which it sees a key. Causal,
    without a window, that is all of them for "zigzag" and "striped" (where T is at least 2 W), and
    those before it for "contiguous".

    Backward, a gradient of ``m * wide * n_s`` bytes (wide: 8 for float64, else 4) moves as often as
    its block: to each rank that works on it after the first of a run of neighbours, and from the
    last one of the run home.

    Examples
    --------
    >>> from headway.distributed import ring_traffic
    >>> ring_traffic(1000, 4, num_kv_heads=8, head_dim=64).received
    [3072000, 3072000, 3072000, 3072000]
    >>> ring_traffic(1000, 4, num_kv_heads=8, head_dim=64, sharding="contiguous").received
    [0, 1024000, 2048000, 3072000]
    >>> ring_traffic(1000, 4, num_kv_heads=8, head_dim=64, window=100, sharding="contiguous").sent
    [1024000, 1024000, 1024000, 0]
    """
    name = check_sharding(sharding)
    check_flag("causal", causal)
    check_flag("backward", backward)
    fix = "pass the sizes of the call"
    tokens, ranks = _size("num_tokens", num_tokens, 0, fix), _size("size", size, 1, fix)
    width = _size("head_dim", head_dim, 0, fix)
    width += width if v_head_dim is None else _size("v_head_dim", v_head_dim, 0, fix)
    numbers = _size("batch", batch, 0, fix) * _size("num_kv_heads", num_kv_heads, 0, fix) * width
    item = np.dtype(dtype).itemsize
    wide = max(item, 4)
    cuts = None if cu_seqlens is None else check_offsets("cu_seqlens", cu_seqlens, tokens, "q")
    sight = Sight(*check_window(window, bool(causal)), False, cuts)
    sent, received = [0] * ranks, [0] * ranks
    for rank in range(ranks):
        plan = Plan(rank, ranks, tokens, name, sight)
        for step in range(1, ranks):
            arriving = plan.block_from(step)
            if arriving is not None:
                sender, owner = arriving
                moved = numbers * item * rows_of(owner, ranks, tokens, name)
                sent[sender] += moved
                received[rank] += moved
            leaving = plan.gradient_to(step) if backward else None
            if leaving is not None:
                owner = (rank - step) % ranks
                moved = numbers * wide * rows_of(owner, ranks, tokens, name)
                sent[rank] += moved
                received[leaving[0]] += moved
    return Traffic(sent, received)
