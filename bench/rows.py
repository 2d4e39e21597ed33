"""The rows of the grid, all of them: attention, options, caches, modules, products."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import training_rows
from options import OPTIONS
from row import DTYPES as DTYPES
from row import QUANTISED as QUANTISED
from row import Row as Row
from row import visible_pairs as visible_pairs

LAYOUTS = ("BHTD", "BTHD")


def attention(name: str, sizes: Sequence[int], dtype: str, **more: Any) -> Row:
    """A prefill from (B, H, Hkv, T, D), or a chunk from (B, H, Hkv, Tq, Tk, D)."""
    batch, heads, kv_heads, queries, *keys, dim = sizes
    number = keys[0] if keys else queries
    return Row(name, "attention", dtype, batch, heads, kv_heads, queries, number, dim, **more)


def module(
    name: str, batch: int, tokens: int, heads: int, dim: int, dtype: str, **more: Any
) -> Row:
    kind = more.pop("kind", "module")
    return Row(name, kind, dtype, batch, heads, heads, tokens, tokens, dim, **more)


ATTENTION: dict[str, tuple[int, ...]] = {
    "tiny": (1, 1, 1, 8, 16),
    "prefill-64-batch": (64, 12, 12, 64, 64),
    "prefill-128": (1, 12, 12, 128, 64),
    "prefill-256-batch": (4, 16, 16, 256, 64),
    "prefill-512": (1, 12, 12, 512, 64),
    "prefill-1000": (1, 12, 12, 1000, 64),
    "prefill-1024": (1, 12, 12, 1024, 64),
    "prefill-1024-d80": (1, 16, 16, 1024, 80),
    "prefill-1024-d256": (1, 8, 8, 1024, 256),
    "prefill-1024-d128": (1, 32, 32, 1024, 128),
    "prefill-2048-gqa": (1, 32, 8, 2048, 128),
    "prefill-4096": (1, 8, 8, 4096, 64),
    "prefill-16384": (1, 8, 8, 16384, 64),
    "prefill-131072": (1, 1, 1, 131072, 64),
    "chunk-16": (1, 32, 8, 16, 4096, 128),
    "chunk-4": (1, 32, 8, 4, 4096, 128),
}
"""(B, H, Hkv, T, D) of the prefills, (B, H, Hkv, Tq, Tk, D) of the chunks."""

QUICK = ("tiny", "prefill-128", "prefill-1024", "chunk-16")

MODULES = {"module-768": (1, 1024, 12, 64), "module-1024": (4, 256, 16, 64)}
"""(batch, tokens, heads, head_dim); the input is heads * head_dim wide."""

PROJECTION = (768, 2304)
ALONE = ("headway@1", "headway@2")
"""Contestants of a row that asks what headway reaches by itself: one thread, and two."""


def grid_rows() -> Iterator[Row]:
    """Attention against every rival."""
    for name, sizes in ATTENTION.items():
        for dtype in DTYPES:
            for layout in LAYOUTS:
                row = attention(name, sizes, dtype, layout=layout)
                if row.long and (layout != "BHTD" or dtype == "float16"):
                    continue
                quick = name in QUICK and layout == "BHTD" and dtype != "float16"
                yield replace(row, quick=quick)


def share_rows() -> Iterator[Row]:
    """headway alone, whose shares of the peak are wanted: one thread beside two."""
    wide = ("prefill-1024", "prefill-1024-d80", "prefill-1024-d128", "prefill-1024-d256")
    wanted: dict[tuple[str, str | None], tuple[str, ...]] = {
        ("float32", "avx512"): ("prefill-128", "prefill-512", *wide, "chunk-16", "chunk-4"),
        ("float32", "avx2"): ("prefill-128", "prefill-512", *wide),
        ("bfloat16", None): ("prefill-128", "prefill-512", *wide),
        ("bfloat16", "avx512bf16"): ("prefill-128", "prefill-512", *wide),
        ("float16", None): ("prefill-1024",),
        ("float64", None): ("prefill-512", *wide),
        ("float64", "avx2"): ("prefill-1024",),
        ("bfloat16", "avx2"): ("prefill-1024",),
    }
    for (dtype, isa), names in wanted.items():
        for name in names:
            yield attention(
                f"share-{name}",
                ATTENTION[name],
                dtype,
                isa=isa,
                contestants=ALONE,
                quick=name == "prefill-1024" and isa != "avx2" and dtype != "float16",
            )


def projection_rows() -> Iterator[Row]:
    for dtype in DTYPES:
        for count, cold in ((1, True), (16, True), (1024, True), (1024, False)):
            name = f"projection-{count}-{'cold' if cold else 'warm'}"
            yield Row(
                name,
                "projection",
                dtype,
                num_queries=count,
                num_keys=count,
                d_in=PROJECTION[0],
                d_out=PROJECTION[1],
                cold=cold,
                quick=count == 16,
            )


def stage_rows() -> Iterator[Row]:
    """Stage 1 against stage 2 in float32: 2 to 16 heads, 1 to 1024 tokens."""
    for heads, dim in ((2, 64), (4, 32), (12, 64), (16, 64)):
        for tokens in (1, 16, 128, 1024):
            yield module(
                f"stages-{heads}x{dim}-{tokens}",
                1,
                tokens,
                heads,
                dim,
                "float32",
                kind="stages",
                quick=heads == 2 and tokens == 128,
            )


OPTION_SIZES = (1, 12, 12, 1024, 64)
WINDOW_SIZES = (1, 8, 8, 8192, 64)
PACKED = (1000, *[1] * 99)


def option_rows() -> Iterator[Row]:
    """Each option beside the plain call; a narrow window; one long sequence among short ones."""
    sizes = dict.fromkeys(OPTIONS, OPTION_SIZES) | {"window-128": WINDOW_SIZES}
    for option, (batch, heads, kv_heads, tokens, dim) in sizes.items():
        yield Row(
            f"options-{option}",
            "options",
            "float32",
            batch,
            heads,
            kv_heads,
            tokens,
            tokens,
            dim,
            option=option,
            quick=option in ("plain", "all"),
        )
    yield Row(
        "options-packed",
        "packed",
        "float32",
        num_heads=12,
        num_kv_heads=12,
        num_queries=max(PACKED),
        num_keys=max(PACKED),
        head_dim=64,
        lengths=PACKED,
        quick=True,
    )


DECODE: dict[str, tuple[int, ...]] = {
    "decode-4096-gqa": (1, 32, 8, 1, 4096, 128),
    "decode-1024-batch": (8, 32, 8, 1, 1024, 128),
    "decode-16384-mqa": (1, 8, 1, 1, 16384, 128),
    "decode-2048": (1, 32, 32, 1, 2048, 128),
}
"""(B, H, Hkv, 1, L, D)."""

GROWTH = tuple(1024 * 2**n for n in range(7))
"""Lengths of the cache of one key head, whose time is to grow as they do."""
CACHES_ALONE = ("headway", "read")
CACHES_BESIDE: dict[str, tuple[str, ...]] = {
    "int8": ("headway", "headway-bfloat16", "read"),
    "fp8_e4m3": ("headway", "headway-bfloat16", "read", "vllm"),
}
"""Contestants of the quantised caches; of rivals one alone has fp8_e4m3, and none int8."""


def decode_rows() -> Iterator[Row]:
    """One query per sequence, from memory and from the cache of the CPU; then ever longer caches.

    Quantised caches are timed beside a bfloat16 one.
    """
    for name, sizes in DECODE.items():
        for dtype in (*DTYPES, *QUANTISED):
            for cold in (True, False):
                row = attention(name, sizes, dtype, cold=cold)
                who = CACHES_BESIDE.get(dtype, ())
                quick = name == "decode-16384-mqa" and dtype == "float32" and not cold
                yield replace(row, kind="decode", contestants=who, quick=quick)
    for dtype in ("float32", "bfloat16", "int8"):
        for length in GROWTH:
            sizes = (1, 8, 1, 1, length, 128)
            row = attention(f"decode-growth-{length}", sizes, dtype, cold=True)
            yield replace(row, kind="decode", contestants=CACHES_ALONE)


def all_rows() -> list[Row]:
    """Every row, in the order in which they are measured."""
    modules = [
        module(name, *sizes, dtype, quick=dtype == "float32" and name == "module-768")
        for name, sizes in MODULES.items()
        for dtype in DTYPES
    ]
    attentions = [*grid_rows(), *share_rows(), *option_rows(), *decode_rows()]
    training = training_rows.training_rows()
    return [*attentions, *modules, *projection_rows(), *stage_rows(), *training]
