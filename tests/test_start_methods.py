"""Other ways to more than one process or thread: pools of processes, futures, joblib, OpenMP."""

from __future__ import annotations

import copy
import ctypes
import os
import pickle
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from helpers import Array, make_qkv, run_python

import headway

NO_TASKS = pytest.mark.skipif(
    sys.platform != "linux", reason="this machine: has no /proc/self/task"
)

WORKER = """
import numpy as np
import headway

def work(seed):
    g = np.random.default_rng(seed)
    q, k, v = (g.standard_normal((1, 4, 300, 16)).astype(np.float32) for _ in range(3))
    out, lse = headway.attention(q, k, v, return_lse=True)
    project = headway.Projection(q[0, 0].T.copy())
    grads = headway.attention_backward(out, q, k, v, out, lse)
    return [x.tobytes() for x in (out, lse, project(q[0, 0]), *grads)]
"""

MAIN = """
import json, multiprocessing, os, sys, threading
from concurrent.futures import ProcessPoolExecutor
sys.path.insert(0, sys.argv[2])
import headway
from pool_worker import work

if __name__ == "__main__":
    headway.set_num_threads(2)
    expected = [work(n) for n in range(4)]
    stop = threading.Event()
    busy = threading.Thread(target=lambda: [work(9) for _ in iter(stop.is_set, True)])
    busy.start()
    if sys.argv[1] == "joblib":
        from joblib import Parallel, delayed
        found = Parallel(n_jobs=2)(delayed(work)(n) for n in range(4))
    else:
        context = multiprocessing.get_context(sys.argv[1])
        with ProcessPoolExecutor(2, mp_context=context) as pool:
            found = list(pool.map(work, range(4)))
    stop.set()
    busy.join()
    print(json.dumps(found == expected))
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver", "joblib"])
def test_pools_of_processes(method: str, tmp_path: Any) -> None:
    """Children of a process that computes meanwhile get its results, forward and backward."""
    if method == "joblib":
        pytest.importorskip("joblib")
    elif method not in __import__("multiprocessing").get_all_start_methods():
        pytest.skip(f"this machine: has no {method}")
    (tmp_path / "pool_worker.py").write_text(WORKER)
    (tmp_path / "pool_main.py").write_text(MAIN)
    code = "import sys, os; os.execv(sys.executable, [sys.executable, sys.argv[3], *sys.argv[1:3]])"
    quiet = {"PYTHONWARNINGS": "ignore::DeprecationWarning"}
    folder = str(tmp_path)
    assert (
        run_python(code, method, folder, f"{folder}/pool_main.py", env=quiet, timeout=300) is True
    )


def _tasks() -> int:
    return len(os.listdir("/proc/self/task"))


@NO_TASKS
@pytest.mark.usefixtures("any_threads")
def test_many_python_threads_do_not_multiply_without_end() -> None:
    """At most the library's threads for each Python thread, and they go with it."""
    q, k, v = make_qkv(1, "float32", heads=(4, 4), tokens=(200, 200), head_dim=16)
    headway.set_num_threads(2)
    expected, before, most = headway.attention(q, k, v), _tasks(), []

    def work(_: int) -> Array:
        out = headway.attention(q, k, v)
        most.append(_tasks())
        return out

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(work, range(200)))
    assert all(x.tobytes() == expected.tobytes() for x in found)
    assert max(most) <= before + 8 * 2
    ends = time.monotonic() + 60  # the library's threads end soon after the threads that called
    while _tasks() > before + 2 and time.monotonic() < ends:
        time.sleep(0.05)
    assert _tasks() <= before + 2


def _openmp() -> Any:
    """The OpenMP runtime of GCC that the extension has loaded, or None."""
    with open("/proc/self/maps") as maps:
        names = {line.split()[-1] for line in maps if "libgomp" in line}
    own = [name for name in names if "torch" not in name]
    return ctypes.CDLL(own[0]) if len(own) == 1 else None


@NO_TASKS
@pytest.mark.usefixtures("any_threads")
def test_a_call_inside_a_parallel_region_runs_in_its_thread() -> None:
    """Python called back from OpenMP threads: right results, and not a single thread more."""
    runtime = _openmp()
    if runtime is None:
        pytest.skip("this machine: not built with GCC's OpenMP")
    q, k, v = make_qkv(1, "float32", heads=(8, 8), tokens=(300, 300), head_dim=16)
    headway.set_num_threads(8)
    expected = headway.attention(q, k, v)
    runtime.omp_set_max_active_levels(5)  # nested regions would get threads
    found: list[tuple[bytes, int, int]] = []

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def region(_: Any) -> None:
        before = _tasks()
        out = headway.attention(q, k, v)
        found.append((out.tobytes(), before, _tasks()))

    try:
        runtime.GOMP_parallel(region, None, 2, 0)
    finally:
        runtime.omp_set_max_active_levels(1)
    assert [out for out, *_ in found] == [expected.tobytes()] * 2
    assert all(after <= before for _, before, after in found)


# Copies and pickles -------------------------------------------------------------------------------


def _objects() -> dict[str, Any]:
    q, k, v = make_qkv(1, "float32", tokens=(3, 3), head_dim=4)
    module = headway.MultiHeadAttention.init(6, 8, num_heads=2, qkv_bias=True, out_proj=True)
    stack = headway.StackedMultiHeadAttention.init(6, 8, num_heads=2)
    cache, pages = headway.KVCache(1, 2, 8, 4, dtype="int8"), headway.PagedKVCache(3, 2, 2, 4)
    cache.append(k, v)
    pages.append([pages.add()], k, v)
    project = headway.Projection(np.ones((4, 5), np.float32))
    project.forward(q, save=True)
    return {
        "CausalAttention": headway.CausalAttention.init(4, 3),
        "Cost": headway.cost(batch=1, num_tokens=8, d_in=4, d_out=4, num_heads=2),
        "Gradients": project.backward(np.ones((1, 2, 3, 5), np.float32)),
        "KVCache": cache,
        "MultiHeadAttention": module,
        "PagedKVCache": pages,
        "Projection": project,
        "StackedMultiHeadAttention": stack,
        "Trace": headway.trace(q, k, v, window=2),
        "Trace of a module": module.trace(np.ones((3, 6), np.float32)),
        "Step": headway.trace(q, k, v)["weights_1"],
    }


def _shown(x: Any) -> str:
    """What an object shows of itself, and what it computes."""
    shown = f"{x!r} {x}"
    if callable(x):
        shown += str(x(np.ones((3, x.d_in), np.float32)).tobytes())
    if hasattr(x, "attend"):
        before = ([0],) if isinstance(x, headway.PagedKVCache) else ()
        shown += str(x.attend(*before, np.ones((1, 2, 2, 4), np.float32)).tobytes())
    return shown


@pytest.mark.parametrize("name", _objects())
def test_copies_and_pickles_of_every_public_object(name: str) -> None:
    """They show and compute the same, by copy, deepcopy and every protocol from 2 on."""
    x = _objects()[name]
    wanted = _shown(x)
    protocols = range(2, pickle.HIGHEST_PROTOCOL + 1)
    for twin in (
        copy.copy(x),
        copy.deepcopy(x),
        *(pickle.loads(pickle.dumps(x, p)) for p in protocols),
    ):
        assert type(twin) is type(x)
        assert _shown(twin) == wanted


def test_no_public_class_is_left_out() -> None:
    """Whatever can be pickled and is public is tried above."""
    public = {name for name in headway.__all__ if isinstance(getattr(headway, name), type)}
    assert public <= set(_objects())
