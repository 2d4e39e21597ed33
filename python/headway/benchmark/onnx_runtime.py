"""ONNX Runtime: its GroupQueryAttention, and for a layer its fused Attention and a MatMul."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from ..timing.worker import Unsupported
from .peers import Prepared
from .rows import Array, Row

CONTRIBUTED = "com.microsoft"


def _modules() -> tuple[Any, Any, Any]:
    return import_module("onnxruntime"), import_module("onnx"), import_module("onnx.helper")


_modules()  # a process without them says so at once


def versions() -> dict[str, str]:
    return {"onnxruntime": str(_modules()[0].__version__)}


def threads() -> int:
    return int(os.environ["OMP_NUM_THREADS"])


def prepare(row: Row, arrays: dict[str, Array]) -> Prepared:
    if row.dtype == "bfloat16":
        raise Unsupported("no bfloat16 kernel on the CPU")
    return _layer(row, arrays) if row.kind == "layer" else _grouped(row, arrays)


def _session(
    nodes: Sequence[Any],
    inputs: Mapping[str, Array],
    outputs: Mapping[str, Sequence[int]],
    dtype: str,
    weights: Mapping[str, Array],
) -> Any:
    """A session of these nodes on as many threads as the others have."""
    runtime, onnx, helper = _modules()
    proto = onnx.TensorProto
    kinds = {"int32": proto.INT32, "float32": proto.FLOAT, "float16": proto.FLOAT16}
    describe = helper.make_tensor_value_info
    convert = import_module("onnx.numpy_helper").from_array
    graph = helper.make_graph(
        nodes,
        "graph",
        [describe(name, kinds[array.dtype.name], array.shape) for name, array in inputs.items()],
        [describe(name, kinds[dtype], shape) for name, shape in outputs.items()],
        [convert(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(CONTRIBUTED, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads()
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    data, providers = model.SerializeToString(), ["CPUExecutionProvider"]
    return runtime.InferenceSession(data, options, providers=providers)


def _value(array: Array) -> Any:
    return _modules()[0].OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))


def _grouped(row: Row, arrays: dict[str, Array]) -> Prepared:
    """The past of a chunk lies in a cache, which the operator extends in place."""
    past = row.num_keys - row.num_queries
    q, k, v = (array.swapaxes(1, 2).reshape(1, array.shape[2], -1) for array in arrays.values())
    given = {"q": q, "k": k[:, past:], "v": v[:, past:]}
    names = ["q", "k", "v", "", "", "last", "total"]
    if past:
        names[3:5] = ["past_k", "past_v"]
        given |= {"past_k": arrays["k"].copy(), "past_v": arrays["v"].copy()}
    given["last"] = np.array([row.num_keys - 1], np.int32)
    given["total"] = np.array([row.num_keys], np.int32)
    outputs = {"o": q.shape, "new_k": arrays["k"].shape, "new_v": arrays["v"].shape}
    node = _modules()[2].make_node(
        "GroupQueryAttention",
        names,
        list(outputs),
        domain=CONTRIBUTED,
        num_heads=row.num_heads,
        kv_num_heads=row.num_kv_heads,
        scale=row.scale,
    )
    session = _session([node], given, outputs, row.dtype, {})
    binding = session.io_binding()
    binding.bind_output("o")
    values = {name: _value(array) for name, array in given.items()}
    for name in "kv":
        if past:
            binding.bind_ortvalue_output(f"new_{name}", values[f"past_{name}"])
        else:
            binding.bind_output(f"new_{name}")
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    split = (1, row.num_queries, row.num_heads, row.head_dim)

    def call() -> Any:
        session.run_with_iobinding(binding)
        return binding.get_outputs()[0]

    return Prepared(call, lambda out: out.numpy().reshape(split).swapaxes(1, 2))


def _layer(row: Row, arrays: dict[str, Array]) -> Prepared:
    make_node = _modules()[2].make_node
    x = arrays["x"]
    names = ("w_query", "w_key", "w_value")
    w_qkv = np.concatenate([arrays[name] for name in names], axis=1)
    weights = {"w": w_qkv, "b": np.zeros(w_qkv.shape[1], w_qkv.dtype), "w_out": arrays["w_out"]}
    options = {"domain": CONTRIBUTED, "num_heads": row.num_heads, "unidirectional": 1}
    nodes = [
        make_node("Attention", ["x", "w", "b"], ["z"], **options),
        make_node("MatMul", ["z", "w_out"], ["y"]),
    ]
    session = _session(nodes, {"x": x}, {"y": x.shape}, row.dtype, weights)
    given = {"x": _value(x)}
    return Prepared(lambda: session.run_with_ort_values(["y"], given)[0], lambda out: out.numpy())
