"""Decoding with grouped heads: to a call without a mask, a group's heads are as good as queries."""

from __future__ import annotations

from dataclasses import replace

from inputs import Inputs
from rows import Row

from . import Prepare, Prepared, fastest


def folded(row: Row, inputs: Inputs) -> tuple[Row, Inputs]:
    """The row as one of Hkv heads with H / Hkv queries each; its q is (B, Hkv, H / Hkv, D)."""
    group = row.num_heads // row.num_kv_heads
    shape = (row.batch, row.num_kv_heads, group, row.head_dim)
    fewer = replace(row, num_heads=row.num_kv_heads, num_queries=group)
    return fewer, Inputs({**inputs.arrays, "q": inputs["q"].reshape(shape)})


def quicker(prepare: Prepare) -> Prepare:
    """Of a decode row with grouped heads, the quicker of its heads and the folded ones."""

    def chosen(row: Row, inputs: Inputs) -> Prepared:
        made = prepare(row, inputs)
        if row.kind != "decode" or row.num_heads == row.num_kv_heads:
            return made
        fewer = prepare(*folded(row, inputs))
        note, _ = fastest([("heads", made.call), ("folded heads", fewer.call)])
        if note == "heads":
            return made
        shape = (row.batch, row.num_heads, 1, row.head_dim)
        text = f"{note}, {fewer.note}" if fewer.note else note
        return replace(fewer, result=lambda out: fewer.result(out).reshape(shape), note=text)

    return chosen
