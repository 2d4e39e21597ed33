"""What attention over many ranks takes, as numbers: time, traffic and memory of each rank."""

from __future__ import annotations

from typing import Any, NamedTuple


class PlannedStep(NamedTuple):
    """Steps of a ring that take the same, from `first` to `last`; step 0 needs no other rank."""

    first: int
    last: int
    pairs: int
    """Visible (query, key) pairs of the rank that has most, for each head and batch entry."""
    sent_bytes: int
    """What the rank that sends most sends while it computes."""
    compute_seconds: float
    communication_seconds: float
    seconds: float


class Pass(NamedTuple):
    """A forward or a backward pass around the ring.

    Attributes
    ----------
    flops : int
        Floating point operations of all ranks: two for each multiply-add of a visible pair.
    critical_flops : int
        The most that one rank has in each step, summed over the steps; ``flops / num_ranks`` where
        every rank has the same.
    sent_bytes : int
        Bytes that the rank sends which sends most; the same number comes in.
    memory_bytes : int
        Bytes of the rank that holds most, inputs and results included.
    compute_seconds, communication_seconds, seconds : float
        Of computing alone, of communication alone, and of both, which overlap in every step.
    exposed_seconds : float
        What communication adds: ``seconds - compute_seconds``.
    efficiency : float
        Time of the same work without communication, shared evenly, as a part of `seconds`.
    hidden_tokens : int or None
        Tokens of a rank from which communication hides behind compute in every step that has both;
        None where a window ends that: there both grow alike.
    steps : tuple of PlannedStep
        All steps in order, equal neighbours joined.
    """

    flops: int
    critical_flops: int
    sent_bytes: int
    memory_bytes: int
    compute_seconds: float
    communication_seconds: float
    seconds: float
    exposed_seconds: float
    efficiency: float
    hidden_tokens: int | None
    steps: tuple[PlannedStep, ...]


class Decode(NamedTuple):
    """One new token of each sequence over a sharded cache that holds `num_tokens` of each.

    Attributes
    ----------
    flops, read_bytes : int
        Of the rank with the longest share: operations, and bytes of keys and values.
    sent_bytes : int
        Bytes that a rank sends for the partial results; the same number comes in.
    memory_bytes : int
        Bytes of the longest share of the cache.
    compute_seconds, communication_seconds, seconds : float
        They do not overlap: ``seconds`` is their sum.
    """

    flops: int
    read_bytes: int
    sent_bytes: int
    memory_bytes: int
    compute_seconds: float
    communication_seconds: float
    seconds: float


class Largest(NamedTuple):
    """The most tokens of a sequence for which `memory` bytes of a rank suffice."""

    forward: int
    backward: int
    decode: int


class RingPlan(NamedTuple):
    """Predicted time, traffic and memory of attention over ranks; made by :func:`plan`.

    ``print(plan)`` shows everything as tables.

    Attributes
    ----------
    batch, num_tokens, num_heads, num_kv_heads, head_dim, v_head_dim, dtype
        Sizes of the problem, all ranks together.
    num_ranks, sharding, causal, window
        How it is shared out and what a query sees; `window` is (left, right), -1 for no limit.
    flop_rate, backward_flop_rate, bandwidth, latency, memory_bandwidth, memory
        Of a rank, as given, in operations and bytes per second, seconds and bytes.
    forward, backward : Pass
        Of a pass: `flops` of all ranks; `critical_flops`, those of the slowest rank of each step,
        summed; `sent_bytes` and `memory_bytes` of the rank with most; `compute_seconds`,
        `communication_seconds`, `seconds`, in which both overlap, and `exposed_seconds`, what
        communication adds; `efficiency`; `hidden_tokens`, the tokens of a rank from which
        communication hides behind compute, None with a window; `steps`, equal neighbours joined.
    decode : Decode
        Of a new token: `flops`, `read_bytes`, `sent_bytes`, `memory_bytes`, `compute_seconds`,
        `communication_seconds` and `seconds`, their sum.
    largest : Largest or None
        `forward`, `backward`, `decode`: the most tokens that fit; with `memory` alone.
    """

    batch: int
    num_tokens: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    dtype: str
    num_ranks: int
    sharding: str
    causal: bool
    window: tuple[int, int]
    flop_rate: float
    backward_flop_rate: float
    bandwidth: float
    latency: float
    memory_bandwidth: float | None
    memory: int | None
    forward: Pass
    backward: Pass
    decode: Decode
    largest: Largest | None

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers and text, for ``json.dumps``.

        Returns
        -------
        dict
            Every attribute by its name, records as dicts of their own.

        Examples
        --------
        >>> from headway.distributed import plan
        >>> one = plan(num_tokens=4096, num_heads=8, head_dim=64, num_ranks=4, flop_rate=1e11,
        ...            bandwidth=1e9)
        >>> one.to_dict()["forward"]["sent_bytes"] == one.forward.sent_bytes
        True
        """
        found = self._asdict()
        for name in ("forward", "backward"):
            each = found[name]
            found[name] = {**each._asdict(), "steps": [step._asdict() for step in each.steps]}
        found["decode"] = self.decode._asdict()
        found["largest"] = None if self.largest is None else self.largest._asdict()
        found["window"] = list(self.window)
        return found

    def __str__(self) -> str:
        from ._plan_text import text

        return text(self)
