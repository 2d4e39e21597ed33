"""Memory that runs out in gradients, products and caches: MemoryError, or the result."""

from __future__ import annotations

import sys

import pytest
from helpers import run_python

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="this machine: has no /proc/self/statm"
)

PROGRAM = """
import json, resource, sys
import numpy as np
import headway as hw

hw.set_num_threads(2)
g = np.random.default_rng(1)
q, k, v = (g.standard_normal((4, 40, 16384)).astype(np.float32) for _ in range(3))
small = np.ones((8, 1000, 8), np.float32)
if sys.argv[1] == "backward":
    out, lse = hw.attention(q, k, v, return_lse=True)
    call = lambda: hw.attention_backward(out, q, k, v, out, lse)
elif sys.argv[1] == "projection":
    call = lambda: [hw.Projection(k.reshape(160, 16384).T)(q)]
elif sys.argv[1] == "weights":
    call = lambda: [hw.attention_weights(q, k), hw.rotary_embedding(q, 1)]
else:
    def call():
        cache = hw.KVCache(1, 4, 1, 16384, grow=True)
        cache.append(k[None], v[None])
        return [cache.attend(q[None]), cache.attend(q[None, :, :1])]

def bits():
    return [np.ascontiguousarray(x).tobytes() for x in call()]

expected = bits()
hw.attention(small, small, small)  # the threads are there
hard = resource.getrlimit(resource.RLIMIT_AS)[1]
found = []
for extra in [n * 2**21 for n in range(48)] + [2**30]:
    hw.release_memory()
    with open("/proc/self/statm") as pages:
        now = int(pages.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + extra, hard))
    try:
        got = bits()
    except MemoryError:
        got = None
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    found.append(got is not None)
    assert got in (None, expected)
    hw.attention(small, small, small)
    if got:
        break
print(json.dumps([found, bits() == expected]))
"""


@pytest.mark.parametrize("kind", ["backward", "projection", "weights", "cache"])
def test_memory_that_runs_out_on_the_way(kind: str) -> None:
    """The process has a little more each time, until the call succeeds; no result is wrong."""
    # No room that is reserved and not used, nor what was freed and is kept.
    alone = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
    found, same = run_python(PROGRAM, kind, env=alone, timeout=300)
    assert found[0] is False
    assert found[-1] is True
    assert same
