"""ONNX Runtime: its two contributed operators, the standard's Attention, and the fused module."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from inputs import Array, Inputs, added, allowed, numpy_dtype, thd
from rows import Row

from . import Prepare, Prepared, Unsupported, refuse_large_scores
from .copies import rotating
from .folding import quicker

onnx: Any = importlib.import_module("onnx")
runtime: Any = importlib.import_module("onnxruntime")
helper: Any = importlib.import_module("onnx.helper")

CONTRIBUTED = "com.microsoft"


def versions() -> dict[str, str]:
    return {"onnxruntime": str(runtime.__version__)}


def threads() -> int:
    return int(os.environ["OMP_NUM_THREADS"])


def type_of(dtype: str) -> int:
    kinds = onnx.TensorProto
    return int(
        {"float32": kinds.FLOAT, "float16": kinds.FLOAT16, "bfloat16": kinds.BFLOAT16}[dtype]
    )


def session(
    nodes: Sequence[Any],
    inputs: Mapping[str, Sequence[int]],
    outputs: Mapping[str, Sequence[int]],
    dtype: str,
    opset: int,
    weights: Sequence[Any] = (),
) -> Any:
    """A session of these nodes; names that end in _i32 are integers, all others of `dtype`."""

    def described(shapes: Mapping[str, Sequence[int]]) -> list[Any]:
        kind = type_of(dtype)
        return [
            helper.make_tensor_value_info(
                name, onnx.TensorProto.INT32 if name.endswith("_i32") else kind, list(shape)
            )
            for name, shape in shapes.items()
        ]

    graph = helper.make_graph(nodes, "g", described(inputs), described(outputs), list(weights))
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(CONTRIBUTED, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads()
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    data = model.SerializeToString()
    try:
        return runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        if "NOT_IMPLEMENTED" in str(error):
            raise Unsupported(f"no kernel for {dtype} on the CPU") from None
        raise


def value(array: Array) -> Any:
    array = np.ascontiguousarray(array)
    if array.dtype.name != "bfloat16":
        return runtime.OrtValue.ortvalue_from_numpy(array)
    make = runtime.OrtValue.ortvalue_from_numpy_with_onnx_type
    return make(array.view(np.uint16), onnx.TensorProto.BFLOAT16)


def array_of(found: Any, dtype: str) -> Array:
    array: Array = found.numpy()
    if dtype == "bfloat16":
        array = array.view(numpy_dtype("bfloat16"))
    return array.astype(np.float32)


def runner(made: Any, given: Mapping[str, Any], out: str) -> Callable[[], Any]:
    return lambda: made.run_with_ort_values([out], given)[0]


def joined(inputs: Inputs, name: str) -> Array:
    """(B, T, H * D), as these operators want it."""
    array = thd(inputs[name])
    return array.reshape(*array.shape[:2], -1)


def parted(row: Row, array: Array) -> Array:
    split = (row.batch, row.num_queries, row.num_heads, row.head_dim)
    return array.reshape(split).swapaxes(1, 2)


def hidden_bias(row: Row) -> Array:
    """(Tq, Tk): -inf where a query does not see a key."""
    past = row.num_keys - row.num_queries
    seen = np.arange(row.num_keys) <= np.arange(row.num_queries)[:, None] + past
    return np.where(seen, 0, -np.inf).astype(numpy_dtype(row.dtype))


def multi_head(row: Row, inputs: Inputs) -> Prepared:
    if row.num_heads != row.num_kv_heads:
        raise Unsupported("no grouped heads")
    refuse_large_scores(row)
    width = row.num_heads * row.head_dim
    shapes = {
        "q": (row.batch, row.num_queries, width),
        "k": (row.batch, row.num_keys, width),
        "v": (row.batch, row.num_keys, width),
    }
    if row.num_queries != row.num_keys:
        raise Unsupported("no chunks over a longer past without a bias of its own")
    node = helper.make_node(
        "MultiHeadAttention",
        list("qkv"),
        ["o"],
        domain=CONTRIBUTED,
        num_heads=row.num_heads,
        unidirectional=1,
    )
    made = session([node], shapes, {"o": shapes["q"]}, row.dtype, 20)
    given = {name: value(joined(inputs, name)) for name in "qkv"}
    return Prepared(runner(made, given, "o"), lambda found: parted(row, array_of(found, row.dtype)))


def option_attributes(row: Row) -> dict[str, Any]:
    """Options that are attributes of GroupQueryAttention; it counts a window's own key, too."""
    if row.options.length is not None:
        raise Unsupported("no lengths below that of the queries")
    attributes: dict[str, Any] = {}
    if row.options.window is not None:
        attributes["local_window_size"] = row.options.window + 1
    if row.options.softcap:
        attributes["softcap"] = row.options.softcap
    return attributes


def option_inputs(row: Row, inputs: Inputs) -> dict[str, Array]:
    """Options that are inputs: ALiBi and masks as its bias (1, 1 or H, Tq, Tk), sinks."""
    found: dict[str, Array] = {}
    if row.options.alibi or row.options.mask:
        bias = added(row, inputs)
        seen = allowed(row, inputs)
        found["bias"] = np.where(seen, 0 if bias is None else bias, -np.inf).astype(
            numpy_dtype(row.dtype)
        )
        found["bias"] = found["bias"].reshape(1, -1, *seen.shape)
    if row.options.sinks:
        found["sinks"] = inputs["sinks"].astype(numpy_dtype(row.dtype))
    return found


def grouped(row: Row, inputs: Inputs) -> Prepared:
    """GroupQueryAttention; a chunk finds its past in the cache, which it extends in place."""
    attributes, more = option_attributes(row), option_inputs(row, inputs)
    past = row.num_keys - row.num_queries
    kv_width = row.num_kv_heads * row.head_dim
    shapes: dict[str, Sequence[int]] = {
        "q": (row.batch, row.num_queries, row.num_heads * row.head_dim),
        "k": (row.batch, row.num_queries, kv_width),
        "v": (row.batch, row.num_queries, kv_width),
    }
    cache = (row.batch, row.num_kv_heads, row.num_keys, row.head_dim)
    names = [*"qkv", "", "", "last_i32", "total_i32"]
    if past:
        names[3:5] = ["past_k", "past_v"]
        shapes |= {"past_k": cache, "past_v": cache}
    shapes |= {"last_i32": (row.batch,), "total_i32": (1,)}
    if more:
        names += ["", "", "", *(name if name in more else "" for name in ("bias", "sinks"))]
        shapes |= {name: array.shape for name, array in more.items()}
    outputs = {"o": shapes["q"], "new_k": cache, "new_v": cache}
    node = helper.make_node(
        "GroupQueryAttention",
        names,
        list(outputs),
        domain=CONTRIBUTED,
        num_heads=row.num_heads,
        kv_num_heads=row.num_kv_heads,
        scale=row.scale,
        **attributes,
    )
    made = session([node], shapes, outputs, row.dtype, 20)

    def make() -> Callable[[], Any]:
        """A call with keys and values of its own."""
        given = {
            "q": value(joined(inputs, "q")),
            "last_i32": value(np.full(row.batch, row.num_keys - 1, np.int32)),
            "total_i32": value(np.array([row.num_keys], np.int32)),
            **{name: value(array) for name, array in more.items()},
        }
        binding = made.io_binding()
        binding.bind_output("o")
        for name in "kv":
            given[name] = value(joined(inputs, name)[:, past:])
            if past:
                given[f"past_{name}"] = value(np.array(inputs[name]))
                binding.bind_ortvalue_output(f"new_{name}", given[f"past_{name}"])
            else:
                binding.bind_output(f"new_{name}")
        for name, each in given.items():
            binding.bind_ortvalue_input(name, each)

        def call(_: Any = given) -> Any:
            made.run_with_iobinding(binding)
            return binding

        return call

    def result(bound: Any) -> Array:
        found = bound.get_outputs()[0]
        return parted(row, array_of(found, row.dtype))

    return Prepared(rotating(row, make), result, keep=[made])


def standard(row: Row, inputs: Inputs) -> Prepared:
    """The standard's Attention (opset 23): (B, H, T, D), or (B, T, H * D) for the other layout."""
    refuse_large_scores(row)
    flat = row.layout == "BTHD"
    arrays = {name: joined(inputs, name) if flat else inputs[name] for name in "qkv"}
    options: dict[str, Any] = {"is_causal": 1}
    if row.num_queries != row.num_keys:  # a single query at the end sees every key
        options = {}
        arrays |= {} if row.kind == "decode" else {"mask": hidden_bias(row)}
    if flat:
        options |= {"q_num_heads": row.num_heads, "kv_num_heads": row.num_kv_heads}
    node = helper.make_node("Attention", list(arrays), ["o"], **options)
    shapes = {name: array.shape for name, array in arrays.items()}
    made = session([node], shapes, {"o": shapes["q"]}, row.dtype, 23)

    def make() -> Callable[[], Any]:
        given = {n: value(a.copy() if row.cold else a) for n, a in arrays.items()}
        return runner(made, given, "o")

    def result(found: Any) -> Array:
        array = array_of(found, row.dtype)
        return parted(row, array) if flat else array

    return Prepared(rotating(row, make), result)


def module(row: Row, inputs: Inputs) -> Prepared:
    """The contributed Attention, which holds the first product, too, and a MatMul after it."""
    if row.dtype == "bfloat16":
        raise Unsupported("its fused Attention has no bfloat16 on the CPU")
    w_qkv = np.concatenate([inputs[name] for name in ("w_query", "w_key", "w_value")], axis=1)
    bias = np.zeros(w_qkv.shape[1], w_qkv.dtype)
    made_weights = {"w": w_qkv, "b": bias, "w_out": inputs["w_out"]}
    convert: Any = importlib.import_module("onnx.numpy_helper").from_array
    fused = helper.make_node(
        "Attention",
        ["x", "w", "b"],
        ["a"],
        domain=CONTRIBUTED,
        num_heads=row.num_heads,
        unidirectional=1,
    )
    last = helper.make_node("MatMul", ["a", "w_out"], ["y"])
    shape = {"x": inputs["x"].shape}
    weights = [convert(array, name) for name, array in made_weights.items()]
    made = session([fused, last], shape, {"y": inputs["x"].shape}, row.dtype, 20, weights)
    given = {"x": value(inputs["x"])}
    return Prepared(runner(made, given, "y"), lambda found: array_of(found, row.dtype))


PREPARE: dict[str, Prepare] = {
    "ort-mha": multi_head,
    "ort-gqa": grouped,
    "ort-attention": quicker(standard),
    "ort-module": module,
}
