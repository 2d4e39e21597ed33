"""What headway.interop.torch refuses, and how it says so."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
from helpers import run_python
from torch_cases import made

torch = pytest.importorskip("torch")
interop = import_module("headway.interop.torch")

ours = interop.scaled_dot_product_attention


def x(*shape: int, dtype: str = "float32") -> Any:
    return made(torch, shape or (2, 4, 9, 8), 1, dtype)


class Elsewhere(torch.Tensor):  # type: ignore[misc, name-defined]
    """A tensor that says it is on a GPU."""

    device = torch.device("cuda:0")
    __torch_function__ = torch._C._disabled_torch_function_impl


Change = Callable[[], dict[str, Any]]

TYPES: dict[str, tuple[Change, str]] = {
    "another device": (
        lambda: {"key": x().as_subclass(Elsewhere)},
        "key: expected a tensor on the CPU, got one on cuda:0; move it with key.cpu()",
    ),
    "no values": (
        lambda: {"query": x().to("meta")},
        "query: expected a tensor on the CPU, got one on meta; give it values",
    ),
    "nested": (
        lambda: {"query": torch.nested.nested_tensor([x(4, 9, 8), x(4, 5, 8)])},
        "query: expected a dense tensor, got a nested one; convert with query.to_padded_tensor",
    ),
    "nested value": (
        lambda: {"value": torch.nested.nested_tensor([x(4, 9, 8), x(4, 5, 8)])},
        "value: expected a dense tensor, got a nested one",
    ),
    "sparse": (
        lambda: {"value": x().to_sparse()},
        "value: expected a dense tensor, got layout sparse_coo; convert with value.to_dense()",
    ),
    "complex": (
        lambda: {"query": torch.complex(x(), x())},
        "query: expected float32, float64, float16 or bfloat16, got complex64; "
        "convert with query.real",
    ),
    "integers": (
        lambda: {"key": torch.ones(2, 4, 9, 8, dtype=torch.int64)},
        "key: expected float32, float64, float16 or bfloat16, got int64; "
        "convert with key.to(torch.float32)",
    ),
    "another dtype": (
        lambda: {"value": x(dtype="float64")},
        "value: expected float32 like query, got float64; convert with value.to(query.dtype)",
    ),
    "no tensor": (
        lambda: {"key": [1.0]},
        "key: expected a torch.Tensor, got list; convert with torch.as_tensor(key)",
    ),
    "mask of integers": (
        lambda: {"attn_mask": torch.ones(9, 9, dtype=torch.int32)},
        "attn_mask: expected bool, float32, float64, float16 or bfloat16, got int32; convert with "
        "attn_mask.bool(), True where the query may attend",
    ),
    "complex mask": (
        lambda: {"attn_mask": torch.complex(x(9, 9), x(9, 9))},
        "attn_mask: expected bool, float32, float64, float16 or bfloat16, got complex64; convert "
        "with attn_mask.real",
    ),
    "sparse mask": (
        lambda: {"attn_mask": x(9, 9).to_sparse()},
        "attn_mask: expected a dense tensor, got layout sparse_coo",
    ),
    "is_causal": (lambda: {"is_causal": 1}, "is_causal: expected True or False, got 1 (int)"),
    "enable_gqa": (lambda: {"enable_gqa": None}, "enable_gqa: expected True or False, got None"),
    "return_lse": (lambda: {"return_lse": 1}, "return_lse: expected True or False, got 1 (int)"),
    "dropout_p": (lambda: {"dropout_p": "0.1"}, "dropout_p: expected a real number"),
    "scale": (lambda: {"scale": "1"}, "scale: expected a real number or None, got '1' (str)"),
    "softcap": (lambda: {"softcap": [1]}, "softcap: expected a real number or None, got [1]"),
    "seed": (
        lambda: {"seed": 0.5},
        "seed: expected an int or None, got 0.5 (float); convert with int(seed)",
    ),
    "window": (lambda: {"window": 2.5}, "window: expected a number of keys, 1 or more"),
    "layout": (lambda: {"layout": 4}, 'layout: expected "BHTD" or "BTHD", got int'),
    "kv_lengths of floats": (
        lambda: {"kv_lengths": torch.tensor([9.0, 8.0])},
        "kv_lengths: expected integers, got float32; convert with kv_lengths.to(torch.int64)",
    ),
    "kv_lengths of text": (
        lambda: {"kv_lengths": "98"},
        "kv_lengths: expected an int, or several, got '98' (str); convert with torch.as_tensor",
    ),
    "align": (lambda: {"align": 1.5}, "align: expected an int, or several, got 1.5 (float)"),
    "sinks of text": (lambda: {"sinks": "abcd"}, "sinks: expected real numbers, got 'abcd' (str)"),
    "complex sinks": (
        lambda: {"sinks": torch.ones(4, dtype=torch.complex64)},
        "sinks: expected real numbers, got complex64",
    ),
}

VALUES: dict[str, tuple[Change, str]] = {
    "one axis": (
        lambda: {"query": x(8)},
        "query: expected 2 or more axes, (..., tokens, head_dim), got shape (8,); add axes",
    ),
    "no width": (
        lambda: {"query": x(2, 4, 9, 0), "key": x(2, 4, 9, 0)},
        "query: expected a head_dim (last axis) of at least 1, got 0 in shape (2, 4, 9, 0)",
    ),
    "other width": (
        lambda: {"key": x(2, 4, 9, 7)},
        "key: expected head_dim 8 like query, got 7 in shape (2, 4, 9, 7); make the last axis",
    ),
    "other tokens": (
        lambda: {"value": x(2, 4, 7, 8)},
        "value: expected 9 tokens like key, got 7 in shape (2, 4, 7, 8); pass one value for each",
    ),
    "other batch": (
        lambda: {"key": x(3, 4, 9, 8), "value": x(3, 4, 9, 8)},
        "key, value: expected batch axes that broadcast with those of query, got ((2,), (3,), "
        "(3,)) for query, key and value; make each axis 1 or equally long",
    ),
    "other heads": (
        lambda: {"key": x(2, 2, 9, 8), "value": x(2, 2, 9, 8)},
        "key, value: expected 4 heads like query, or 1, got 2 and 2; pass enable_gqa=True",
    ),
    "groups that do not fit": (
        lambda: {"key": x(2, 3, 9, 8), "value": x(2, 3, 9, 8), "enable_gqa": True},
        "key: expected a number of heads that divides the 4 heads of query, got 3; pass one key",
    ),
    "groups of two kinds": (
        lambda: {"key": x(2, 2, 9, 8), "enable_gqa": True},
        "value: expected 2 heads like key, got 4; pass one value head for each key head",
    ),
    "mask": (
        lambda: {"attn_mask": x(9, 8)},
        "attn_mask: expected a shape that broadcasts to (2, 4, 9, 9), (..., heads, queries, "
        "keys), got (9, 8); put axes of length 1 where it is the same for all",
    ),
    "mask with too many axes": (
        lambda: {"attn_mask": x(1, 2, 4, 9, 9)},
        "attn_mask: expected a shape that broadcasts to (2, 4, 9, 9)",
    ),
    "dropout_p": (
        lambda: {"dropout_p": 1.5},
        "dropout_p: expected a probability from 0 to 1, got 1.5; pass e.g. 0.1",
    ),
    "seed": (
        lambda: {"seed": -1},
        "seed: expected an int from 0 to 2**64 - 1, got -1; pass None to let PyTorch's generator",
    ),
    "scale": (lambda: {"scale": float("inf")}, "scale: expected a finite number, got inf"),
    "softcap": (lambda: {"softcap": -1.0}, "softcap: expected a finite number, 0 or more, got -1"),
    "window": (lambda: {"window": 0}, "window: expected a number of keys, 1 or more"),
    "align": (lambda: {"align": "middle"}, 'align: expected "end", "start", an int or 2 ints'),
    "layout": (lambda: {"layout": "TBHD"}, 'layout: expected "BHTD" or "BTHD", got \'TBHD\''),
    "kv_lengths": (lambda: {"kv_lengths": [9, 10]}, "kv_lengths: expected 2 ints from 0 to 9"),
    "sinks": (lambda: {"sinks": [0.0]}, "sinks: expected shape (4,), one number for each head"),
    "slopes with a gradient": (
        lambda: {"alibi_slopes": x(4).requires_grad_()},
        "alibi_slopes: expected numbers without a gradient, got a tensor that requires one; pass",
    ),
}


@pytest.mark.parametrize(
    ("error", "change", "text"),
    [(TypeError, *case) for case in TYPES.values()]
    + [(ValueError, *case) for case in VALUES.values()],
    ids=[*(f"type: {name}" for name in TYPES), *(f"value: {name}" for name in VALUES)],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_refused_by_name(error: type[Exception], change: Change, text: str) -> None:
    given = {"query": x(), "key": x(), "value": x()} | change()
    with pytest.raises(error, match=re.escape(text)):
        ours(**given)


def test_without_pytorch() -> None:
    """The base package does not import it; who asks for it reads how to install it."""
    code = """
import json, sys
sys.modules["torch"] = None
import headway
try:
    import headway.interop.torch
except ImportError as error:
    print(json.dumps(str(error)))
"""
    assert run_python(code) == "headway.interop.torch needs PyTorch: pip install 'headway[torch]'"


def test_headway_does_not_import_pytorch() -> None:
    code = "import json, sys, headway, headway.interop; print(json.dumps('torch' in sys.modules))"
    assert run_python(code) is False
