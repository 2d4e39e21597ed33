"""Conformance cases: how they are read, and how they map onto the library's calls.

The cases were made outside this project: ``data/course`` and ``data/golden`` with torch in
float64, ``data/onnx`` by the ONNX project (see its NOTICE). A case is an ``.npz`` archive with
its metadata as JSON in ``__meta__`` and its arrays as ``input.<name>`` and ``output.<name>``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from helpers import Array, attend, dtype_of
from layouts import read_only, token_major

import headway

DATA = Path(__file__).parent / "data"

#: What a case that holds gradients has of them at least.
GRADIENTS = ("dq", "dk", "dv")

#: The stage of the scores that an onnx case wants by the number of its mode; 3 is the weights.
STAGES = {0: "scaled", 1: "capped", 2: "masked"}


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
    def has_gradients(self) -> bool:
        """Whether the case holds gradients."""
        found = [name in self.outputs for name in GRADIENTS]
        assert all(found) == any(found)
        return all(found)

    def loosened(self, name: str, dtype: str, tolerance: float) -> float:
        """Return the error allowed to an output: the tolerance, or what the case names."""
        named: float = self.meta.get("tol", {}).get(dtype, {}).get(name, tolerance)
        return named


@dataclass(frozen=True)
class Call:
    """A case in the library's terms: 4-D arrays in "BHTD" order and keyword options.

    A packed case has 3-D arrays and, in `members`, the offsets of its queries and keys.
    """

    q: Array
    k: Array
    v: Array
    options: dict[str, Any] = field(default_factory=dict)
    members: tuple[Array, Array] | None = None
    grad_out: Array | None = None

    def attend(self, **more: Any) -> tuple[Array, Array]:
        """Return out and lse."""
        arrays, options = (self.q, self.k, self.v), self.options | more
        if self.members is not None:
            return headway.attention_varlen(*arrays, *self.members, return_lse=True, **options)
        return attend(*arrays, **options)

    def gradients(self, *, wide: bool = False) -> dict[str, Array]:
        """Return the gradients by name, from what the forward pass leaves, in float32 if `wide`."""
        grad_out, options = self.grad_out, dict(self.options)
        assert grad_out is not None
        if wide:
            grad_out = grad_out.astype(np.float32)
        out, lse = self.attend(out=np.empty(grad_out.shape, grad_out.dtype))
        if "sinks" in options:
            options["sinks_grad"] = True
        arrays = grad_out, self.q, self.k, self.v, out, lse
        if self.members is not None:
            found = headway.attention_varlen_backward(*arrays, *self.members, **options)
        else:
            found = headway.attention_backward(*arrays, **options)
        return dict(zip((*GRADIENTS, "dsinks"), found, strict=False))


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


def as_call(case: Case, dtype: str) -> Call:
    """Return the call that states the case, with its inputs in the given dtype."""
    return _onnx_call(case) if case.suite == "onnx" else _golden_call(case, dtype)


def _golden_call(case: Case, dtype: str) -> Call:
    attrs = case.meta["attrs"]
    arrays = {name: _as_dtype(name, x, dtype) for name, x in case.inputs.items()}
    q, k, v = arrays["q"], arrays["k"], arrays["v"]
    options: dict[str, Any] = {name: attrs[name] for name in ("causal", "scale")}
    options["align"] = {"bottom_right": "end", "top_left": "start"}[attrs["align"]]
    options |= {n: arrays[n] for n in ("mask", "alibi_slopes", "sinks") if n in arrays}
    if attrs.get("softcap"):
        options["softcap"] = attrs["softcap"]
    if list(attrs.get("window", (-1, -1))) != [-1, -1]:
        options["window"] = tuple(attrs["window"])
    if "kv_lens" in arrays:
        options["kv_lengths"] = arrays["kv_lens"]
    if "past_k" in arrays:
        options["align"] = arrays["past_k"].shape[2]
        k = np.concatenate([arrays["past_k"], k], axis=2)
        v = np.concatenate([arrays["past_v"], v], axis=2)
    grad_out = arrays.get("do")
    if "view" in case.meta:
        view = {"bthd": token_major, "readonly": read_only}[case.meta["view"]]
        q, k, v = view(q), view(k), view(v)
        grad_out = None if grad_out is None else view(grad_out)
    members = None
    if "cu_seqlens_q" in arrays:
        members = arrays["cu_seqlens_q"], arrays["cu_seqlens_k"]
    return Call(q, k, v, options, members, grad_out)


def _as_dtype(name: str, x: Array, dtype: str) -> Array:
    """Return a floating input in the dtype, slopes and sinks in float32 at least."""
    if x.dtype != np.float32 or (name in ("alibi_slopes", "sinks") and dtype != "float64"):
        return x
    return x.astype(dtype_of(dtype))


def _onnx_call(case: Case) -> Call:
    attrs, inputs = case.meta["attrs"], case.inputs
    q = _heads(inputs["Q"], attrs.get("q_num_heads"))
    k = _heads(inputs["K"], attrs.get("kv_num_heads"))
    v = _heads(inputs["V"], attrs.get("kv_num_heads"))
    options: dict[str, Any] = {"causal": bool(attrs.get("is_causal", 0))}
    options["align"] = 0  # without a cache the first query sees the first key only
    if "past_key" in inputs:
        options["align"] = inputs["past_key"].shape[2]
        k = np.concatenate([inputs["past_key"], k], axis=2)
        v = np.concatenate([inputs["past_value"], v], axis=2)
    elif "nonpad_kv_seqlen" in inputs:
        options |= {"align": "end", "kv_lengths": inputs["nonpad_kv_seqlen"]}
    if "scale" in attrs:
        options["scale"] = attrs["scale"]
    if attrs.get("softcap"):
        options["softcap"] = attrs["softcap"]
    window = attrs.get("left_window_size", -1), attrs.get("right_window_size", -1)
    if window != (-1, -1):
        options["window"] = window
    if "attn_mask" in inputs:
        options["mask"] = _padded(inputs["attn_mask"], k.shape[2])
    return Call(q, k, v, options)


def _padded(mask: Array, keys: int) -> Array:
    """Return the mask with a column for every key: those that it says nothing of are hidden."""
    short = keys - mask.shape[-1]
    if short == 0:
        return mask
    hidden = np.full((*mask.shape[:-1], short), False if mask.dtype == bool else -np.inf)
    return np.concatenate([mask, hidden.astype(mask.dtype)], axis=-1)


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


def onnx_product(case: Case, call: Call) -> Array:
    """Return what the case calls ``qk_matmul_output``: scores of one stage, or the weights."""
    mode = case.meta["attrs"].get("qk_matmul_output_mode", 0)
    if mode == 3:
        return headway.attention_weights(call.q, call.k, **call.options)
    return headway.attention_scores(call.q, call.k, stage=STAGES[mode], **call.options)
