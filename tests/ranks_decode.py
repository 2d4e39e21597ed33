"""Under mpiexec: a sharded cache gives what one cache gives, and every rank the same bits."""

from __future__ import annotations

import doctest
import sys

import numpy as np
from decode_cases import KV_HEADS, V_WIDTH, WIDTH, Case, cases
from helpers import LSE_TOLERANCE, TOLERANCE, assert_close, assert_same_bits, multiplies_pairs
from mpi4py import MPI

import headway
from headway.distributed import ShardedKVCache, _sharded_cache, _sharded_state, _sharded_tokens

comm = MPI.COMM_WORLD


def check(case: Case) -> None:
    capacity = max(case.lengths)
    sizes = case.batch, KV_HEADS, capacity, WIDTH
    whole = headway.KVCache(*sizes, dtype=case.dtype, v_head_dim=V_WIDTH)
    cache = ShardedKVCache(comm, *sizes, dtype=case.dtype, v_head_dim=V_WIDTH)
    for number, taken in enumerate(case.pieces):
        k, v = case.tokens(number)
        counts = None if len(set(taken)) == 1 else taken
        whole.append(k, v, counts)
        cache.append(k, v, counts)
    assert cache.lengths.tolist() == whole.lengths.tolist() == case.lengths
    own = [len(range(comm.rank, length, comm.size)) for length in case.lengths]
    assert cache.share.lengths.tolist() == own

    q = case.q()
    wanted, wanted_lse = whole.attend(q, **case.options, return_lse=True)
    got, lse = cache.attend(q, **case.options, return_lse=True)
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
