"""At the limits of the process: results beyond memory, address space, the interpreter's end."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import Array, clean_environment, run_python

import headway


def row(*shape: int) -> Array:
    """Return ones of this shape in four bytes of memory."""
    return np.broadcast_to(np.float32(1), shape)


# Results that no machine can hold -----------------------------------------------------------------

MANY = row(1, 1, 2**32, 1)
TOO_LARGE: dict[str, tuple[Callable[..., Any], tuple[Array, ...], tuple[int, ...]]] = {
    "attention, no memory": (
        headway.attention, (row(1, 1, 2**46, 1), row(1, 1, 1, 1), row(1, 1, 1, 1)),
        (1, 1, 2**46, 1),
    ),
    "attention, no address": (
        headway.attention, (row(1, 1, 2**58, 1), row(1, 1, 1, 1), row(1, 1, 1, 32)),
        (1, 1, 2**58, 32),
    ),
    "attention, no count": (
        headway.attention, (row(1, 1, 2**60, 1), row(1, 1, 1, 1), row(1, 1, 1, 32)),
        (1, 1, 2**60, 32),
    ),
    "weights, no memory": (
        headway.attention_weights, (row(1, 1, 2**46, 1), row(1, 1, 1, 1)), (1, 1, 2**46, 1)
    ),
    "weights, no count": (
        headway.attention_weights, (MANY, MANY), (1, 1, 2**32, 2**32)
    ),
    "scores, no memory": (
        headway.attention_scores, (row(1, 1, 2**46, 1), row(1, 1, 1, 1)), (1, 1, 2**46, 1)
    ),
    "scores, no count": (
        headway.attention_scores, (MANY, MANY), (1, 1, 2**32, 2**32)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TOO_LARGE)
def test_a_result_too_large_is_named(name: str) -> None:
    """The text says what does not fit, by its shape."""
    call, arrays, shape = TOO_LARGE[name]
    with pytest.raises(MemoryError, match=re.escape(str(shape))):
        call(*arrays)


def test_an_lse_too_large_is_a_memory_error() -> None:
    """The result is empty, the lse is not."""
    q, k, v = row(1, 1, 2**58, 1), row(1, 1, 1, 1), row(1, 1, 1, 1)[..., :0]
    with pytest.raises(MemoryError, match=str(2**58)):
        headway.attention(q, k, v, return_lse=True)


def test_many_batch_entries_without_a_head_take_no_time() -> None:
    """2**26 entries of which none has anything to compute."""
    q = np.empty((2**26, 0, 1, 1), np.float32)
    headway.attention(q[:1], q[:1], q[:1])
    for options in ({}, {"return_lse": True}, {"causal": False}, {"align": "start"}):
        start = time.perf_counter()
        headway.attention(q, q, q, **options)
        taken = time.perf_counter() - start
        assert taken < 0.2, f"{taken:.2f} s with {options}"


# Address space ------------------------------------------------------------------------------------

THOUSAND_THREADS = """
import json, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (2_500_000_000, 2_500_000_000))
import numpy as np
import headway

headway.set_num_threads(1024)
q = np.ones((1, 8, 3000, 64), np.float32)
found = []
for _ in range(3):
    try:
        found.append(bool(abs(headway.attention(q, q, q) - 1).max() < 1e-5))
    except MemoryError:
        found.append("MemoryError")
headway.set_num_threads(1)
headway.release_memory()
found.append(bool(abs(headway.attention(q, q, q) - 1).max() < 1e-5))
print(json.dumps(found))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="this machine: has no RLIMIT_AS that counts")
def test_more_threads_than_the_address_space_holds() -> None:
    """The process survives: the result is right or it is a MemoryError, and life goes on."""
    found = run_python(THOUSAND_THREADS, timeout=120)
    assert all(one in (True, "MemoryError") for one in found[:3]), found
    assert found[3] is True


# The interpreter's end ----------------------------------------------------------------------------

DAEMON = """
import sys, threading, time
import numpy as np
import headway

headway.set_num_threads(int(sys.argv[1]))
x = np.ones((1, 8, 1500, 64), np.float32)
project = headway.Projection(np.ones((64, 2000), np.float32))
inside = threading.Event()

def compute():
    while True:
        inside.set()
        if sys.argv[2] == "attention":
            headway.attention(x, x, x)
        elif sys.argv[2] == "lse":
            headway.attention(x, x, x, return_lse=True)
        elif sys.argv[2] == "weights":
            headway.attention_weights(x[:, :2], x[:, :2])
        else:
            project(x)

threading.Thread(target=compute, daemon=True).start()
inside.wait()
time.sleep(float(sys.argv[3]))
"""


@pytest.mark.parametrize("call", ["attention", "lse", "weights", "projection"])
@pytest.mark.parametrize("threads", ["1", "2", "8"])
def test_a_daemon_thread_inside_a_call_when_the_interpreter_ends(threads: str, call: str) -> None:
    """The process ends as if the thread had not been there, wherever the thread is."""
    for pause in ("0", "0.01", "0.037", "0.1"):
        done = subprocess.run(
            [sys.executable, "-c", DAEMON, threads, call, pause],
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), f"pause of {pause} s"
