"""OpenVINO: its ScaledDotProductAttention, compiled for the CPU at the row's precision."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from inputs import Array, Inputs, numpy_dtype, thd
from rows import Row

from . import Prepare, Prepared
from .copies import rotating
from .folding import quicker

openvino: Any = importlib.import_module("openvino")
ops: Any = importlib.import_module("openvino.opset13")


def versions() -> dict[str, str]:
    return {"openvino": str(openvino.__version__).partition("-")[0]}


def threads() -> int:
    return int(os.environ["OMP_NUM_THREADS"])


def type_of(row: Row) -> Any:
    kinds = openvino.Type
    return {"float32": kinds.f32, "float16": kinds.f16, "bfloat16": kinds.bf16}[row.dtype]


def tensor(array: Array) -> Any:
    array = np.ascontiguousarray(array)
    if array.dtype.name != "bfloat16":
        return openvino.Tensor(array)
    made = openvino.Tensor(openvino.Type.bf16, openvino.Shape(array.shape))
    made.data.view(np.uint16)[...] = array.view(np.uint16).reshape(made.data.shape)
    return made


def graph(row: Row) -> Any:
    """Parameters in the row's layout; transposed in the graph, if they have to be."""

    def parameter(name: str, heads: int, tokens: int) -> Any:
        axes = [heads, tokens] if row.layout == "BHTD" else [tokens, heads]
        return ops.parameter([row.batch, *axes, row.head_dim], type_of(row), name=name)

    def swapped(node: Any) -> Any:
        if row.layout == "BHTD":
            return node
        return ops.transpose(node, ops.constant([0, 2, 1, 3], dtype=np.int64))

    def repeated(node: Any) -> Any:
        group = row.num_heads // row.num_kv_heads
        if group == 1:
            return node
        shape = [row.batch, row.num_kv_heads, group, row.num_keys, row.head_dim]
        node = ops.unsqueeze(node, ops.constant(2, dtype=np.int64))
        node = ops.broadcast(node, ops.constant(shape, dtype=np.int64))
        merged = [row.batch, row.num_heads, row.num_keys, row.head_dim]
        return ops.reshape(node, ops.constant(merged, dtype=np.int64), False)

    q = parameter("q", row.num_heads, row.num_queries)
    k, v = (parameter(name, row.num_kv_heads, row.num_keys) for name in "kv")
    inner = [swapped(q), *(repeated(swapped(node)) for node in (k, v))]
    if row.kind == "decode":  # a query at the end sees every key
        attention = ops.scaled_dot_product_attention(*inner, causal=False)
    elif row.num_queries == row.num_keys:
        attention = ops.scaled_dot_product_attention(*inner, causal=True)
    else:
        past = row.num_keys - row.num_queries
        seen = np.arange(row.num_keys) <= np.arange(row.num_queries)[:, None] + past
        added = np.where(seen, 0, -np.inf).astype(np.float32)
        mask = ops.convert(ops.constant(added), type_of(row).to_string())
        attention = ops.scaled_dot_product_attention(*inner, mask, causal=False)
    return openvino.Model([swapped(attention)], [q, k, v])


def attention(row: Row, inputs: Inputs) -> Prepared:
    settings = {
        "INFERENCE_PRECISION_HINT": type_of(row),
        "INFERENCE_NUM_THREADS": threads(),
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
    }
    compiled = openvino.Core().compile_model(graph(row), "CPU", settings)
    arrays = [inputs[name] if row.layout == "BHTD" else thd(inputs[name]) for name in "qkv"]
    kept = []

    def make() -> Callable[[], Any]:
        request = compiled.create_infer_request()
        tensors = [tensor(array.copy() if row.cold else array) for array in arrays]
        kept.append(tensors)
        for n, each in enumerate(tensors):
            request.set_input_tensor(n, each)

        def call() -> Any:
            request.infer()
            return request.get_output_tensor(0)

        return call

    def result(found: Any) -> Array:
        data: Array = found.data
        if row.dtype == "bfloat16" and data.dtype != np.float32:
            data = data.view(np.uint16).view(numpy_dtype("bfloat16"))
        return data.astype(np.float32) if row.layout == "BHTD" else data.swapaxes(1, 2)

    return Prepared(rotating(row, make), result, keep=[kept, compiled])


PREPARE: dict[str, Prepare] = {"openvino": quicker(attention)}
