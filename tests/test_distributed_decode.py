"""Caches shared out over ranks: against one cache, and what does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from decode_cases import KV_HEADS, RAGGED, SLOPES, V_WIDTH, WIDTH, Case, cases
from helpers import LSE_TOLERANCE, TOLERANCE, assert_close, make, multiplies_pairs
from mpi_runs import assert_all_agree, needs_mpi

import headway
from headway.cache_calls import Asked, Held
from headway.distributed import _pass_q


@needs_mpi
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_a_sharded_cache_gives_what_one_cache_gives(ranks: int) -> None:
    assert_all_agree("ranks_decode.py", ranks)


@needs_mpi
@pytest.mark.parametrize("ranks", [2, 3])
def test_what_does_not_fit_raises_the_same_on_every_rank(ranks: int) -> None:
    assert_all_agree("ranks_decode_faults.py", ranks)


# Without MPI: the shares of all ranks in one process, joined by hand ------------------------------


def shares(case: Case, ranks: int) -> list[headway.KVCache]:
    """What each rank holds: token p on rank ``p % W``."""
    found = []
    for rank in range(ranks):
        sizes = case.batch, KV_HEADS, max(case.lengths) + 1, WIDTH
        share = headway.KVCache(*sizes, dtype=case.dtype, v_head_dim=V_WIDTH)
        before = [0] * case.batch
        for number, taken in enumerate(case.pieces):
            k, v = case.tokens(number)
            for n in range(max(taken)):
                own = [
                    int(n < count and (had + n) % ranks == rank)
                    for had, count in zip(before, taken, strict=True)
                ]
                share.append(k[:, :, n : n + 1], v[:, :, n : n + 1], own)
            before = [had + count for had, count in zip(before, taken, strict=True)]
        found.append(share)
    return found


SOME = [case for case in cases() if case.queries > 1 and case.pieces == RAGGED]


@pytest.mark.parametrize("isa", headway.available_isas(), indirect=True)
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_the_parts_of_all_ranks_make_the_whole(isa: str, ranks: int) -> None:
    for case in SOME:
        whole = headway.KVCache(
            case.batch, KV_HEADS, max(case.lengths), WIDTH, dtype=case.dtype, v_head_dim=V_WIDTH
        )
        for number, taken in enumerate(case.pieces):
            whole.append(*case.tokens(number), taken)
        q = case.q()
        wanted, wanted_lse = whole.attend(q, **case.options, return_lse=True)
        given: dict[str, Any] = {"causal": True, "align": "end", **case.options}
        names = [name for name in Asked._fields if name not in given]
        asked = Asked(**given, **{**dict.fromkeys(names), "layout": "BHTD", "return_lse": True})
        outs, lses = [], []
        for rank, share in enumerate(shares(case, ranks)):
            held = Held(share._pages, share._table, case.lengths, "sequence")
            query = _pass_q.checked_query(held, q, asked)
            own = held._replace(lengths=share.lengths.tolist())
            out, lse = _pass_q.share_of(query, own, rank, ranks)
            outs.append(out)
            lses.append(lse)
        if query.sinks is not None:
            outs.append(np.zeros_like(out))
            lses.append(np.broadcast_to(query.sinks[:, None], lse.shape).astype(lse.dtype))
        got, got_lse = headway.merge_partials(outs, lses)
        slack = 2 if multiplies_pairs(q.dtype.name) else 1
        tolerance = slack * TOLERANCE[q.dtype.name]
        assert_close(got.astype(q.dtype), wanted, tolerance, case.name)
        assert_close(got_lse, wanted_lse, slack**9 * LSE_TOLERANCE[q.dtype.name], case.name)


@pytest.mark.parametrize("slopes", [None, np.tile(SLOPES, (1, 1))])
def test_what_a_query_sees_of_each_rank(slopes: Any) -> None:
    """Every key that a query may see, and no other, stands in one of its views, once."""
    q = make(0, (1, 4, 1, WIDTH), "float32")
    wide = np.dtype(np.float32)
    for ranks in (1, 2, 3, 5):
        for left, right in ((_pass_q.FAR, 0), (4, 0), (0, 0), (_pass_q.FAR, _pass_q.FAR), (3, 6)):
            query = _pass_q.Query(q, q, [0], left, right, None, 0.0, slopes, None, True, wide)
            for position in range(-3, 23):
                for rank in range(ranks):
                    wanted = [p for p in range(rank, 20, ranks) if -right <= position - p <= left]
                    found = []
                    for view in _pass_q.views(position, rank, ranks, query):
                        assert view.left >= 0
                        assert view.right >= 0
                        for key in range(-(-(20 - rank) // ranks)):
                            if -view.right <= view.offset - key <= view.left:
                                found.append(rank + ranks * key)
                                distance = abs(position - found[-1])
                                if slopes is not None:
                                    off = ranks * abs(view.offset - key) + view.shift
                                    assert off == distance
                    assert sorted(found) == wanted
