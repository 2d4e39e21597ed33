"""The same weights in torch: its own module, and the course's two classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import TOLERANCE, assert_close, dtype_of, make
from module_helpers import assert_same_module

from headway import MultiHeadAttention, StackedMultiHeadAttention


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_torch_multihead_attention(dtype: str, bias: bool, torch: Any) -> None:
    torch.manual_seed(3)
    theirs = torch.nn.MultiheadAttention(
        24, 4, bias=bias, batch_first=True, dtype=getattr(torch, dtype)
    ).eval()
    if bias:
        with torch.no_grad():
            theirs.in_proj_bias.uniform_(-1, 1)
            theirs.out_proj.bias.uniform_(-1, 1)
    x = make(4, (2, 33, 24), dtype)
    hidden = torch.ones(33, 33, dtype=torch.bool).triu(1)
    given = torch.from_numpy(x)
    with torch.no_grad():
        wanted = theirs(given, given, given, attn_mask=hidden, need_weights=False)[0].numpy()
    fused = MultiHeadAttention.from_state_dict(theirs.state_dict(), num_heads=4)
    stacked = StackedMultiHeadAttention.from_state_dict(
        dict(theirs.named_parameters()), num_heads=4
    )
    for module in (fused, stacked):
        assert_close(module(x), wanted, TOLERANCE[dtype])
        assert_close(module(given), wanted, TOLERANCE[dtype], "a tensor as input")


def course_classes(torch: Any) -> tuple[type[Any], type[Any]]:
    """The course's two classes, told in our own words."""
    nn = torch.nn

    def attend(q: Any, k: Any, v: Any, mask: Any) -> Any:
        tokens = q.shape[-2]
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        scores = scores.masked_fill(mask[:tokens, :tokens].bool(), -torch.inf)
        return scores.softmax(-1) @ v

    def add_projections(module: Any, d_in: int, d_out: int, bias: bool) -> None:
        for name in ("W_query", "W_key", "W_value"):
            setattr(module, name, nn.Linear(d_in, d_out, bias=bias))
        module.register_buffer("mask", torch.ones(50, 50).triu(1))

    class Head(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, d_in: int, d_out: int, bias: bool) -> None:
            super().__init__()
            add_projections(self, d_in, d_out, bias)

        def forward(self, x: Any) -> Any:
            return attend(self.W_query(x), self.W_key(x), self.W_value(x), self.mask)

    class Stack(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, d_in: int, d_out: int, num_heads: int, bias: bool) -> None:
            super().__init__()
            heads = [Head(d_in, d_out // num_heads, bias) for _ in range(num_heads)]
            self.heads = nn.ModuleList(heads)

        def forward(self, x: Any) -> Any:
            return torch.cat([head(x) for head in self.heads], dim=-1)

    class AllHeads(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, d_in: int, d_out: int, num_heads: int, bias: bool) -> None:
            super().__init__()
            self.num_heads = num_heads
            add_projections(self, d_in, d_out, bias)
            self.out_proj = nn.Linear(d_out, d_out)

        def forward(self, x: Any) -> Any:
            parts = [
                projection(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
                for projection in (self.W_query, self.W_key, self.W_value)
            ]
            return self.out_proj(attend(*parts, self.mask).transpose(1, 2).flatten(-2))

    return Stack, AllHeads


@pytest.mark.parametrize("bias", [False, True])
def test_the_course_in_torch(bias: bool, torch: Any) -> None:
    torch.manual_seed(1)
    x = make(2, (3, 41, 10))
    for theirs in course_classes(torch):
        model = theirs(10, 12, 3, bias).double()
        with torch.no_grad():
            wanted = model(torch.from_numpy(x)).numpy()
        for cls in (StackedMultiHeadAttention, MultiHeadAttention):
            module = cls.from_state_dict(model.state_dict(), num_heads=3)
            assert_close(module(x), wanted, 1e-12)
            assert module.num_parameters == sum(p.numel() for p in model.parameters())


def test_state_dicts_go_back_to_torch(torch: Any) -> None:
    stack, all_heads = course_classes(torch)
    for theirs, module in (
        (stack(6, 8, 4, True), StackedMultiHeadAttention.init(6, 8, num_heads=4, qkv_bias=True)),
        (
            all_heads(6, 8, 4, True),
            MultiHeadAttention.init(6, 8, num_heads=4, qkv_bias=True, out_proj=True),
        ),
    ):
        state = {name: torch.from_numpy(array) for name, array in module.state_dict().items()}
        missing, unknown = theirs.load_state_dict(state, strict=False)
        assert all(name.endswith("mask") for name in missing)
        assert not unknown
        x = make(1, (2, 9, 6), "float32")
        with torch.no_grad():
            wanted = theirs(torch.from_numpy(x)).numpy()
        assert_close(module(x), wanted, TOLERANCE["float32"])


def test_bfloat16_tensors_are_read_bit_for_bit(torch: Any) -> None:
    module = MultiHeadAttention.init(6, 8, num_heads=2, dtype=dtype_of("bfloat16"), qkv_bias=True)
    state = {
        name: torch.from_numpy(array.astype(np.float32)).to(torch.bfloat16)
        for name, array in module.state_dict().items()
    }
    assert_same_module(MultiHeadAttention.from_state_dict(state, num_heads=2), module)
