"""Memory beyond inputs and output is small and does not grow with the number of tokens."""

from __future__ import annotations

import sys

import pytest
from helpers import run_python
from peaks import MIB, START

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="this machine: has no /proc/self/status"
)

ATTENTION = """
tokens, heads, head_dim, threads, dtype, view, lse = json.loads(sys.argv[1])
dtype = dtype_of(dtype)
headway.set_num_threads(threads)
shape = (1, tokens, heads, head_dim) if view else (1, heads, tokens, head_dim)
g = np.random.default_rng(1)
q, k, v = (g.standard_normal(shape, np.float32).astype(dtype) for _ in range(3))
if view:
    q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
out = np.zeros(q.shape, dtype)
out[...] = 1  # every page is there before the call
small = [x[:, :1, :64] for x in (q, k, v)]
headway.attention(*small)  # so are the threads
beyond = peak_of(lambda: headway.attention(q, k, v, out=out, return_lse=lse))
print(json.dumps([beyond, float(out[0, 0, 0, 0] - v[0, 0, 0, 0])]))
"""

PROJECTION = """
rows, d_in, d_out, threads, dtype = json.loads(sys.argv[1])
dtype = dtype_of(dtype)
headway.set_num_threads(threads)
project = headway.Projection(np.ones((d_in, d_out), dtype))
apart = np.ones((rows, 2, d_in), dtype)
out = np.ones((rows, d_out), dtype)
project(apart[:1, 0])  # packed
headway.attention(*(np.ones((1, 64, 500, 64), np.float32),) * 3)  # the threads are there
headway.release_memory()
beyond = peak_of(lambda: project(apart[:, 0], out=out))
print(json.dumps([beyond, float(out[-1, -1] - d_in)]))
"""


def peak(*settings: object) -> int:
    """Return by how many bytes a call's peak lies above what was there before it."""
    import json

    beyond, difference = run_python(START + ATTENTION, json.dumps(settings), timeout=300)
    assert abs(difference) < 1e-2  # the first query sees the first key alone
    return int(beyond)


def test_sixteen_thousand_tokens() -> None:
    """16,384 tokens, 8 heads of 64: a matrix of scores would take 8 GiB, one head's 1 GiB."""
    beyond = peak(16_384, 8, 64, 2, "float32", False, False)
    assert beyond < 64 * MIB, f"{beyond / MIB:.1f} MiB"


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("view", [False, True])
def test_no_copy_and_no_matrix(dtype: str, view: bool) -> None:
    """Contiguous arrays and views are read where they lie: far less memory than one copy.

    6,144 tokens: a matrix of scores would take 144 MiB in float32, a copy of q, k or v in
    float32 or its own dtype 12 MiB or more.
    """
    beyond = peak(6144, 4, 128, 2, dtype, view, True)
    assert beyond < 6 * MIB, f"{beyond / MIB:.1f} MiB"


def test_memory_does_not_grow_with_tokens() -> None:
    """Four times the tokens need no more."""
    few = peak(2048, 2, 64, 2, "float32", False, False)
    many = peak(8192, 2, 64, 2, "float32", False, False)
    assert many < few + MIB, f"{few / MIB:.2f} and {many / MIB:.2f} MiB"


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_memory_of_a_projection_is_bounded_for_each_thread(dtype: str) -> None:
    """Two threads stay below 4.5 MiB: rows apart in memory are read where they lie.

    A copy of them would take 8 MiB or more. What counts is that the bound is a fixed one.
    """
    import json

    settings = json.dumps([16_384, 256, 1024, 2, dtype])
    beyond, difference = run_python(START + PROJECTION, settings)
    assert difference == 0
    assert beyond < 4.5 * MIB, f"{beyond / MIB:.2f} MiB"
