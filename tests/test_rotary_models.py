"""rotary_embedding beside others: the ONNX operator RotaryEmbedding and transformers' recipes.

``data/rotary`` holds inputs and results that ONNX 1.23.2's reference evaluator and transformers
5.24.0 gave for them; where the packages are installed, they are asked again.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Array, assert_close, assert_same_bits

import headway
from headway.frequencies import turning_of

DATA = Path(__file__).parent / "data" / "rotary"
INDEX = json.loads((DATA / "INDEX.json").read_text(encoding="utf-8"))
Case = dict[str, Any]


def parameters(kind: str) -> list[Any]:
    return [pytest.param(case, id=case["name"]) for case in INDEX[kind]]


def arrays_of(case: Case) -> dict[str, Array]:
    """x, y and what else there is of a case."""
    with np.load(DATA / "cases.npz", allow_pickle=False) as stored:
        start = f"{case['name']}."
        return {key.removeprefix(start): stored[key] for key in stored if key.startswith(start)}


def test_no_case_is_lost() -> None:
    assert (len(INDEX["onnx"]), len(INDEX["transformers"])) == (8, 13)


# ONNX ---------------------------------------------------------------------------------------------


def as_operator(case: Case, x: Array, positions: Array | None) -> Array:
    """What the operator gives for these attributes, by the library; 3-D x is (B, T, H * D)."""
    options: dict[str, Any] = {
        "base": case["base"],
        "interleaved": bool(case["interleaved"]),
        "rotary_dim": case["rotary_embedding_dim"] or None,
    }
    places = 0 if positions is None else positions
    if x.ndim == 4:
        return headway.rotary_embedding(x, places, **options)
    rows = x.reshape(*x.shape[:2], case["num_heads"], -1)
    return headway.rotary_embedding(rows, places, layout="BTHD", **options).reshape(x.shape)


@pytest.mark.parametrize("case", parameters("onnx"))
def test_onnx_operator(case: Case, isa: str, threads: int) -> None:
    """Bit by bit: its products and sums are not fused either."""
    arrays = arrays_of(case)
    got = as_operator(case, arrays["x"], arrays.get("positions"))
    assert_same_bits(got, arrays["y"])


@pytest.mark.parametrize("case", parameters("onnx"))
def test_onnx_evaluator(case: Case) -> None:
    """The operator itself, opset 23, with tables of the same cosines and sines."""
    onnx = pytest.importorskip("onnx")
    from onnx.reference import ReferenceEvaluator

    arrays = arrays_of(case)
    x, positions = arrays["x"], arrays.get("positions")
    count = case["rotary_embedding_dim"] or (
        x.shape[3] if x.ndim == 4 else x.shape[2] // case["num_heads"]
    )
    angles = np.arange(64)[:, None] * case["base"] ** -(np.arange(0, count, 2) / count)
    feeds = {"X": x, "cos_cache": np.cos(angles), "sin_cache": np.sin(angles)}
    if positions is None:  # then the tables have a row for each token
        tokens = x.shape[2 if x.ndim == 4 else 1]
        for name in ("cos_cache", "sin_cache"):
            feeds[name] = np.broadcast_to(feeds[name][:tokens], (x.shape[0], tokens, count // 2))
    else:
        feeds["position_ids"] = positions
    feeds = {n: a if n == "position_ids" else a.astype(np.float32) for n, a in feeds.items()}
    names = ("interleaved", "rotary_embedding_dim", *(["num_heads"] if case["num_heads"] else []))
    make = onnx.helper
    node = make.make_node("RotaryEmbedding", list(feeds), ["Y"], **{n: case[n] for n in names})
    types = {name: make.np_dtype_to_tensor_dtype(a.dtype) for name, a in feeds.items()}
    inputs = [make.make_tensor_value_info(n, types[n], a.shape) for n, a in feeds.items()]
    output = make.make_tensor_value_info("Y", types["X"], x.shape)
    graph = make.make_graph([node], "rotary", inputs, [output])
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 23)])
    onnx.checker.check_model(model)
    (result,) = ReferenceEvaluator(model).run(None, feeds)
    assert_same_bits(np.asarray(result), arrays["y"], "as stored")
    assert_same_bits(as_operator(case, x, positions), np.asarray(result))


# transformers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", parameters("transformers"))
def test_recipes(case: Case) -> None:
    """Frequencies, the factor, and rows turned. Their angles are made in float32, ours in float64.

    An angle of 300 radians is rounded by up to 1.5e-5 there.
    """
    arrays = arrays_of(case)
    x, scaling = arrays["x"], case["rope_parameters"]
    turning = turning_of(x.shape[-1], 10000.0, None, scaling)
    np.testing.assert_allclose(turning.frequencies, arrays["frequencies"], rtol=5e-7)
    assert turning.factor == pytest.approx(case["attention_factor"], rel=1e-14)
    got = headway.rotary_embedding(x, arrays["positions"], scaling=scaling)
    assert_close(got, arrays["y"], 3e-5)
    early = slice(0, 3)  # positions 0, 1 and 2
    assert_close(got[:, :, early], arrays["y"][:, :, early], 3e-7)
    reference = headway.reference.rotary_embedding(x, arrays["positions"], scaling=scaling)
    assert_close(got, reference, 3e-7, "against the reference")


@pytest.mark.parametrize("case", parameters("transformers"))
def test_transformers(case: Case) -> None:
    """The rotary embedding of its Llama models, asked now."""
    torch = pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("transformers")
        from transformers import LlamaConfig
        from transformers.models.llama import modeling_llama as llama

    arrays = arrays_of(case)
    width = arrays["x"].shape[-1]
    config = LlamaConfig(
        hidden_size=2 * width,
        num_attention_heads=2,
        head_dim=width,
        max_position_embeddings=131072,
        rope_parameters=dict(case["rope_parameters"]),
    )
    embedding = llama.LlamaRotaryEmbedding(config)
    assert embedding.attention_scaling == pytest.approx(case["attention_factor"], rel=1e-14)
    q = torch.from_numpy(arrays["x"])
    turned, _ = llama.apply_rotary_pos_emb(
        q, q, *embedding(q, torch.from_numpy(arrays["positions"])[None])
    )
    assert_close(turned.numpy(), arrays["y"], 3e-7, "as stored")
    options = {"scaling": case["rope_parameters"]}
    assert_close(headway.rotary_embedding(q, arrays["positions"], **options), turned.numpy(), 3e-5)
