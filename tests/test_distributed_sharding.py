"""Who holds which rows: every row once, in halves of equal work, and the way back."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import assert_same_bits

from headway import distributed
from headway.distributed import positions, shard, unshard

SHARDINGS = ("zigzag", "contiguous", "striped")


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_every_row_is_on_one_rank(sharding: str) -> None:
    for size in (1, 2, 3, 5):
        for tokens in range(24):
            held = [positions(rank, size, tokens, sharding=sharding) for rank in range(size)]
            assert sorted(np.concatenate(held).tolist()) == list(range(tokens))
            assert all((np.diff(each) > 0).all() for each in held)
            sizes = [each.size for each in held]
            assert max(sizes) - min(sizes) <= (2 if sharding == "zigzag" else 1)


def test_the_three_layouts() -> None:
    def held(sharding: str) -> list[list[int]]:
        return [positions(rank, 2, 10, sharding=sharding).tolist() for rank in range(2)]

    assert held("zigzag") == [[0, 1, 2, 8, 9], [3, 4, 5, 6, 7]]
    assert held("contiguous") == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert held("striped") == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]


@pytest.mark.parametrize("size", [2, 4, 8])
def test_zigzag_gives_every_rank_the_same_causal_work(size: int) -> None:
    work = [int((positions(rank, size, 16 * size) + 1).sum()) for rank in range(size)]
    assert len(set(work)) == 1


@pytest.mark.parametrize("sharding", SHARDINGS)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.int64])
def test_there_and_back(sharding: str, dtype: Any) -> None:
    whole = np.random.default_rng(0).standard_normal((2, 3, 11, 4)).astype(dtype)
    for size in (1, 2, 4, 7):
        for axis in (-2, 2, 1, -1):
            parts = [shard(whole, r, size, sharding=sharding, axis=axis) for r in range(size)]
            assert all(part.flags.c_contiguous for part in parts)
            assert not any(np.shares_memory(part, whole) for part in parts)
            rows = positions(0, size, whole.shape[axis], sharding=sharding)
            assert_same_bits(parts[0], np.take(whole, rows, axis=axis))
            assert_same_bits(unshard(parts, sharding=sharding, axis=axis), whole)


X = np.zeros((4, 3))


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: shard(X, 0, 2, sharding="ring"), ValueError, 'sharding: expected "zigzag", "con'),
        (lambda: shard(X, 0, 2, sharding=None), TypeError, "got NoneType; pass one of these"),
        (lambda: shard(X, 2, 2), ValueError, "rank: expected 0 to 1, got 2; pass comm.rank"),
        (lambda: shard(X, -1, 2), ValueError, "rank: expected 0 or more, got -1; pass comm.rank"),
        (lambda: shard(X, 0, 0), ValueError, "size: expected 1 or more, got 0; pass the number"),
        (lambda: shard(X, 0, 1.0), TypeError, "size: expected an int, got 1.0 (float); pass"),
        (lambda: shard(X, 0, True), TypeError, "size: expected an int, got True (bool)"),
        (lambda: shard(X, 0, 1, axis=2), ValueError, "axis: expected an axis of x with shape (4,"),
        (lambda: shard(X, 0, 1, axis=None), TypeError, "axis: expected an int, got None (None"),
        (lambda: shard([1], 0, 1), TypeError, "x: expected a NumPy array or an object"),
        (lambda: positions(0, 2, -1), ValueError, "num_tokens: expected 0 or more, got -1; pass"),
        (lambda: unshard(X), TypeError, "parts: expected a sequence of arrays, got ndarray; pass"),
        (lambda: unshard([]), ValueError, "parts: expected one array for each rank, got none"),
        (
            lambda: unshard([X, X.astype("f4")]),
            TypeError,
            "parts[1]: expected float64 like parts[0], got float32; convert with parts[1].astype",
        ),
        (
            lambda: unshard([X, X[:, :2]]),
            ValueError,
            "parts[1]: expected (4, 3) like parts[0] but for axis -2, got (4, 2); pass what shard",
        ),
        (
            lambda: unshard([X, X[:2]]),
            ValueError,
            "parts: expected the rows that sharding='zigzag' gives 2 ranks of 6 tokens, got "
            "4 for 3 on rank 0, 2 for 3 on rank 1; cut with headway.distributed.shard",
        ),
    ],
)
def test_refused(call: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert text in str(caught.value)


def test_the_documentation_names_all() -> None:
    for name in distributed.__all__:
        text = getattr(distributed, name).__doc__ or ""
        assert "Parameters\n" in text or "Attributes\n" in text, name
