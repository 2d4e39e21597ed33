"""Modules of PyTorch under override, and headway's module for the course's checkpoints."""

from __future__ import annotations

import copy
from importlib import import_module
from typing import Any

import pytest
from helpers import assert_close
from torch_cases import made

torch = pytest.importorskip("torch")
interop = import_module("headway.interop.torch")

nn = torch.nn


def trained(model: Any, x: Any, steps: int, **options: Any) -> tuple[list[float], Any]:
    """Losses of a few steps, and the output in evaluation afterwards."""
    torch.manual_seed(5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    target = made(torch, tuple(x.shape), 8)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (model(x, **options) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    with torch.no_grad():
        return losses, model.eval()(x, **options).numpy()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("dropout", "heads"), [(0.0, 3), (0.0, 4), (0.2, 4)])
def test_a_transformer_layer_trains_the_same(dropout: float, heads: int, masked: bool) -> None:
    torch.manual_seed(2)
    model = nn.TransformerEncoderLayer(
        24, heads, dim_feedforward=32, dropout=dropout, batch_first=True, dtype=torch.float64
    )
    x = made(torch, (2, 11, 24), 1)
    options: dict[str, Any] = {}
    if masked:
        mask = nn.Transformer.generate_square_subsequent_mask(11, dtype=torch.float64)
        options = {"src_mask": mask, "is_causal": True}
    losses, wanted = trained(copy.deepcopy(model), x, 4, **options)
    with interop.override() as on:
        got_losses, got = trained(model, x, 4, **options)
    assert got_losses == pytest.approx(losses, rel=1e-9)
    assert_close(got, wanted, 1e-8)
    # In training a layer with dropout keeps PyTorch's path; evaluation runs on headway.
    assert (on.calls, on.missed) == ((1, 4) if dropout else (5, 0))


@pytest.mark.parametrize("kind", ["none", "causal", "attention", "padding", "both"])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("heads", [3, 4])
def test_multihead_attention(kind: str, training: bool, heads: int) -> None:
    """In evaluation with an even number of heads PyTorch takes its fast path: on headway, too."""
    torch.manual_seed(3)
    model = nn.MultiheadAttention(24, heads, batch_first=True, dtype=torch.float64).train(training)
    nn.init.normal_(model.in_proj_bias)
    x = made(torch, (2, 7, 24), 1).requires_grad_(training)
    options: dict[str, Any] = {"need_weights": False}
    hidden = torch.ones(7, 7, dtype=torch.bool).triu(1)
    if kind in ("causal", "attention", "both"):
        options["attn_mask"] = hidden
        options["is_causal"] = kind == "causal"
    if kind in ("padding", "both"):
        options["key_padding_mask"] = torch.tensor([[False] * 5 + [True] * 2, [False] * 7])
    with torch.set_grad_enabled(training):
        wanted = model(x, x, x, **options)[0]
        with interop.override() as on:
            got, weights = model(x, x, x, **options)
    assert (on.calls, on.missed, weights) == (1, 0, None)
    assert_close(got.detach().numpy(), wanted.detach().numpy(), 1e-12)
    if training:
        for a, b in zip(
            torch.autograd.grad(got.sum(), [x, *model.parameters()]),
            torch.autograd.grad(wanted.sum(), [x, *model.parameters()]),
            strict=True,
        ):
            assert_close(a.numpy(), b.numpy(), 1e-12)


def test_asking_for_weights_keeps_the_path_of_pytorch() -> None:
    model = nn.MultiheadAttention(24, 4, batch_first=True).eval()
    x = made(torch, (2, 7, 24), 1, "float32")
    with torch.no_grad(), interop.override() as on:
        assert model(x, x, x)[1].shape == (2, 7, 7)
        assert (on.calls, on.missed) == (0, 1)
        model.train()(x, x, x)
        assert (on.calls, on.missed) == (0, 1)


def test_a_sequence_of_padding_alone() -> None:
    """In PyTorch's fast path its row is NaN; on headway it is that of training: the bias alone."""
    model = nn.MultiheadAttention(24, 4, batch_first=True, dtype=torch.float64)
    x = made(torch, (2, 7, 24), 1)
    options = {"need_weights": False, "key_padding_mask": torch.tensor([[True] * 7, [False] * 7])}
    with torch.no_grad(), interop.override() as on:
        trained = model.train()(x, x, x, **options)[0]
        got = model.eval()(x, x, x, **options)[0]
    assert torch.allclose(got, trained)
    assert on.calls == 2


# The course's module ------------------------------------------------------------------------------


class Course(nn.Module):  # type: ignore[misc, name-defined]
    """The course's class, told in our own words."""

    def __init__(self, d_in: int, d_out: int, length: int, heads: int, bias: bool) -> None:
        super().__init__()
        self.heads = heads
        for name in ("W_query", "W_key", "W_value"):
            setattr(self, name, nn.Linear(d_in, d_out, bias=bias))
        self.out_proj = nn.Linear(d_out, d_out)
        self.register_buffer("mask", torch.ones(length, length).triu(1))

    def forward(self, x: Any) -> Any:
        q, k, v = (
            projection(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for projection in (self.W_query, self.W_key, self.W_value)
        )
        tokens = x.shape[1]
        scores = q @ k.mT / q.shape[-1] ** 0.5
        scores = scores.masked_fill(self.mask[:tokens, :tokens].bool(), -torch.inf)
        return self.out_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(-2))


@pytest.mark.parametrize("bias", [False, True])
def test_a_checkpoint_of_the_course(bias: bool) -> None:
    torch.manual_seed(4)
    theirs = Course(10, 12, 16, 3, bias).double()
    mine = interop.MultiHeadAttention(10, 12, 16, 0.0, 3, bias).double()
    found = mine.load_state_dict(theirs.state_dict())
    assert not found.missing_keys
    assert not found.unexpected_keys
    for tokens in (16, 5, 1):
        x = made(torch, (2, tokens, 10), tokens)
        assert_close(mine(x).detach().numpy(), theirs(x).detach().numpy(), 1e-12)
        assert_close(mine(x[1]).detach().numpy(), theirs(x)[1].detach().numpy(), 1e-12)
    x = made(torch, (2, 9, 10), 1)
    for a, b in zip(
        torch.autograd.grad(mine(x).square().sum(), mine.parameters()),
        torch.autograd.grad(theirs(x).square().sum(), theirs.parameters()),
        strict=True,
    ):
        assert torch.allclose(a, b, rtol=1e-12, atol=1e-12)  # that of a key's bias is 0
    assert set(mine.state_dict()) == set(theirs.state_dict()) - {"mask"}
    missing, unknown = theirs.load_state_dict(mine.state_dict(), strict=False)
    assert (missing, unknown) == (["mask"], [])


def test_a_model_with_several_layers_loads() -> None:
    mine = nn.Sequential(*(interop.MultiHeadAttention(6, 6, 8, 0.0, 2) for _ in range(2)))
    theirs = nn.Sequential(*(Course(6, 6, 8, 2, False) for _ in range(2)))
    mine.load_state_dict(theirs.state_dict())
    x = made(torch, (1, 8, 6), 1, "float32")
    assert torch.allclose(mine(x), theirs(x), atol=1e-6)
    state = theirs.state_dict()
    state["1.mask"] = state["1.mask"].tril()
    with pytest.raises(RuntimeError, match=r"1\.mask: expected the causal mask.*; .*remove"):
        mine.load_state_dict(state)


def test_the_module_beside_headways_own() -> None:
    import headway

    mine = interop.MultiHeadAttention(10, 12, 16, 0.0, 3, True).double()
    fused = headway.MultiHeadAttention.from_state_dict(mine.state_dict(), num_heads=3)
    x = made(torch, (2, 9, 10), 1)
    assert_close(mine(x).detach().numpy(), fused(x.numpy()), 1e-12)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"num_heads": 5}, r"d_out: expected a multiple of num_heads \(5\), got 12; each head"),
        ({"num_heads": 0}, "num_heads: expected at least 1, got 0; pass a positive int"),
        ({"context_length": 0}, "context_length: expected at least 1, got 0; pass a positive"),
        ({"dropout": 1.5}, "dropout probability"),
    ],
)
def test_what_the_module_refuses(change: dict[str, Any], text: str) -> None:
    given = {"d_in": 10, "d_out": 12, "context_length": 16, "dropout": 0.0, "num_heads": 3}
    with pytest.raises(ValueError, match=text):
        interop.MultiHeadAttention(**(given | change))


def test_what_a_call_of_the_module_refuses() -> None:
    model = interop.MultiHeadAttention(10, 12, 16, 0.0, 3)
    with pytest.raises(ValueError, match=r"x: expected shape \(batch, .*, 10\).*got \(2, 5, 9\)"):
        model(torch.zeros(2, 5, 9))
    with pytest.raises(ValueError, match=r"x: expected at most context_length = 16 .*17; cut x"):
        model(torch.zeros(2, 17, 10))
    assert "num_heads=3, context_length=16" in repr(model)
