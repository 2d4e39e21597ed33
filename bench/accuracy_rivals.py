"""Who computes the problems of the accuracy table: headway on each ISA, PyTorch, ONNX Runtime."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
from accuracy_inputs import Problem
from inputs import Array, Inputs
from row import Row

Attend = Callable[[Problem], Array]
"""(1, H, Tq, D) in float64; raises where there is no such kernel."""


def headway_on(isa: str) -> Attend:
    """headway with the kernels of this ISA."""
    import headway

    def attend(problem: Problem) -> Array:
        before = headway.isa()
        headway.set_isa(isa)
        try:
            out = headway.attention(problem.q, problem.k, problem.v, scale=problem.scale)
        finally:
            headway.set_isa(before)
        assert isinstance(out, np.ndarray)
        return out.astype(np.float64)

    return attend


def torch_sdpa(problem: Problem) -> Array:
    """scaled_dot_product_attention; a few queries at the end get the mask that says the same."""
    torch: Any = importlib.import_module("torch")
    tensor = importlib.import_module("rivals.pytorch").tensor
    queries, keys = problem.q.shape[2], problem.k.shape[2]
    options: dict[str, Any] = {"is_causal": True}
    if queries < keys:
        options = {"attn_mask": torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)}
    q, k, v = (tensor(x) for x in (problem.q, problem.k, problem.v))
    with torch.inference_mode():
        attend = torch.nn.functional.scaled_dot_product_attention
        out: Array = attend(q, k, v, scale=problem.scale, **options).double().numpy()
    return out


def onnx_runtime(operator: str) -> Attend:
    """An operator of ONNX Runtime: "ort-mha", "ort-gqa" or "ort-attention"."""
    adapters = importlib.import_module("rivals.onnx_runtime")
    prepare = {
        "ort-mha": adapters.multi_head,
        "ort-gqa": adapters.grouped,
        "ort-attention": adapters.standard,
    }[operator]

    def attend(problem: Problem) -> Array:
        batch, heads, queries, dim = problem.q.shape
        row = Row(
            "accuracy",
            "attention",
            problem.q.dtype.name,
            batch,
            heads,
            heads,
            queries,
            problem.k.shape[2],
            dim,
        )
        if problem.scale != row.scale:
            raise adapters.Unsupported("called with the default scale alone")
        prepared = prepare(row, Inputs({"q": problem.q, "k": problem.k, "v": problem.v}))
        found: Array = prepared.result(prepared.call())
        return found.astype(np.float64)

    return attend


def contestants(isas: list[str] | None = None) -> tuple[dict[str, Attend], dict[str, str]]:
    """(who -> how, versions); headway's ISAs first, and those rivals that are installed."""
    import headway

    found: dict[str, Attend] = {
        f"headway {isa}": headway_on(isa) for isa in isas or headway.available_isas()
    }
    versions = {"headway": headway.__version__, "numpy": np.__version__}
    try:
        versions["torch"] = str(importlib.import_module("torch").__version__)
        found["PyTorch"] = torch_sdpa
    except ImportError:
        pass
    try:
        versions["onnxruntime"] = str(importlib.import_module("onnxruntime").__version__)
        importlib.import_module("onnx")
        for name, title in (("mha", "MHA"), ("gqa", "GQA"), ("attention", "Attention")):
            found[f"ORT {title}"] = onnx_runtime(f"ort-{name}")
    except ImportError:
        pass
    return found, versions
