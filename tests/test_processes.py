"""Forks, failures on the way, the lowest instruction set, and Ctrl-C."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest
from helpers import assert_same_bits, make_qkv, run_python
from interruption import assert_interruptible

import headway

FORK = """
import json, os, select, sys, threading, time
import numpy as np
import headway

threads, busy = int(sys.argv[1]), sys.argv[2] == "busy"
headway.set_num_threads(threads)
g = np.random.default_rng(1)
q, k, v = (g.standard_normal((1, 4, 512, 32)).astype(np.float32) for _ in range(3))
expected = headway.attention(q, k, v)
stop = threading.Event()

def compute():
    while not stop.is_set():
        headway.attention(q, k, v)

def child_agrees(depth):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        same = all(headway.attention(q, k, v).tobytes() == expected.tobytes() for _ in range(3))
        headway.set_num_threads(threads + 1)
        same = same and headway.attention(q, k, v).tobytes() == expected.tobytes()
        if same and depth > 1:
            same = child_agrees(depth - 1)
        os.write(writer, b"y" if same else b"n")
        os._exit(0)
    os.close(writer)
    ready, _, _ = select.select([reader], [], [], 30)
    answer = os.read(reader, 1) if ready else b"late"
    os.close(reader)
    if answer == b"late":
        os.kill(child, 9)
    os.waitpid(child, 0)
    return answer == b"y"

other = threading.Thread(target=compute)
if busy:
    other.start()
    time.sleep(0.1)
answers = [child_agrees(2) for _ in range(5)]
stop.set()
if busy:
    other.join()
same = headway.attention(q, k, v).tobytes() == expected.tobytes()
print(json.dumps([answers, same]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this machine: has no fork")
@pytest.mark.parametrize("busy", ["idle", "busy"])
@pytest.mark.parametrize("threads", ["1", "2", "3"])
def test_fork(threads: str, busy: str) -> None:
    """A child of a process that computes in threads, and its child, get the parent's result.

    In the second form another thread of the parent computes while the child is made.
    """
    quiet = {"PYTHONWARNINGS": "ignore::DeprecationWarning"}
    answers, same = run_python(FORK, threads, busy, env=quiet, timeout=200)
    assert answers == [True] * 5
    assert same


@pytest.mark.parametrize("shape", [(1, 1, 2**40, 64), (2**40, 1, 1, 64), (1, 2**40, 1, 64)])
def test_a_result_no_machine_can_hold(shape: tuple[int, ...], isa: str, threads: int) -> None:
    """It is a Python exception, and the next call works."""
    q, k, v = make_qkv(1, "float32", heads=(2, 1), tokens=(9, 9), head_dim=64)
    expected = headway.attention(q, k, v)
    huge = np.broadcast_to(q[:1, :1, :1], shape)
    few = np.broadcast_to(k[:, :, :1], (shape[0], 1, 1, 64))
    with pytest.raises(MemoryError):
        headway.attention(huge, few, few)
    with pytest.raises(MemoryError):
        headway.attention_weights(np.broadcast_to(q[:1, :1, :1], (1, 1, 2**46, 64)), k[:1])
    assert_same_bits(headway.attention(q, k, v), expected)


@pytest.mark.parametrize("shape", [(1, 1, 2**40, 64), (1, 1, 2**56, 2)])
def test_more_keys_than_any_machine_holds(shape: tuple[int, ...], isa: str) -> None:
    """Keys of which the causal rule hides all but a few take no time and no memory."""
    q, k, v = make_qkv(1, "float32", tokens=(3, 9), head_dim=shape[3], heads=(1, 1))
    many_k = np.broadcast_to(k[:, :, :1], shape)
    many_v = np.broadcast_to(v[:, :, :1], shape)
    out = headway.attention(q, many_k, many_v, align="start")
    few = headway.attention(q, many_k[:, :, :3], many_v[:, :, :3])
    assert_same_bits(out, few)
    if shape[2] > 2**46:  # a matrix beyond the address space
        with pytest.raises(MemoryError):
            headway.attention_weights(q, many_k)


SCARCE = """
import json, resource
import numpy as np
import headway

def start_threads():
    small = np.ones((8, 1000, 8), np.float32)
    headway.attention(small, small, small)

headway.set_num_threads(2)
g = np.random.default_rng(1)
q, k, v = (g.standard_normal((8, 40, 32768)).astype(np.float32) for _ in range(3))
out = np.zeros_like(q)
expected = np.zeros_like(q)
start_threads()
hard = resource.getrlimit(resource.RLIMIT_AS)[1]
found = []
for extra in [n * 2**22 for n in range(64)] + [2**29]:
    with open("/proc/self/statm") as pages:
        now = int(pages.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + extra, hard))
    try:
        headway.attention(q, k, v, out=out)
        result = True
    except MemoryError:
        result = False
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    start_threads()
    found.append([result, out.copy() if result else None])
    if result:
        break
headway.attention(q, k, v, out=expected)
same = all(x.tobytes() == expected.tobytes() for result, x in found if result)
print(json.dumps([[result for result, _ in found], same]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="this machine: has no /proc/self/statm")
def test_memory_that_runs_out_on_the_way() -> None:
    """Where working memory cannot be had a MemoryError comes out, in whichever thread it is.

    The process has a little more memory each time, until the call succeeds.
    """
    found, same = run_python(SCARCE)
    assert found[0] is False
    assert found[-1] is True
    assert same


FEW_THREADS = """
import json, resource
import numpy as np
import headway

headway.set_num_threads(8)
g = np.random.default_rng(1)
q, k, v = (g.standard_normal((8, 1000, 16)).astype(np.float32) for _ in range(3))
out, expected = np.zeros_like(q), np.zeros_like(q)
with open("/proc/self/statm") as pages:
    now = int(pages.read().split()[0]) * resource.getpagesize()
hard = resource.getrlimit(resource.RLIMIT_AS)[1]
resource.setrlimit(resource.RLIMIT_AS, (now + 2**22, hard))
try:
    headway.attention(q, k, v, out=out)
    result = True
except (MemoryError, RuntimeError):
    result = False
resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
headway.attention(q, k, v, out=expected)
print(json.dumps(not result or out.tobytes() == expected.tobytes()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="this machine: has no /proc/self/statm")
def test_threads_that_cannot_be_started() -> None:
    """No room for the stack of another thread: fewer threads, or an exception; no lost process."""
    assert run_python(FEW_THREADS) is True


LOWEST = """
import json
import numpy as np
import headway

g = np.random.default_rng(104)
qkv = g.standard_normal((2, 6, 3, 4, 8)).astype(np.float32)
q, k, v = (qkv[:, :, n].transpose(0, 2, 1, 3) for n in range(3))
out = headway.attention(q, k, v)
print(json.dumps([headway.isa(), out[1, 3, 5, :3].tolist()]))
"""


@pytest.mark.parametrize("name", headway.available_isas())
def test_instruction_set_from_the_environment(name: str) -> None:
    """HEADWAY_ISA picks the instruction set, the lowest too, and results are right with it."""
    found, numbers = run_python(LOWEST, env={"HEADWAY_ISA": name})
    assert found == name
    np.testing.assert_allclose(numbers, [0.674149, 0.475887, 0.592413], rtol=1e-5)


def test_the_lowest_instruction_set_is_always_there() -> None:
    """Every machine has the scalar kernels, and they come last."""
    assert headway.available_isas()[-1] == "scalar"


INTERRUPT = """
import json, sys, time
import numpy as np
import headway

headway.set_num_threads(int(sys.argv[1]))
g = np.random.default_rng(1)
q, k, v = (g.standard_normal((1, 8, 96, 64)).astype(np.float32) for _ in range(3))
expected = headway.attention(q, k, v)
tokens = 2**int(sys.argv[2])
long = [np.broadcast_to(x[:, :1, :1], (1, 8, tokens, 64)) for x in (q, k, v)]
out = np.empty(long[0].shape, np.float32)
out[:] = 0
print("ready", flush=True)
try:
    headway.attention(*long, out=out)
    print("finished", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
print(json.dumps(headway.attention(q, k, v).tobytes() == expected.tobytes()))
"""


@pytest.mark.skipif(os.name != "posix", reason="this machine: has no SIGINT")
@pytest.mark.parametrize(
    ("name", "threads"),
    [(name, threads) for name in headway.available_isas() for threads in ("1", "2")],
)
def test_ctrl_c(name: str, threads: str) -> None:
    """SIGINT during a call of many seconds raises KeyboardInterrupt soon; the next call works."""
    # 2**17 tokens: 17 TFLOP, more than any core computes in the two seconds waited for here.
    assert_interruptible(INTERRUPT, threads, "17", env={"HEADWAY_ISA": name})
