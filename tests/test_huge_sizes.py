"""Sizes beyond any memory, in every entry point: an exception, no wrap-around, no lost process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import run_python

import headway
from headway import available, frequencies

ON_LINUX = pytest.mark.skipif(
    sys.platform != "linux", reason="this machine: has no RLIMIT_AS that counts"
)

#: Every line of CALLS in a process that may have one GiB more than it has: what comes of it.
PROGRAM = """
import faulthandler, json, resource, sys
import numpy as np
import headway as hw

faulthandler.dump_traceback_later(400, exit=True)
E, W = 2**40, 2**59

def row(*shape, dtype=np.float32):
    return np.broadcast_to(dtype(1), shape)

few, small = np.ones((1, 1, 3, 4), np.float32), np.ones((3, 4), np.float32)
lse = np.zeros((1, 1, 3), np.float32)
project = hw.Projection(np.ones((4, 6), np.float32))
module = hw.MultiHeadAttention.init(4, 8, num_heads=2)
stack = module.split()
cache, ring = hw.KVCache(1, 1, 8, 4, grow=True), hw.KVCache(1, 1, 8, 4, window=4)
pages = hw.PagedKVCache(4, 4, 1, 4)
a = pages.add()
pages.append([a], few, few)
cache.append(few, few)
many_lse, many = row(1, 1, E), row(1, 1, E, 4)
before = pages.lengths().tolist(), cache.lengths.tolist(), pages.free_pages
with open("/proc/self/statm") as file:
    now = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + 2**30,) * 2)
outcomes = {}
for line in json.loads(sys.argv[1]):
    try:
        eval(line)
        outcomes[line] = "returned"
    except Exception as error:
        outcomes[line] = type(error).__name__ if str(error) else "without a text"
same = bool(np.isfinite(hw.attention(few, few, few)).all())
after = pages.lengths().tolist(), cache.lengths.tolist(), pages.free_pages
print(json.dumps([outcomes, same and before == after]))
"""

CALLS = [
    "hw.attention(many, few, few)",
    "hw.attention(row(E, 1, 1, 4), row(E, 1, 1, 4), row(E, 1, 1, 4))",
    "hw.attention(row(1, E, 1, 4), row(1, 1, 1, 4), row(1, 1, 1, 4))",
    "hw.attention(few, few, row(1, 1, 3, E))",
    "hw.attention(row(1, 1, 3, E), row(1, 1, 3, E), few)",
    "hw.attention(row(1, 1, 1, W), row(1, 1, 1, W), few[:, :, :1])",
    "hw.attention(row(2**20, 2**20, 2**19, 1), row(2**20, 1, 1, 1), row(2**20, 1, 1, 1))",
    "hw.attention(many, few, few, return_lse=True, layout='BTHD')",
    "hw.attention(few, few, few, mask=row(E, 1, 1, 1))",
    "hw.attention(few, few, few, alibi_slopes=row(W, dtype=np.float64))",
    "hw.attention(few, few, few, alibi_slopes=range(2**62))",
    "hw.attention(few, few, few, sinks=row(W, dtype=np.float64))",
    "hw.attention(few, few, few, sinks=row(2**25))",
    "hw.attention(few, few, few, kv_lengths=row(W, dtype=np.int64))",
    "hw.attention(few, few, few, kv_lengths=range(2**40))",
    "hw.attention(few, few, few, align=row(W, dtype=np.int64))",
    "hw.attention(few, few, few, align=range(2**40))",
    "hw.attention(few, few, few, window=row(W, dtype=np.int64))",
    "hw.attention(few, few, few, window=range(2**63))",
    "hw.attention(few, few, few, out=row(1, 1, E, 4))",
    "hw.attention_weights(many, few)",
    "hw.attention_weights(few, many)",
    "hw.attention_weights(row(1, 1, 2**32, 1), row(1, 1, 2**32, 1))",
    "hw.attention_scores(row(1, 2**20, 2**20, 1), row(1, 1, 2**30, 1))",
    "hw.attention_varlen(row(E, 1, 4), small[:, None], small[:, None], [0, E], [0, 3])",
    "hw.attention_varlen(small[:, None], small[:, None], small[:, None], row(W, dtype=np.int64))",
    "hw.attention_varlen(small[:, None], small[:, None], small[:, None], range(2**40))",
    "hw.attention_backward(many, many, few, few, many, many_lse)",
    "hw.attention_backward(few, few, many, many, few, lse)",
    "hw.attention_backward(few, few, few, few, few, lse, mask=row(1, 1, 1, E), mask_grad=True)",
    "hw.attention_varlen_backward(row(E, 1, 4), row(E, 1, 4), small[:, None], small[:, None], "
    "row(E, 1, 4), row(1, E), [0, E], [0, 3])",
    "hw.merge_partials([many, many], [many_lse, many_lse])",
    "hw.merge_partials([many[:, :, :, :0]], [many_lse])",
    "hw.rotary_embedding(many, 0)",
    "hw.rotary_embedding(few, row(W, dtype=np.int64))",
    "hw.rotary_embedding(few, row(2**20, E, dtype=np.int8))",
    "hw.rotary_embedding(few, range(2**40))",
    "hw.rotary_embedding(row(1, 1, 1, E), 0)",
    "hw.alibi_slopes(2**60)",
    "hw.Projection(row(E, 4))",
    "hw.Projection(row(2**30, 2**30))",
    "project(row(E, 4))",
    "project.forward(row(2**20, 2**20, 4), save=True)",
    "hw.MultiHeadAttention.init(2**40, 2**40, num_heads=2)",
    "hw.MultiHeadAttention.init(4, 2**62, num_heads=2**61)",
    "hw.StackedMultiHeadAttention.init(2**40, 8, num_heads=2)",
    "hw.CausalAttention.init(2**31, 2**31)",
    "hw.CausalAttention(row(E, 4), row(E, 4), row(E, 4))",
    "module(row(E, 4))",
    "module(row(2**30, 2**10, 4))",
    "module.heads(row(E, 4))",
    "module.forward(row(E, 4), save=True)",
    "module.trace(row(2**30, 4))",
    "stack(row(E, 4))",
    "stack.heads(row(E, 4))",
    "module.assign({'w_query': row(E, 8)})",
    "hw.KVCache(1, 1, 2**62, 4)",
    "hw.KVCache(2**40, 1, 1, 1)",
    "hw.KVCache(2**40, 2**40, 2**40, 2**40)",
    "hw.KVCache(1, 1, 2**33, 1, dtype='fp8_e4m3')",
    "hw.KVCache(1, 1, 8, 2**66)",
    "cache.append(row(1, 1, 2**40, 4), row(1, 1, 2**40, 4))",
    "cache.append(few, few, counts=row(W, dtype=np.int64))",
    "ring.append(row(1, 1, 2**40, 4), row(1, 1, 2**40, 4))",
    "cache.attend(many)",
    "cache.truncate(row(W, dtype=np.int64))",
    "cache.truncate(range(2**40))",
    "cache.reorder(row(W, dtype=np.int64))",
    "cache.reset(range(2**40))",
    "hw.PagedKVCache(2**40, 1, 1, 1)",
    "hw.PagedKVCache(2**31, 1, 1, 1, dtype='fp8_e4m3')",
    "hw.PagedKVCache(2**28, 1, 1, 1, dtype='fp8_e4m3')",
    "hw.PagedKVCache(1, 2**62, 1, 1)",
    "hw.PagedKVCache(2**40, 2**40, 2**40, 2**40)",
    "pages.append([a], row(1, 1, 2**40, 4), row(1, 1, 2**40, 4))",
    "pages.append(range(2**40), few, few)",
    "pages.attend(row(W, dtype=np.int64), few)",
    "pages.attend([a], many)",
    "pages.lengths(range(2**40))",
    "pages.truncate(a, 2**70)",
    "hw.trace(many, few, few)",
    "hw.trace(row(1, 1, 2**20, 1), row(1, 1, 2**20, 1), row(1, 1, 2**20, 1))",
    "module.trace(row(2**20, 4))",
    "hw.trace(row(1, 1, 2**31, 1), row(1, 1, 2**31, 1), row(1, 1, 2**31, 1))",
    "hw.trace(few, few, few, tokens=np.broadcast_to(np.array('a'), (2**40,)))",
    "hw.set_num_threads(2**70)",
    "hw.reference.attention(many, few, few)",
    "hw.reference.attention(few, few, row(1, 1, 3, E))",
    "hw.reference.attention_weights(few, many)",
    "hw.reference.rotary_embedding(many, 0)",
]


@ON_LINUX
def test_every_entry_point_refuses_what_no_machine_holds() -> None:
    """TypeError, ValueError or MemoryError with a text; what exists is unchanged and works."""
    import json

    outcomes, works = run_python(PROGRAM, json.dumps(CALLS), timeout=500)
    assert set(outcomes) == set(CALLS)
    expected = ("MemoryError", "_ArrayMemoryError", "ValueError", "TypeError")
    wrong = {line: found for line, found in outcomes.items() if found not in expected}
    assert not wrong
    assert works


# What there is ------------------------------------------------------------------------------------


def _machine(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


MEMINFO = {"proc/meminfo": "MemTotal: 99 kB\nMemAvailable:   4096 kB\nSwapFree: 1024 kB\n"}
VERSION_2 = MEMINFO | {
    "proc/self/cgroup": "0::/outer/inner\n",
    "sys/fs/cgroup/outer/inner/memory.max": "max\n",
    "sys/fs/cgroup/outer/inner/memory.current": "10\n",
    "sys/fs/cgroup/outer/memory.max": "3000000\n",
    "sys/fs/cgroup/outer/memory.current": "1000000\n",
    "sys/fs/cgroup/outer/memory.stat": "anon 5\ninactive_file 700000\n",
}
VERSION_1 = MEMINFO | {
    "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "2000\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "1500\n",
}


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({}, 2**63),
        (MEMINFO, 5120 * 1024),
        (MEMINFO | {"proc/self/cgroup": "0::/\n"}, 5120 * 1024),
        (VERSION_2, 2_700_000),
        (VERSION_2 | {"sys/fs/cgroup/outer/inner/memory.max": "10\n"}, 0),
        (VERSION_1, 500),
        (VERSION_1 | {"sys/fs/cgroup/memory/memory.usage_in_bytes": "2500\n"}, 0),
        (MEMINFO | {"proc/self/cgroup": "no line of it\n:\n"}, 5120 * 1024),
    ],
)
def test_what_a_process_can_still_have(tmp_path: Path, files: dict[str, str], wanted: int) -> None:
    """The least of what is free and of what the control groups leave, read from made files."""
    assert available.available_bytes(_machine(tmp_path, files)) == wanted


def test_more_than_there_is_is_refused_before_it_is_touched(monkeypatch: Any) -> None:
    """Where the system promises more memory than it has: caches and results alike."""
    from headway import arrays, cache_pages

    for module in (arrays, cache_pages):
        monkeypatch.setattr(module, "ALWAYS_THERE", 2**20)
        monkeypatch.setattr(module, "available_bytes", lambda: 2**21)
    headway.KVCache(1, 1, 2**17, 1)  # 1 MiB
    headway.KVCache(1, 1, 2**18, 1)
    for build in (
        lambda: headway.KVCache(1, 1, 2**19, 1),
        lambda: headway.KVCache(1, 1, 2**18, 1, dtype="int8", v_head_dim=2),
        lambda: headway.PagedKVCache(2**16, 1, 1, 1),
    ):
        with pytest.raises(MemoryError, match=r"^cache: expected a size that fits in memory, got "):
            build()
    cache = headway.KVCache(1, 1, 2**17, 1, grow=True)
    token = np.ones((1, 1, 2**17 + 2**10, 1), np.float32)
    with pytest.raises(MemoryError, match=r"^result: expected a size that fits in memory"):
        headway.attention_weights(token[:, :, :1024], token[:, :, :1024])
    cache.append(token, token)
    assert cache.capacity == 2**18
    with pytest.raises(MemoryError, match=r"^cache: expected"):
        cache.append(token, token)
    assert cache.lengths.tolist() == [2**17 + 2**10]


def test_frequencies_of_wide_rows_are_not_kept() -> None:
    """Of a row that fits nowhere none are made; of a wide one they are not kept."""
    made: list[int] = []
    original = frequencies._computed

    def counted(base: float, rotary_dim: int, recipe: Any) -> Any:
        made.append(rotary_dim)
        return original(base, rotary_dim, recipe)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frequencies, "_computed", counted)
        with pytest.raises(MemoryError, match="result: expected a size that fits in memory"):
            headway.rotary_embedding(np.broadcast_to(np.float32(1), (2**30, 2**30)), 0)
        assert made == []
        for _ in range(2):
            headway.rotary_embedding(np.ones((1, 2**17), np.float32), 0)
        assert made == [2**17, 2**17]
