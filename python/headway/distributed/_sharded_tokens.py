"""New tokens of a sharded cache: given to all ranks, or to each rank its own."""

from __future__ import annotations

import numpy as np

from ..arrays import Array, ArrayInput, Integers
from ..cache_checks import checked_counts
from ..weights import checked_size
from ._agreement import Same, Text
from ._sharded_state import ShardedState
from ._waiting import ends_the_job

_ENTRIES = "sequence of the cache"


class ShardedTokens(ShardedState):
    """Base of :class:`headway.distributed.ShardedKVCache`: all but queries."""

    def append(self, k: ArrayInput, v: ArrayInput, counts: Integers | None = None) -> None:
        """Take in the keys and values of new tokens: every rank is given all, and keeps its own.

        Parameters
        ----------
        k : array, (B, Hkv, n, D)
            Keys, as in :meth:`headway.KVCache.append`; the same on every rank.
        v : array, (B, Hkv, n, Dv)
            Values, in the dtype of k.
        counts : (B,) ints from 0 to n, optional
            How many of the n tokens each sequence takes, from the first on; default all.

        Raises
        ------
        TypeError, ValueError
            On every rank alike: if an argument does not fit on one of them, if shapes, dtypes,
            counts or the lengths so far differ, or if the tokens do not fit into the capacity. The
            cache is unchanged on every rank then.

        Notes
        -----
        The numbers themselves are not compared. Memory: for 8-bit formats, and for sequences of
        several lengths, a copy of the rank's own tokens.

        Examples
        --------
        >>> import numpy as np
        >>> from mpi4py import MPI
        >>> from headway.distributed import ShardedKVCache
        >>> cache = ShardedKVCache(MPI.COMM_SELF, 2, 1, 8, 4)
        >>> k = np.ones((2, 1, 3, 4), np.float32)
        >>> cache.append(k, k, counts=[3, 1])
        >>> cache.lengths
        array([3, 1])
        """
        failure, same = None, {}
        k4 = v4 = np.empty((0, 0, 0, 0))
        grown: list[int] = []
        try:
            k4, v4, kind = self._share._pages.checked(k, v, self.batch, _ENTRIES)
            n = k4.shape[2]
            taken = [n] * self.batch
            if counts is not None:
                taken = checked_counts(counts, self.batch, n, "sequence")
            grown = [had + more for had, more in zip(self._lengths, taken, strict=True)]
            self._check_room(n, grown)
            same = {
                "k": Same(Text(kind), TypeError, "convert it on the others"),
                "k's shape": Same(k4.shape),
                "counts": Same(tuple(taken)),
            }
        except Exception as error:
            failure = error
        self._agree("ShardedKVCache.append", same, failure)
        with ends_the_job(self._comm, "ShardedKVCache.append"):
            firsts = [(self.rank - had) % self.size for had in self._lengths]
            own = self._own(grown)
            more = [new - had for new, had in zip(own, self._own(self._lengths), strict=True)]
            self._keep(k4, v4, firsts, more)
            self._lengths = grown

    def append_rows(self, k: ArrayInput, v: ArrayInput, num_tokens: int) -> None:
        """Take in new tokens of which every rank has its own rows only.

        The rows are those that :func:`shard` gives with ``sharding="striped"``: after
        :func:`ring_attention` over a prompt, its keys and values need not move.

        Parameters
        ----------
        k : array, (B, Hkv, m, D)
            Keys of the rank's own m rows of the new tokens.
        v : array, (B, Hkv, m, Dv)
            Values, in the dtype of k.
        num_tokens : int
            New tokens of each sequence, on all ranks together.

        Raises
        ------
        TypeError, ValueError
            As in :meth:`append`; a ValueError, too, if the sequences have several lengths, or the
            length so far is no multiple of W, so that rank 0 would not own the first new token.

        Notes
        -----
        Rows of another sharding are refused only where a rank has another number of them.

        Examples
        --------
        >>> import numpy as np
        >>> from mpi4py import MPI
        >>> from headway.distributed import ShardedKVCache, shard
        >>> comm = MPI.COMM_WORLD
        >>> cache = ShardedKVCache(comm, 1, 1, 8, 4)
        >>> k = shard(np.ones((1, 1, 5, 4), np.float32), comm.rank, comm.size, sharding="striped")
        >>> cache.append_rows(k, k, 5)
        >>> cache.lengths
        array([5])
        """
        failure, same = None, {}
        k4 = v4 = np.empty((0, 0, 0, 0))
        grown: list[int] = []
        try:
            tokens = checked_size("num_tokens", num_tokens, 0)
            k4, v4, kind = self._share._pages.checked(k, v, self.batch, _ENTRIES)
            had = self._lengths[0]
            if set(self._lengths) != {had} or had % self.size:
                raise ValueError(
                    f"num_tokens: expected sequences of one length, a multiple of {self.size} "
                    f"ranks, got lengths {self._lengths}; pass all tokens to append instead"
                )
            grown = [had + tokens] * self.batch
            self._check_room(tokens, grown)
            own = len(range(self.rank, tokens, self.size))
            if k4.shape[2] != own:
                raise ValueError(
                    f"k: expected {own} of {tokens} tokens, those of rank {self.rank} of "
                    f'{self.size}, got {k4.shape[2]}; cut with shard(..., sharding="striped")'
                )
            same = {
                "k": Same(Text(kind), TypeError, "convert it on the others"),
                "num_tokens": Same(tokens),
            }
        except Exception as error:
            failure = error
        self._agree("ShardedKVCache.append_rows", same, failure)
        with ends_the_job(self._comm, "ShardedKVCache.append_rows"):
            self._share.append(k4, v4)
            self._lengths = grown

    # Where they go ------------------------------------------------------------------------------

    def _check_room(self, n: int, grown: list[int]) -> None:
        """Room for n tokens more, which make the sequences as long as ``grown``."""
        longest = max(grown)
        if longest > self._capacity:
            had = self._lengths[grown.index(longest)]
            raise ValueError(
                f"k: expected tokens that fit into the capacity of {self._capacity}, got {n} for a "
                f"sequence of {had}; make the cache with a capacity of at least {longest}"
            )

    def _keep(self, k: Array, v: Array, firsts: list[int], counts: list[int]) -> None:
        """Append this rank's tokens: of sequence b ``counts[b]`` from ``firsts[b]`` on, W apart."""
        if len(set(firsts)) == 1:
            own = (slice(None), slice(None), slice(firsts[0], None, self.size))
            self._share.append(k[own], v[own], counts)
            return
        most, batch = max(counts), range(len(counts))
        parts = []
        for x in (k, v):
            part = np.zeros((*x.shape[:2], most, x.shape[3]), x.dtype)
            for b in batch:
                rows = slice(firsts[b], firsts[b] + self.size * counts[b], self.size)
                part[b, :, : counts[b]] = x[b, :, rows]
            parts.append(part)
        self._share.append(parts[0], parts[1], counts)
