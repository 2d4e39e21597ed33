"""Whole arrays on one rank, their rows on all: there and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays import Array, ArrayInput, as_array
from ._agreement import Same, agree
from ._carrier import SHARE, octets
from ._sharding import _size, check_axis, check_rows, check_sharding, rows_of, shard, unshard
from ._waiting import ends_the_job, wait


def scatter(
    x: ArrayInput | None,
    comm: Any,
    *,
    root: int = 0,
    sharding: str = "zigzag",
    axis: int = -2,
) -> Array:
    """Give every rank its rows of an array that one rank holds.

    Parameters
    ----------
    x : array, or None on the other ranks
        On `root` the whole array, of any dtype without objects; what the others pass is not read.
    comm : mpi4py.MPI.Comm
        The ranks.
    root : int, default 0
        The rank that holds `x`.
    sharding : {"zigzag", "contiguous", "striped"}, default "zigzag"
        See :func:`positions`.
    axis : int, default -2
        The axis of the tokens.

    Returns
    -------
    ndarray
        What ``shard(x, comm.rank, comm.size, ...)`` gives.

    Raises
    ------
    TypeError, ValueError
        On every rank, if an argument is wrong on one or differs between ranks.

    Notes
    -----
    Memory: the result; on `root` the rows of one rank beside `x`, one after another.

    Examples
    --------
    >>> import numpy as np
    >>> from mpi4py import MPI
    >>> from headway.distributed import gather, scatter
    >>> x = np.arange(6.0).reshape(6, 1)
    >>> rows = scatter(x, MPI.COMM_SELF)
    >>> gather(rows, MPI.COMM_SELF).ravel()
    array([0., 1., 2., 3., 4., 5.])
    """
    array, failure = None, None
    try:
        check_sharding(sharding)
        _check_root(root, comm)
        if comm.rank == root:
            array = _checked(x, axis)
    except Exception as error:
        failure = error
    agree(comm, "scatter", _alike(root, sharding, axis), 0, failure)
    if comm.size == 1:
        assert array is not None
        return shard(array, 0, 1, sharding=sharding, axis=axis)
    with ends_the_job(comm, "scatter"):
        head = None if array is None else (array.shape, array.dtype)
        shape, dtype = comm.bcast(head, root=root)
        if array is None:
            along = axis % len(shape)
            rows = rows_of(comm.rank, comm.size, shape[along], sharding)
            own = np.empty((*shape[:along], rows, *shape[along + 1 :]), dtype)
            if own.nbytes:
                wait([comm.Irecv(octets(own), source=root, tag=SHARE)])
            return own
        for rank in range(comm.size):
            if rank != root:
                part = shard(array, rank, comm.size, sharding=sharding, axis=axis)
                if part.nbytes:
                    wait([comm.Isend(octets(part), dest=rank, tag=SHARE)])
        return shard(array, comm.rank, comm.size, sharding=sharding, axis=axis)


def gather(
    x: ArrayInput,
    comm: Any,
    *,
    root: int = 0,
    sharding: str = "zigzag",
    axis: int = -2,
) -> Array | None:
    """Put the rows of all ranks together on one of them: the inverse of :func:`scatter`.

    Parameters
    ----------
    x : array
        The rank's rows, of one dtype and, but for `axis`, one shape on all ranks.
    comm : mpi4py.MPI.Comm
        The ranks.
    root : int, default 0
        The rank that gets the result.
    sharding : {"zigzag", "contiguous", "striped"}, default "zigzag"
        See :func:`positions`.
    axis : int, default -2
        The axis of the tokens.

    Returns
    -------
    ndarray or None
        The whole array on `root`, None on the others.

    Raises
    ------
    TypeError, ValueError
        On every rank, if an argument is wrong on one or differs between ranks, or the ranks have
        not the rows that `sharding` gives them.

    Notes
    -----
    Memory: on `root` the result, and the rows of all ranks.

    Examples
    --------
    >>> import numpy as np
    >>> from mpi4py import MPI
    >>> from headway.distributed import gather
    >>> gather(np.zeros((2, 5, 3)), MPI.COMM_SELF).shape
    (2, 5, 3)
    """
    array, failure, along = np.zeros(0), None, 0
    more: dict[str, Same] = {}
    try:
        check_sharding(sharding)
        _check_root(root, comm)
        array = _checked(x, axis)
        along = check_axis(axis, array)
        others = (*array.shape[:along], *array.shape[along + 1 :])
        more["x"] = Same(array.dtype.name, TypeError, "convert it on the others")
        more["x's other axes"] = Same(others)
    except Exception as error:
        failure = error
    count = 0 if failure is not None else array.shape[along]
    counts = agree(comm, "gather", {**_alike(root, sharding, axis), **more}, count, failure)
    check_rows(counts, sharding, "x")
    with ends_the_job(comm, "gather"):
        own = np.ascontiguousarray(array)
        if comm.rank != root:
            if own.nbytes:
                wait([comm.Isend(octets(own), dest=root, tag=SHARE)])
            return None
        parts = [
            np.empty((*own.shape[:along], n, *own.shape[along + 1 :]), own.dtype) for n in counts
        ]
        parts[root] = own
        wait(
            [
                comm.Irecv(octets(part), source=rank, tag=SHARE)
                for rank, part in enumerate(parts)
                if rank != root and part.nbytes
            ]
        )
        return unshard(parts, sharding=sharding, axis=axis)


def _alike(root: Any, sharding: Any, axis: Any) -> dict[str, Same]:
    return {"root": Same(root), "sharding": Same(sharding), "axis": Same(axis)}


def _check_root(root: Any, comm: Any) -> None:
    if _size("root", root, 0, "pass a rank of the communicator") >= comm.size:
        raise ValueError(
            f"root: expected 0 to {comm.size - 1}, got {root}; pass a rank of the communicator"
        )


def _checked(x: Any, axis: Any) -> Array:
    array = as_array("x", x)
    check_axis(axis, array)
    if array.dtype.hasobject:
        raise TypeError(
            f"x: expected numbers, got {array.dtype.name}; convert with x.astype(np.float32)"
        )
    return array
