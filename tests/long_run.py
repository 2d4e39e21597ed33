"""Many mixed calls from several threads: results checked, and memory watched.

    python tests/long_run.py --calls 10000 --threads 4

Ends with code 1 if a result differs by a bit from that of the same call made alone, or if memory
grows by 1 MiB or more in a thousand calls after the first fifth (the slope of a straight line
through the figures).
"""

from __future__ import annotations

import argparse
import mmap
import pickle
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from helpers import DTYPES, make, make_qkv

import headway as hw

MOST_GROWTH = 2**20  # bytes in a thousand calls
OPTIONS: dict[str, Any] = {"softcap": 2.0, "window": 30, "sinks": [0.5, 1.0, 0.0, 2.0]}


def problems() -> list[Callable[[], Any]]:
    """Return mixed calls: every path, several shapes and dtypes."""
    found: list[Callable[[], Any]] = []
    for n, dtype in enumerate(DTYPES):
        q, k, v = make_qkv(n, dtype, heads=(4, 2), tokens=(40 + 9 * n, 90), head_dim=16 + 8 * n)
        out, lse = hw.attention(q, k, v, return_lse=True)
        packed = [x[0].swapaxes(0, 1) for x in (q, k, v)]
        cuts_q, cuts_k = [0, 11, len(packed[0])], [0, 40, 90]
        project = hw.Projection(make(n, (q.shape[3], 48), dtype))
        module = hw.MultiHeadAttention.init(q.shape[3], 32, num_heads=4, dtype=q.dtype)

        def decode(q: Any = q, k: Any = k, v: Any = v) -> list[Any]:
            cache = hw.KVCache(1, 2, 16, q.shape[3], dtype=q.dtype, grow=True)
            pages = hw.PagedKVCache(8, 16, 2, q.shape[3], dtype=q.dtype)
            id = pages.add()
            cache.append(k, v)
            pages.append([id], k, v)
            return [cache.attend(q[:, :, :1]), pages.attend([id], q)]

        def train(module: Any = module, x: Any = q[0, 0]) -> list[Any]:
            own = pickle.loads(pickle.dumps(module))
            z = own.forward(x, save=True)
            return [z, own.backward(z).x]

        found += [
            lambda q=q, k=k, v=v: hw.attention(q, k, v),
            lambda q=q, k=k, v=v: hw.attention(q, k, v, return_lse=True, **OPTIONS),
            lambda q=q, k=k: hw.attention_weights(q, k, window=20),
            lambda p=packed, a=cuts_q, b=cuts_k: hw.attention_varlen(*p, a, b),
            lambda a=(out, q, k, v, out, lse): hw.attention_backward(*a),
            lambda q=q: hw.rotary_embedding(q, 5),
            lambda p=project, x=q: p(x),
            decode,
            train,
        ]  # fmt: skip
    return found


def _bytes(found: Any) -> list[bytes]:
    arrays = found if isinstance(found, (list, tuple)) else [found]
    return [np.ascontiguousarray(x).tobytes() for x in arrays]


def resident() -> int:
    """Bytes of memory that the process has now."""
    with open("/proc/self/statm") as pages:
        return int(pages.read().split()[1]) * mmap.PAGESIZE


def run(total: int, threads: int) -> int:
    """Make the calls; return the exit code."""
    calls = problems()
    expected = [_bytes(call()) for call in calls]
    lock, done, wrong, sizes = threading.Lock(), [0], [0], list[tuple[int, int]]()

    def work(seed: int) -> None:
        g = np.random.default_rng(seed)
        while True:
            with lock:
                if done[0] >= total:
                    return
                done[0] += 1
                if done[0] % (total // 50) == 0:
                    sizes.append((done[0], resident()))
            n = int(g.integers(len(calls)))
            if _bytes(calls[n]()) != expected[n]:
                with lock:
                    wrong[0] += 1

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    late = np.array([each for each in sizes if each[0] > total // 5], np.float64)
    slope = 1000 * np.polyfit(late[:, 0], late[:, 1], 1)[0]
    print(
        f"{total} calls from {threads} threads: {wrong[0]} differ; memory "
        f"{sizes[-1][1] / 2**20:.0f} MiB, growing by {slope / 2**20:.3f} MiB in a thousand calls"
    )
    return int(wrong[0] > 0 or slope >= MOST_GROWTH)


def main() -> int:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=4)
    asked = parser.parse_args()
    return run(asked.calls, asked.threads)


if __name__ == "__main__":
    sys.exit(main())
