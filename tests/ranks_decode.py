"""Under mpiexec: a sharded cache gives what one cache gives, every rank the same bits; counted."""

from __future__ import annotations

import doctest
import sys
from typing import Any

import numpy as np
from decode_cases import KV_HEADS, V_WIDTH, WIDTH, Case, cases
from helpers import LSE_TOLERANCE, TOLERANCE, assert_close, assert_same_bits, multiplies_pairs
from mpi4py import MPI

import headway
from headway.distributed import (
    CountingComm,
    ShardedKVCache,
    _sharded_cache,
    _sharded_state,
    _sharded_tokens,
)
from headway.distributed._model import Sizes, reduction_bytes

comm = MPI.COMM_WORLD


class Counted(CountingComm):
    """Counts what the exchanges of `attend` take to other ranks."""

    def Ialltoallv(self, given: Any, result: Any) -> Any:
        array, counts = given
        self.sent += int(sum(counts) - counts[self.rank]) * array.itemsize
        return self.comm.Ialltoallv(given, result)

    def Iallgatherv(self, given: Any, result: Any) -> Any:
        self.sent += given.nbytes * (self.size - 1)
        return self.comm.Iallgatherv(given, result)


def stated_bytes(rows: int, item: int) -> int:
    """What this rank sends to others for so many rows of the result, as documented."""
    wide, width = max(item, 4), V_WIDTH
    own = rows // comm.size + (comm.rank < rows % comm.size)
    joined = own * (comm.size - 1) * (width * item + wide)
    stated = (rows - own) * (width + 1) * wide + joined
    sizes = Sizes(1, 1, 1, WIDTH, width, item, wide)
    assert stated == reduction_bytes(rows, comm.rank, comm.size, sizes), "what a plan says"
    return stated


def check(case: Case) -> None:
    capacity = max(case.lengths)
    sizes = case.batch, KV_HEADS, capacity, WIDTH
    whole = headway.KVCache(*sizes, dtype=case.dtype, v_head_dim=V_WIDTH)
    counted = Counted(comm)
    cache = ShardedKVCache(counted, *sizes, dtype=case.dtype, v_head_dim=V_WIDTH)
    for number, taken in enumerate(case.pieces):
        k, v = case.tokens(number)
        counts = None if len(set(taken)) == 1 else taken
        whole.append(k, v, counts)
        cache.append(k, v, counts)
    assert cache.lengths.tolist() == whole.lengths.tolist() == case.lengths
    assert counted.sent == counted.received == 0, "new tokens need not travel"
    own = [len(range(comm.rank, length, comm.size)) for length in case.lengths]
    assert cache.share.lengths.tolist() == own

    q = case.q()
    wanted, wanted_lse = whole.attend(q, **case.options, return_lse=True)
    got, lse = cache.attend(q, **case.options, return_lse=True)
    stated = stated_bytes(lse.size, got.itemsize) if comm.size > 1 else 0
    assert counted.sent == stated, f"sent {counted.sent} bytes, stated {stated}"
    kind = q.dtype.name
    tolerance = 2.0**-7 if multiplies_pairs(kind) else TOLERANCE[kind]
    assert got.dtype == wanted.dtype
    assert lse.dtype == wanted_lse.dtype
    assert_close(got, wanted, tolerance, case.name)
    assert_close(lse, wanted_lse, 2.0**-7 if multiplies_pairs(kind) else LSE_TOLERANCE[kind])
    if comm.size == 1:
        assert_same_bits(got, wanted)
    for one in (got, lse):
        first = comm.bcast(np.ascontiguousarray(one).tobytes())
        assert first == np.ascontiguousarray(one).tobytes(), "other bits than rank 0 has"
    flat = q.swapaxes(1, 2)
    assert_same_bits(cache.attend(flat, **case.options, layout="BTHD"), got.swapaxes(1, 2))


for isa in headway.available_isas() if "--isas" in sys.argv else [headway.isa()]:
    headway.set_isa(isa)
    for each in cases():
        try:
            check(each)
        except BaseException as error:
            print(
                f"rank {comm.rank} of {comm.size}, {isa}, {each.name}: {error!r}", file=sys.stderr
            )
            comm.Abort(3)

for module in (_sharded_cache, _sharded_state, _sharded_tokens):
    failed, tried = doctest.testmod(module)
    assert failed == 0, "the report stands above"
    assert tried > 0
