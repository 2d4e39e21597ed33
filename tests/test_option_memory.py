"""No option allocates a matrix of scores, nor a mask written out."""

from __future__ import annotations

import json
import sys

import pytest
from helpers import run_python
from peaks import MIB, START

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="this machine: has no /proc/self/status"
)

ATTENTION = """
tokens, heads, head_dim, dtype, names = json.loads(sys.argv[1])
dtype = dtype_of(dtype)
headway.set_num_threads(2)
g = np.random.default_rng(1)
q, k, v = (g.standard_normal((1, heads, tokens, head_dim), np.float32).astype(dtype) for _ in "qkv")
key, query = np.arange(tokens), np.arange(tokens)[:, None]
options = {
    "window": {"window": 512},
    "two-sided": {"window": (300, 200), "causal": False},
    "softcap": {"softcap": 30.0},
    "alibi": {"alibi_slopes": headway.alibi_slopes(heads)},
    "sinks": {"sinks": np.ones(heads)},
    "lengths": {"kv_lengths": [tokens - 100], "align": "start"},
    "key-mask": {"mask": (key % 7 > 0)[None, None, None]},
    "query-mask": {"mask": (query % 7 > 0)[None, None]},
    "broadcast-mask": {"mask": np.broadcast_to(key % 7 > 0, (1, heads, tokens, tokens))},
    "float-key-mask": {"mask": np.where(key % 7 > 0, 0.5, -np.inf).astype(np.float16)},
    "odd-key-mask": {"mask": np.repeat(np.where(key % 7 > 0, 0.5, -np.inf), 2)[::-2]},
}
chosen = {}
for name in names:
    chosen.update(options[name])
out = np.ones(q.shape, dtype)  # every page is there before the call
small = [x[:, :, :64] for x in (q, k, v)]
headway.attention(*small)  # so are the threads
small_options = {n: x for n, x in chosen.items() if n not in ("mask", "kv_lengths")}
headway.attention(*small, **small_options)
if "packed" in sys.argv:
    cu = np.array([0, 5, tokens // 2, tokens])
    packed = [x[0].swapaxes(0, 1) for x in (q, k, v)]
    call = lambda: headway.attention_varlen(*packed, cu, out=out[0].swapaxes(0, 1), **chosen)
else:
    call = lambda: headway.attention(q, k, v, out=out, return_lse=True, **chosen)
print(json.dumps([peak_of(call), bool(np.isfinite(out[:, :, ::97].astype(np.float32)).all())]))
"""


def peak(tokens: int, heads: int, dtype: str, names: list[str], *more: str) -> int:
    """Return by how many bytes a call's peak lies above what was there before it."""
    settings = json.dumps([tokens, heads, 64, dtype, names])
    beyond, finite = run_python(START + ATTENTION, settings, *more, timeout=300)
    assert finite
    return int(beyond)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sixteen_thousand_tokens(dtype: str) -> None:
    """Many options on 16,384 tokens, 4 heads of 64: a matrix of scores would take 4 GiB.

    A mask of bools written out for one head would take 256 MiB.
    """
    beyond = peak(16_384, 4, dtype, ["window", "softcap", "alibi", "sinks", "key-mask"])
    assert beyond < 16 * MIB, f"{beyond / MIB:.1f} MiB"


OPTIONS = (
    *("window", "two-sided", "softcap", "alibi", "sinks", "lengths", "key-mask", "query-mask"),
    *("broadcast-mask", "float-key-mask", "odd-key-mask"),
)


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option(name: str) -> None:
    """One option on 6,144 tokens, 2 heads: a head's scores would take 144 MiB, a mask 36 MiB."""
    beyond = peak(6144, 2, "float32", [name])
    assert beyond < 6 * MIB, f"{beyond / MIB:.1f} MiB"


def test_packed() -> None:
    """Three members in one call, with all that it takes."""
    beyond = peak(8192, 2, "float32", ["two-sided", "softcap", "alibi", "sinks"], "packed")
    assert beyond < 6 * MIB, f"{beyond / MIB:.1f} MiB"


def test_memory_does_not_grow_with_tokens() -> None:
    """Four times the tokens need no more than their longer mask and lse."""
    names = ["window", "softcap", "alibi", "sinks", "float-key-mask"]
    few, many = (peak(tokens, 2, "float32", names) for tokens in (4096, 16_384))
    assert many < few + MIB, f"{few / MIB:.2f} and {many / MIB:.2f} MiB"
