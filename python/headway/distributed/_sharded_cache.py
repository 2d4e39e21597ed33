"""A key-value cache whose tokens are shared out over the ranks of a communicator."""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy as np

from ..arrays import (
    Align,
    Array,
    ArrayInput,
    Numbers,
    Window,
    empty_result,
    head_first,
    result_shape,
    with_four_axes,
)
from ..cache_calls import Asked, Held, attend
from ._pass_q import agreed_facts, checked_query, join, share_of
from ._sharded_tokens import ShardedTokens
from ._waiting import ends_the_job

_ENTRIES = "sequence of the cache"


class ShardedKVCache(ShardedTokens):
    """Keys and values of growing sequences, shared out over ranks: token p lies on rank ``p % W``.

    Every rank makes the same calls. A query goes to every share, and the partial results are
    joined by their log-sum-exps, so that each rank has the whole result::

        cache.append(k, v)     # the new tokens, the same on every rank: each keeps its own
        out = cache.attend(q)  # the same queries on every rank, and the same result

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        The communicator, of W ranks. All of them make every call.
    batch, num_kv_heads : int
        Sequences B, each with a length of its own, and key and value heads Hkv.
    capacity : int
        Tokens of each sequence that there is room for, on all ranks together.
    head_dim : int
        Numbers per token of one key head, D.
    dtype : dtype or str, default numpy.float32
        As in :class:`headway.KVCache`, 8-bit formats included.
    v_head_dim : int, optional
        Numbers per token of one value head, Dv. Default `head_dim`.

    Attributes
    ----------
    rank, size : int
        This rank, and the number of them, W.
    batch, num_kv_heads, capacity, head_dim, v_head_dim : int
        Sizes, as given.
    dtype : str
        Name of the format.
    lengths : ndarray, (B,) int64
        Tokens of each sequence on all ranks together; a copy.
    share : KVCache
        What this rank holds; to be read, not to be changed.
    nbytes : int
        Bytes allocated on this rank.

    Raises
    ------
    TypeError, ValueError
        On every rank alike, if an argument is wrong on one of them or differs between them.
    ImportError, MemoryError
        As in :class:`headway.KVCache`.

    Notes
    -----
    Results agree with :class:`headway.KVCache` to the tolerance of the dtype, and every rank gets
    the same bits: the parts of the ranks are joined in the order of the ranks, each row by one
    rank, in float64. With one rank they are those of :class:`headway.KVCache` to the bit.

    Shares differ by one token at most, whatever is appended. A prompt that
    :func:`ring_attention` worked on with ``sharding="striped"`` has its rows where they belong:
    :meth:`append_rows`.

    Messages: one small allreduce for each ``append`` and ``attend``, which compares the calls of
    the ranks; nothing more for ``append``. ``attend`` cuts the N = B * H * Tq rows of its result
    into W parts of n rows; a rank sends ``(N - n) * (Dv + 1)`` numbers in the type that sums are
    kept in, and then ``n * (W - 1)`` rows of the result with their lse. That does not grow with
    the lengths, and hardly with W.

    Memory: `nbytes`; for ``attend`` twice the result with its lse, in the type of the sums, and
    four times a part of it in float64.

    Source: Yang et al., "Context Parallelism for Scalable Million-Token Inference" (2024,
    arXiv:2411.01783), "pass-Q".

    Examples
    --------
    A program for any number of ranks, ``mpiexec -n 4 python -m mpi4py program.py``:

    >>> import numpy as np
    >>> from mpi4py import MPI
    >>> from headway.distributed import ShardedKVCache
    >>> cache = ShardedKVCache(MPI.COMM_WORLD, batch=1, num_kv_heads=1, capacity=4096, head_dim=2)
    >>> cache.append(np.zeros((1, 1, 3, 2), np.float32), np.float32([[[[1, 0], [2, 0], [6, 3]]]]))
    >>> cache.lengths
    array([3])
    >>> cache.attend(np.zeros((1, 1, 1, 2), np.float32)).round(4)
    array([[[[3., 1.]]]], dtype=float32)
    """

    def __init__(
        self,
        comm: Any,
        batch: int,
        num_kv_heads: int,
        capacity: int,
        head_dim: int,
        *,
        dtype: Any = np.float32,
        v_head_dim: int | None = None,
    ) -> None:
        self._set_up(comm, (batch, num_kv_heads, capacity, head_dim, v_head_dim), dtype)

    @overload
    def attend(
        self,
        q: ArrayInput,
        *,
        causal: bool = ...,
        align: Align = ...,
        scale: float | None = ...,
        window: Window | None = ...,
        softcap: float | None = ...,
        alibi_slopes: Numbers | None = ...,
        sinks: Numbers | None = ...,
        layout: str = ...,
        return_lse: Literal[False] = ...,
    ) -> Array: ...

    @overload
    def attend(
        self,
        q: ArrayInput,
        *,
        causal: bool = ...,
        align: Align = ...,
        scale: float | None = ...,
        window: Window | None = ...,
        softcap: float | None = ...,
        alibi_slopes: Numbers | None = ...,
        sinks: Numbers | None = ...,
        layout: str = ...,
        return_lse: bool,
    ) -> Array | tuple[Array, Array]: ...

    def attend(
        self,
        q: ArrayInput,
        *,
        causal: bool = True,
        align: Align = "end",
        scale: float | None = None,
        window: Window | None = None,
        softcap: float | None = None,
        alibi_slopes: Numbers | None = None,
        sinks: Numbers | None = None,
        layout: str = "BHTD",
        return_lse: bool = False,
    ) -> Array | tuple[Array, Array]:
        """Attention of queries to all that the shares hold: the same call and result on every rank.

        Parameters
        ----------
        q : array, (B, H, Tq, D)
            Queries, as in :meth:`headway.KVCache.attend`; the same on every rank.
        causal, align, scale, window, softcap, alibi_slopes, sinks, layout
            As in :func:`headway.attention`, by positions in the whole sequences: by default the
            last query of each sequence stands at its last token. A sink counts once.
        return_lse : bool, default False
            Return the log-sum-exp of each row, too.

        Returns
        -------
        out : ndarray, (B, H, Tq, Dv)
            Context vectors in the rank, layout and dtype of q; C-contiguous.
        lse : ndarray, (B, H, Tq)
            Only with `return_lse`, as in :func:`headway.attention`.

        Raises
        ------
        TypeError, ValueError
            As in :func:`headway.attention`, on every rank alike, where an argument is wrong on one
            of them; or if shapes, dtypes, options or the lengths of the caches differ.

        Notes
        -----
        The numbers of q are not compared. Queries W positions apart make one call of the kernel:
        a piece of Tq queries min(W, Tq) calls, a single query one. What fails on one rank after
        the agreement ends the job with one line, for the others would wait forever.

        Examples
        --------
        >>> import numpy as np
        >>> from mpi4py import MPI
        >>> from headway.distributed import ShardedKVCache
        >>> cache = ShardedKVCache(MPI.COMM_WORLD, 1, 1, 8, 2, v_head_dim=1)
        >>> cache.append(np.zeros((1, 3, 2), np.float32), np.float32([[[1], [2], [6]]]))
        >>> cache.attend(np.zeros((1, 3, 2), np.float32)).ravel().round(4)
        array([1. , 1.5, 3. ], dtype=float32)
        """
        asked = Asked(
            causal,
            align,
            scale,
            None,
            window,
            softcap,
            alibi_slopes,
            sinks,
            layout,
            None,
            return_lse,
        )
        query, failure = None, None
        share = self._share
        held = Held(share._pages, share._table, self._lengths, _ENTRIES)
        try:
            query = checked_query(held, q, asked)
        except Exception as error:
            failure = error
        same = {} if query is None else agreed_facts(query)
        self._agree("ShardedKVCache.attend", same, failure)
        assert query is not None  # else the agreement raised
        own = held._replace(lengths=self._own(self._lengths))
        if self.size == 1:
            return attend(own, q, asked)
        with ends_the_job(self._comm, "ShardedKVCache.attend"):
            out, lse = share_of(query, own, self.rank, self.size)
            contexts, total = join(self._comm, out, lse, query.sinks, query.given.dtype)
            batch, heads, tq, width = contexts.shape
            rank = query.given.ndim
            shape = result_shape(rank, layout, batch, heads, tq, width)
            result = empty_result(shape, contexts.dtype)
            with_four_axes(result, layout)[...] = contexts
        return (result, head_first(total, rank)) if return_lse else result
