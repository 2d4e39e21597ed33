"""The backward pass allocates its results, O(T) numbers, and no matrix of scores."""

from __future__ import annotations

import json
import sys

import pytest
from helpers import run_python
from peaks import MIB, START

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="this machine: has no /proc/self/status"
)

BACKWARD = """
tokens, heads, head_dim, dtype, mask_grad = json.loads(sys.argv[1])
dtype = dtype_of(dtype)
headway.set_num_threads(2)
g = np.random.default_rng(1)
q, k, v, grad_out = (
    g.standard_normal((1, heads, tokens, head_dim), np.float32).astype(dtype) for _ in range(4)
)
mask = np.zeros(tokens, np.float32) if mask_grad else None

def step(count):
    arrays = [x[:, :, :count] for x in (q, k, v)]
    some = None if mask is None else mask[:count]
    out, lse = headway.attention(*arrays, mask=some, return_lse=True)
    def backward():
        found.append(headway.attention_backward(
            grad_out[:, :, :count], *arrays, out, lse, mask=some, mask_grad=mask_grad))
    return backward

found = []
step(64)()  # the threads are there before
call = step(tokens)
beyond = peak_of(call) - sum(x.nbytes for x in found[-1])
finite = all(np.isfinite(x.astype(np.float32)).all() for x in found[-1])
print(json.dumps([beyond, finite]))
"""


def peak(tokens: int, heads: int, dtype: str, *, mask_grad: bool = False) -> int:
    """Return by how many bytes a call's peak lies above what was there, and its results."""
    settings = json.dumps([tokens, heads, 64, dtype, mask_grad])
    beyond, finite = run_python(START + BACKWARD, settings, timeout=300)
    assert finite
    return int(beyond)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_eight_thousand_tokens(dtype: str) -> None:
    """2 heads of 64: a matrix of scores would take 512 MiB, sums in float32 4 MiB for q alone."""
    beyond = peak(8192, 2, dtype)
    assert beyond < 32 * MIB, f"{beyond / MIB:.1f} MiB"


def test_the_gradient_of_a_mask() -> None:
    """The gradients at the scores take a block of 4 MiB, and a copy of 16 rows in float64."""
    beyond = peak(4096, 2, "float32", mask_grad=True)
    assert beyond < 32 * MIB, f"{beyond / MIB:.1f} MiB"
