"""The state of a sharded cache: this rank's share, and the lengths of all shares together."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays import Array, Integers
from ..cache import KVCache
from ..cache_checks import checked_indices, ints_for_all
from ..weights import checked_size
from ._agreement import Same, agree, check_comm


class ShardedState:
    """Base of :class:`headway.distributed.ShardedKVCache`: all but new tokens and queries."""

    _comm: Any
    _share: KVCache
    _capacity: int
    _lengths: list[int]

    def _set_up(self, comm: Any, sizes: tuple[Any, ...], dtype: Any) -> None:
        check_comm(comm)
        share, failure = None, None
        batch, heads, capacity, width, v_width = sizes
        try:
            slots = -(-checked_size("capacity", capacity) // comm.size)
            share = KVCache(batch, heads, slots, width, dtype=dtype, v_head_dim=v_width)
        except Exception as error:
            failure = error
        same = {}
        if share is not None:
            names = "batch", "num_kv_heads", "head_dim", "v_head_dim", "dtype"
            same = {name: Same(getattr(share, name)) for name in names}
            same["capacity"] = Same(int(capacity))
        agree(comm, "ShardedKVCache", same, failure=failure)
        assert share is not None  # else the agreement raised
        self._comm, self._share = comm, share
        self._capacity, self._lengths = int(capacity), [0] * share.batch

    def _own(self, lengths: list[int]) -> list[int]:
        """Of sequences of these lengths, the tokens that lie on this rank."""
        return [len(range(self.rank, length, self.size)) for length in lengths]

    def _agree(self, call: str, same: dict[str, Same], failure: Exception | None) -> None:
        """Every rank makes this call, on caches of the same lengths; or all raise the same."""
        if failure is None:
            fix = "make the same changes to the cache on every rank"
            same = {"the cache's lengths": Same(tuple(self._lengths), fix=fix), **same}
        agree(self._comm, call, same, failure=failure)

    # What it holds ------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This rank."""
        return int(self._comm.rank)

    @property
    def size(self) -> int:
        """Number of ranks W."""
        return int(self._comm.size)

    @property
    def share(self) -> KVCache:
        """What this rank holds: token p of a sequence is its token ``p // W``."""
        return self._share

    @property
    def batch(self) -> int:
        """Number of sequences B."""
        return self._share.batch

    @property
    def num_kv_heads(self) -> int:
        """Number of key and value heads Hkv."""
        return self._share.num_kv_heads

    @property
    def capacity(self) -> int:
        """Tokens of each sequence that there is room for, on all ranks together."""
        return self._capacity

    @property
    def head_dim(self) -> int:
        """Numbers per token of one key head, D."""
        return self._share.head_dim

    @property
    def v_head_dim(self) -> int:
        """Numbers per token of one value head, Dv."""
        return self._share.v_head_dim

    @property
    def dtype(self) -> str:
        """Name of the format: "float32", ..., "int8" or "fp8_e4m3"."""
        return self._share.dtype

    @property
    def nbytes(self) -> int:
        """Bytes allocated on this rank."""
        return self._share.nbytes

    @property
    def lengths(self) -> Array:
        """(B,) int64: tokens of each sequence on all ranks together; a copy."""
        return np.array(self._lengths, dtype=np.int64)

    def __repr__(self) -> str:
        names = ["batch", "num_kv_heads", "capacity", "head_dim"]
        names += ["v_head_dim"] * (self.v_head_dim != self.head_dim) + ["dtype"]
        sizes = ", ".join(f"{name}={getattr(self, name)}" for name in names)
        place = f"rank {self.rank} of {self.size}"
        return f"{type(self).__name__}({place}, {sizes}, lengths={self._lengths})"

    # Changes without messages -------------------------------------------------------------------

    def truncate(self, lengths: int | Integers) -> None:
        """Forget the last tokens, such as drafts that were not accepted.

        Parameters
        ----------
        lengths : int or (B,) ints
            Tokens that each sequence keeps, at most those it has; one int serves all. The same on
            every rank.

        Raises
        ------
        TypeError, ValueError
            If the lengths do not fit. The cache is unchanged then.

        Notes
        -----
        No message is sent: the next ``append`` or ``attend`` finds ranks that differ.

        Examples
        --------
        >>> import numpy as np
        >>> from headway.distributed import ShardedKVCache
        >>> from mpi4py import MPI
        >>> cache = ShardedKVCache(MPI.COMM_SELF, 2, 1, 8, 4)
        >>> cache.append(np.ones((2, 1, 5, 4), np.float32), np.ones((2, 1, 5, 4), np.float32))
        >>> cache.truncate([5, 3])
        >>> cache.lengths
        array([5, 3])
        """
        had = self._lengths
        wanted = f"{len(had)} ints, at most the lengths {had}, or one int for all"
        fix = "pass the number of tokens to keep"
        kept = ints_for_all("lengths", lengths, wanted, fix, had, "sequence", one=True)
        self._share.truncate(self._own(kept))
        self._lengths = kept

    def reorder(self, indices: Integers) -> None:
        """Make sequence b what sequence ``indices[b]`` was, as beam search needs it.

        Parameters
        ----------
        indices : (B,) ints from 0 to B - 1
            Any of them, also several times. The same on every rank.

        Raises
        ------
        TypeError, ValueError, MemoryError
            As in :meth:`headway.KVCache.reorder`. The cache is unchanged then.

        Notes
        -----
        No message is sent, as in :meth:`truncate`.

        Examples
        --------
        >>> import numpy as np
        >>> from headway.distributed import ShardedKVCache
        >>> from mpi4py import MPI
        >>> cache = ShardedKVCache(MPI.COMM_SELF, 2, 1, 8, 1)
        >>> cache.append(np.float32([[[[1]]], [[[2]]]]), np.float32([[[[3]]], [[[4]]]]))
        >>> cache.reorder([1, 1])
        >>> cache.share.keys.ravel()
        array([2., 2.], dtype=float32)
        """
        sources = checked_indices("indices", indices, self.batch, self.batch)
        self._share.reorder(sources)
        self._lengths = [self._lengths[source] for source in sources]

    def reset(self, indices: int | Integers | None = None) -> None:
        """Forget all tokens of all sequences, or of some.

        Parameters
        ----------
        indices : int or ints from 0 to B - 1, optional
            The sequences to empty; default all. The same on every rank.

        Raises
        ------
        TypeError, ValueError
            If the indices do not fit. The cache is unchanged then.

        Notes
        -----
        No message is sent, as in :meth:`truncate`.

        Examples
        --------
        >>> import numpy as np
        >>> from headway.distributed import ShardedKVCache
        >>> from mpi4py import MPI
        >>> cache = ShardedKVCache(MPI.COMM_SELF, 2, 1, 8, 4)
        >>> cache.append(np.ones((2, 1, 5, 4), np.float32), np.ones((2, 1, 5, 4), np.float32))
        >>> cache.reset(1)
        >>> cache.lengths
        array([5, 0])
        """
        batch = self.batch
        gone = range(batch) if indices is None else checked_indices("indices", indices, batch, None)
        self._share.reset(list(gone))
        for b in gone:
            self._lengths[b] = 0
