"""Do all ranks make the same call? One small allreduce, and the same error on every rank."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..arrays import Array
from ._waiting import ends_the_job, wait

_CHECKS = 16  # digests in the message


class Same(NamedTuple):
    """What has to be the same on every rank."""

    value: Any  # compared and shown by its repr; an array by its bytes
    error: type[Exception] = ValueError  # TypeError for kinds and dtypes
    fix: str = "pass the same on every rank"


def agree(
    comm: Any,
    call: str,
    same: Mapping[str, Same],
    rows: int = 0,
    failure: Exception | None = None,
) -> list[int]:
    """Compare a call over the ranks; every rank gets the same answer, or raises the same error.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Every rank of it takes part. With one rank there is no message.
    call : str
        The function that is called, which has to be the same everywhere.
    same : mapping of str to Same
        What has to be the same everywhere, too, by argument name; 15 at most.
    rows : int
        A number of this rank's own: its rows.
    failure : Exception, optional
        What this rank's own checks raised. Every rank then raises it, with the rank's number.

    Returns
    -------
    list of int
        The `rows` of every rank.

    Raises
    ------
    TypeError, ValueError
        On every rank alike.

    Notes
    -----
    The allreduce adds up, for each name, the digests of the ranks and their squares: W times the
    sum of squares is the square of the sum only where all W are equal (Cauchy and Schwarz). A
    digest has two numbers of 24 bits. Names and ranks are asked for only where something differs.
    Message: ``8 * (65 + W)`` bytes, whatever the call.
    """
    check_comm(comm)
    if comm.size == 1:
        if failure is not None:
            raise failure
        return [rows]
    checks = {"call": Same(Text(call), fix="make the same call on every rank"), **same}
    numbers = np.zeros(1 + comm.size + 4 * _CHECKS, np.int64)
    numbers[0] = failure is not None
    numbers[1 + comm.rank] = rows
    digests = np.zeros(2 * _CHECKS, np.int64)
    digests[: 2 * len(checks)] = [n for each in checks.values() for n in _digest(each.value)]
    numbers[1 + comm.size :] = np.concatenate([digests, digests**2])
    sums = np.empty_like(numbers)
    with ends_the_job(comm, call):
        wait([comm.Iallreduce(numbers, sums)])
    if sums[0]:
        _raise_first(comm, failure)
    once, squared = (part.tolist() for part in np.split(sums[1 + comm.size :], 2))
    differs = [comm.size * b != a * a for a, b in zip(once, squared, strict=True)]
    for index, (name, each) in enumerate(checks.items()):
        if differs[2 * index] or differs[2 * index + 1]:
            shown = comm.allgather(_shown(each.value))
            raise each.error(
                f"{name}: expected the same on every rank, got {_by_rank(shown)}; {each.fix}"
            )
    return [int(count) for count in sums[1 : 1 + comm.size]]


def check_comm(comm: Any) -> None:
    """Is it a communicator whose ranks reach each other, and this process one of them?"""
    try:
        fits = 0 <= comm.rank < comm.size
        reach = hasattr(comm, "Iallreduce") and not getattr(comm, "is_inter", False)
        fits = fits and (comm.size == 1 or reach)
    except Exception:  # a null communicator raises one of MPI's own
        fits = False
    if not fits:
        null = " (null)" if hasattr(comm, "Iallreduce") and not comm else ""
        raise TypeError(
            "comm: expected a communicator of mpi4py that this process belongs to, got "
            f"{type(comm).__name__}{null}; pass e.g. MPI.COMM_WORLD"
        )


def _raise_first(comm: Any, failure: Exception | None) -> None:
    """Raise what the lowest of the failing ranks has to say, on every rank."""
    mine = None
    if failure is not None:
        kinds = (TypeError, ValueError, MemoryError)
        kind = next((kind for kind in kinds if isinstance(failure, kind)), RuntimeError)
        mine = kind.__name__, str(failure)
    found = comm.allgather(mine)
    rank = next(rank for rank, each in enumerate(found) if each is not None)
    kind_name, text = found[rank]
    kinds_by_name = {each.__name__: each for each in (TypeError, ValueError, MemoryError)}
    raise kinds_by_name.get(kind_name, RuntimeError)(f"rank {rank}: {text}") from failure


def _digest(value: Any) -> tuple[int, int]:
    raw = hashlib.sha256(_bytes(value)).digest()
    return int.from_bytes(raw[:3], "big"), int.from_bytes(raw[3:6], "big")


def _bytes(value: Any) -> bytes:
    if isinstance(value, np.ndarray):
        head = f"{value.dtype.name} {value.shape} ".encode()
        return head + np.ascontiguousarray(value).tobytes()
    return repr(value.item() if isinstance(value, np.generic) else value).encode()


def _shown(value: Any) -> str:
    """A short text for an error."""
    if isinstance(value, np.ndarray):
        return _array_text(value)
    text = repr(value) if not isinstance(value, Text) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _array_text(x: Array) -> str:
    if x.size <= 6:
        return f"{x.tolist()}"
    digest = hashlib.sha256(_bytes(x)).hexdigest()[:8]
    return f"{x.dtype.name} numbers of shape {x.shape} with digest {digest}"


class Text(str):
    """A string that errors show without quotes: a dtype's name."""


def _by_rank(shown: list[str]) -> str:
    """The values, each with its ranks, the value of most ranks first."""
    ranks: dict[str, list[int]] = {}
    for rank, text in enumerate(shown):
        ranks.setdefault(text, []).append(rank)
    order = sorted(ranks, key=lambda text: (-len(ranks[text]), ranks[text][0]))
    pieces = [f"{text} on {_ranks_text(ranks[text])}" for text in order[:4]]
    if len(order) > 4:
        pieces.append(f"{len(order) - 4} values more")
    return ", ".join(pieces)


def _ranks_text(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(map(str, ranks[:8]))
    return f"ranks {shown}" + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
