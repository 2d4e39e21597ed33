"""The model of examples/train_char_gpt.py beside the same model written in PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from example_files import EXAMPLES, module

torch = pytest.importorskip("torch")

optimizer = module("char_gpt_optimizer")
model = module("char_gpt_model")
text = module("char_gpt_text")
run = module("char_gpt_run")

STEPS = 200
TINY = {"layers": 2, "heads": 2, "width": 32, "context": 32}


def torch_loss(weights: dict[str, Any], heads: int, ids: Any, targets: Any) -> Any:
    """The loss by torch's own functions; matrices are used as x @ weight."""
    from torch.nn import functional

    def norm(x: Any, name: str) -> Any:
        return functional.layer_norm(
            x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"]
        )

    x = weights["embedding"][ids] + weights["positions"][: ids.shape[1]]
    layers = sum(name.endswith("w_query") for name in weights)
    for n in range(layers):
        rows = norm(x, f"{n}.attention_norm")
        q, k, v = (
            (rows @ weights[f"{n}.attention.w_{part}"]).unflatten(-1, (heads, -1)).transpose(1, 2)
            for part in ("query", "key", "value")
        )
        z = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        z = z.transpose(1, 2).flatten(2)
        x = x + z @ weights[f"{n}.attention.w_out"] + weights[f"{n}.attention.b_out"]
        rows = norm(x, f"{n}.mlp_norm") @ weights[f"{n}.mlp_in.weight"]
        rows = functional.gelu(rows + weights[f"{n}.mlp_in.bias"], approximate="tanh")
        x = x + rows @ weights[f"{n}.mlp_out.weight"] + weights[f"{n}.mlp_out.bias"]
    logits = norm(x, "norm") @ weights["embedding"].T
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def tensors(parameters: Any) -> dict[str, Any]:
    return {
        name: torch.tensor(array.copy(), requires_grad=True)
        for name, array in parameters.arrays.items()
    }


def torch_adamw(weights: dict[str, Any], decay: float, betas: tuple[float, float]) -> Any:
    groups = [
        {"params": [w for w in weights.values() if w.ndim > 1], "weight_decay": decay},
        {"params": [w for w in weights.values() if w.ndim == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=1.0, betas=betas, eps=1e-8)


def test_adamw_is_that_of_torch() -> None:
    shapes = {"bias": (5,), "weight": (4, 5)}
    ours = optimizer.Parameters(shapes)
    generator = np.random.default_rng(0)
    ours.flat[:] = generator.standard_normal(ours.flat.size)
    theirs = tensors(ours)
    adam = optimizer.AdamW(ours, betas=(0.9, 0.95), decay=0.1)
    their_adam = torch_adamw(theirs, 0.1, (0.9, 0.95))
    for n in range(100):
        rate = 0.1 / (1 + n)
        grad = optimizer.Parameters(shapes)
        grad.flat[:] = 10.0 ** (n % 5 - 3) * generator.standard_normal(grad.flat.size)
        for name, weight in theirs.items():
            weight.grad = torch.tensor(grad[name].copy())
        for group in their_adam.param_groups:
            group["lr"] = rate
        their_adam.step()
        adam.step(grad.flat, rate)
    for name, weight in theirs.items():
        np.testing.assert_allclose(ours[name], weight.detach().numpy(), rtol=2e-5, atol=2e-6)


def test_every_gradient_is_that_of_torch() -> None:
    config = model.Config(**TINY)
    generator = np.random.default_rng(0)
    parameters = model.initial(config, generator)
    parameters.flat += 0.1 * generator.standard_normal(parameters.flat.size).astype(np.float32)
    pieces = generator.integers(0, 256, (5, 21))  # less than a context
    ids, targets = pieces[:, :-1], pieces[:, 1:]
    ours = model.CharGPT(config, parameters)
    loss = ours.learn(ids, targets, generator)
    weights = tensors(parameters)
    their_loss = torch_loss(weights, config.heads, torch.tensor(ids), torch.tensor(targets))
    their_loss.backward()
    assert loss == pytest.approx(their_loss.item(), abs=1e-5)
    assert loss == pytest.approx(ours.loss(ids, targets), abs=1e-6)
    for name, weight in weights.items():
        expected = weight.grad.numpy()
        difference = np.abs(ours.gradients[name] - expected).max() / np.abs(expected).max()
        assert difference < 2e-5, name


def test_the_loss_curve_lies_on_that_of_torch() -> None:
    settings = run.Settings(
        **TINY, steps=STEPS, seed=0, dropout=0.0, batch=8, learning_rate=3e-3,
        validate_every=STEPS, data="",
    )  # fmt: skip
    ours = run.Run(settings, text.one_file(EXAMPLES / "char_gpt_model.py"))
    weights = tensors(ours.model.parameters)
    adam = torch_adamw(weights, ours.optimizer.decay, ours.optimizer.betas)
    again = np.random.default_rng(0)
    model.initial(settings.config, again)  # the generator draws the weights first
    losses = []
    for step in range(STEPS):
        pieces = torch.tensor(ours.text.batch(settings.batch, settings.context, again))
        loss = torch_loss(weights, settings.heads, pieces[:, :-1], pieces[:, 1:])
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), run.LONGEST_GRADIENT)
        rate = optimizer.learning_rate(
            step, peak=settings.learning_rate, warmup=settings.warmup, steps=STEPS
        )
        for group in adam.param_groups:
            group["lr"] = rate
        adam.step()
        losses.append(loss.item())
        ours.advance()
    difference = float(np.abs(np.subtract(ours.losses, losses)).max())
    print(f"largest difference over {STEPS} steps: {difference:.1e}")
    assert losses[-1] < losses[0] - 2
    assert difference < 1e-4
