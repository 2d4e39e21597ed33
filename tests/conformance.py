"""Conformance cases: how they are read, and how they map onto the library's calls.

The cases were made outside this project: ``data/course`` and ``data/golden`` with torch in
float64, ``data/onnx`` by the ONNX project (see its NOTICE). A case is an ``.npz`` archive with
its metadata as JSON in ``__meta__`` and its arrays as ``input.<name>`` and ``output.<name>``.

A case is run when the library offers everything it asks for. What it asks for is read from its
attributes and inputs, never from its name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from helpers import Array, dtype_of
from layouts import read_only, token_major

DATA = Path(__file__).parent / "data"

#: What the library does not offer yet, by the name of the option or function that will.
NOT_YET_OFFERED = frozenset(
    {"mask", "window", "softcap", "alibi_slopes", "sinks", "kv_lengths", "attention_varlen"}
)

#: What some cases of the golden suite hold besides, for a function that is not offered yet.
GRADIENTS = ("dq", "dk", "dv")


@dataclass(frozen=True)
class Case:
    """One conformance case, as stored."""

    suite: str
    name: str
    meta: dict[str, Any]
    inputs: dict[str, Array]
    outputs: dict[str, Array]

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes in which the case may be run."""
        return tuple(self.meta["dtypes"]) if "dtypes" in self.meta else (self.meta["dtype"],)

    @property
    def missing(self) -> tuple[str, ...]:
        """What the case asks for and the library does not offer yet."""
        return tuple(sorted(needed(self) & NOT_YET_OFFERED))

    @property
    def has_gradients(self) -> bool:
        """Whether the case holds gradients; a case that runs is run without them."""
        found = [name in self.outputs for name in GRADIENTS]
        assert all(found) == any(found)
        return all(found)


@dataclass(frozen=True)
class Call:
    """A case in the library's terms: 4-D arrays in "BHTD" order and keyword options."""

    q: Array
    k: Array
    v: Array
    options: dict[str, Any] = field(default_factory=dict)


def load(path: Path) -> Case:
    """Read one case; 16-bit floats are stored as their bit patterns."""
    with np.load(path, allow_pickle=False) as archive:
        meta = json.loads(str(archive["__meta__"]))
        sides: list[dict[str, Array]] = []
        for side, prefix in (("inputs", "input"), ("outputs", "output")):
            arrays = {}
            for name, about in meta[side].items():
                stored = archive[f"{prefix}.{name}"]
                wanted = dtype_of(about["dtype"])
                arrays[name] = stored if stored.dtype == wanted else stored.view(wanted)
                assert list(arrays[name].shape) == about["shape"]
            sides.append(arrays)
    return Case(meta["suite"], meta["name"], meta, *sides)


def load_suite(suite: str) -> list[Case]:
    """Read every case of a suite; the index and the archives must name the same cases."""
    cases = [load(path) for path in sorted((DATA / suite).glob("*.npz"))]
    index = json.loads((DATA / suite / "INDEX.json").read_text(encoding="utf-8"))
    assert [case.name for case in cases] == sorted(entry["name"] for entry in index)
    return cases


def needed(case: Case) -> set[str]:
    """Return the features that a case asks for, in the library's words."""
    return _needed_onnx(case) if case.suite == "onnx" else _needed_golden(case)


def as_call(case: Case, dtype: str) -> Call:
    """Return the call that states the case, with its inputs in the given dtype."""
    return _onnx_call(case) if case.suite == "onnx" else _golden_call(case, dtype)


def _needed_golden(case: Case) -> set[str]:
    attrs, inputs = case.meta["attrs"], case.inputs
    wanted: set[str] = {"mask", "alibi_slopes", "sinks"} & set(inputs)
    if attrs.get("softcap"):
        wanted.add("softcap")
    if list(attrs.get("window", (-1, -1))) != [-1, -1]:
        wanted.add("window")
    if "cu_seqlens_q" in inputs:
        wanted.add("attention_varlen")
    # Causal and aligned to the lengths, a row sees no key past its length anyway.
    if "kv_lens" in inputs and not (attrs["causal"] and attrs["align"] == "bottom_right"):
        wanted.add("kv_lengths")
    return wanted


def _golden_call(case: Case, dtype: str) -> Call:
    attrs = case.meta["attrs"]
    arrays = {
        name: case.inputs[name].astype(dtype_of(dtype))
        for name in ("q", "k", "v", "past_k", "past_v")
        if name in case.inputs
    }
    q, k, v = arrays["q"], arrays["k"], arrays["v"]
    align: str | int | list[int]
    if "past_k" in arrays:
        align = arrays["past_k"].shape[2]
        k = np.concatenate([arrays["past_k"], k], axis=2)
        v = np.concatenate([arrays["past_v"], v], axis=2)
    elif "kv_lens" in case.inputs:
        align = [int(n) - q.shape[2] for n in case.inputs["kv_lens"]]
    else:
        align = {"bottom_right": "end", "top_left": "start"}[attrs["align"]]
    if "view" in case.meta:
        view = {"bthd": token_major, "readonly": read_only}[case.meta["view"]]
        q, k, v = view(q), view(k), view(v)
    return Call(q, k, v, {"causal": attrs["causal"], "align": align, "scale": attrs["scale"]})


def _needed_onnx(case: Case) -> set[str]:
    attrs, inputs = case.meta["attrs"], case.inputs
    wanted = {"mask"} if "attn_mask" in inputs else set()
    if attrs.get("softcap"):
        wanted.add("softcap")
    if attrs.get("left_window_size", -1) >= 0 or attrs.get("right_window_size", -1) >= 0:
        wanted.add("window")
    if "nonpad_kv_seqlen" in inputs and not attrs.get("is_causal"):
        wanted.add("kv_lengths")
    return wanted


def _onnx_call(case: Case) -> Call:
    attrs, inputs = case.meta["attrs"], case.inputs
    q = _heads(inputs["Q"], attrs.get("q_num_heads"))
    k = _heads(inputs["K"], attrs.get("kv_num_heads"))
    v = _heads(inputs["V"], attrs.get("kv_num_heads"))
    align: int | list[int] = 0  # without a cache the first query sees the first key only
    if "past_key" in inputs:
        align = inputs["past_key"].shape[2]
        k = np.concatenate([inputs["past_key"], k], axis=2)
        v = np.concatenate([inputs["past_value"], v], axis=2)
    elif "nonpad_kv_seqlen" in inputs:
        align = [int(n) - q.shape[2] for n in inputs["nonpad_kv_seqlen"]]
    causal = bool(attrs.get("is_causal", 0))
    return Call(q, k, v, {"causal": causal, "align": align, "scale": attrs.get("scale")})


def _heads(x: Array, num_heads: int | None) -> Array:
    """Return (B,H,T,D): a 3-D input is (B,T,H*D), a head's columns side by side."""
    if x.ndim == 4:
        return x
    assert num_heads is not None
    batch, tokens, width = x.shape
    return x.reshape(batch, tokens, num_heads, width // num_heads).transpose(0, 2, 1, 3)


def onnx_result(case: Case, out: Array) -> Array:
    """Return the output in the layout of the case's Q."""
    if case.inputs["Q"].ndim == 4:
        return out
    batch, heads, tokens, width = out.shape
    return out.transpose(0, 2, 1, 3).reshape(batch, tokens, heads * width)
