"""A training run of the small GPT: one step after another, and the file that it goes on from."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from char_gpt_layers import Array
from char_gpt_model import CharGPT, Config, initial
from char_gpt_optimizer import AdamW, Parameters, clip, learning_rate
from char_gpt_text import Text

FORMAT = "char_gpt 1"
LONGEST_GRADIENT = 1.0


@dataclass(frozen=True)
class Settings:
    """What decides the result of a run, beside the text."""

    steps: int
    seed: int
    dropout: float
    batch: int
    context: int
    layers: int
    heads: int
    width: int
    learning_rate: float
    validate_every: int
    data: str
    """A file, or nothing for the standard library."""

    @property
    def config(self) -> Config:
        """The sizes of the model."""
        return Config(self.layers, self.heads, self.width, self.context, dropout=self.dropout)

    @property
    def warmup(self) -> int:
        """Steps in which the learning rate rises."""
        return max(1, min(100, self.steps // 10))


class Run:
    """The state between two steps: weights, moments, generator, losses so far."""

    def __init__(self, settings: Settings, text: Text) -> None:
        self.settings, self.text = settings, text
        self.generator = np.random.default_rng(settings.seed)
        self.model = CharGPT(settings.config, initial(settings.config, self.generator))
        self.optimizer = AdamW(self.model.parameters)
        self.losses: list[float] = []
        self.validation: list[tuple[int, float]] = []

    @property
    def step(self) -> int:
        """Steps done."""
        return len(self.losses)

    def advance(self) -> float:
        """One step; the loss before it."""
        settings = self.settings
        pieces = self.text.batch(settings.batch, settings.context, self.generator)
        loss = self.model.learn(pieces[:, :-1], pieces[:, 1:], self.generator)
        gradient = self.model.gradients.flat
        clip(gradient, LONGEST_GRADIENT)
        rate = learning_rate(
            self.step,
            peak=settings.learning_rate,
            warmup=settings.warmup,
            steps=settings.steps,
        )
        self.optimizer.step(gradient, rate)
        self.model.load()
        self.losses.append(loss)
        return loss

    def validate(self) -> float:
        """The loss of the text that training does not see, always over the same pieces of it."""
        losses, counts = [], []
        for pieces in self.text.held_out(self.settings.batch, self.settings.context):
            losses.append(self.model.loss(pieces[:, :-1], pieces[:, 1:]))
            counts.append(len(pieces))
        loss = float(np.average(losses, weights=counts))
        self.validation.append((self.step, loss))
        return loss

    # The file -------------------------------------------------------------------------------------

    def vectors(self) -> dict[str, Parameters]:
        """The weights and the optimizer's two moments."""
        weights = self.model.parameters
        moments = {"mean": self.optimizer.mean, "square": self.optimizer.square}
        named = {name: Parameters(weights.shapes, flat) for name, flat in moments.items()}
        return {"weight": weights} | named

    def save(self, path: Path) -> None:
        """Write all of it to a safetensors file, which holds this state or the one before it."""
        from safetensors.numpy import save

        tensors: dict[str, Array] = {
            f"{kind}.{name}": array
            for kind, vector in self.vectors().items()
            for name, array in vector.arrays.items()
        }
        tensors["losses"] = np.array(self.losses, np.float64)
        tensors["validation"] = np.array(self.validation, np.float64).reshape(-1, 2)
        about = {
            "format": FORMAT,
            "settings": asdict(self.settings),
            "text": self.text.digest,
            "generator": self.generator.bit_generator.state,
        }
        write_atomically(path, save(tensors, {"about": json.dumps(about)}))

    def restore(self, about: dict[str, Any], tensors: dict[str, Array]) -> None:
        """Take the state that `read` found in a file."""
        for kind, vector in self.vectors().items():
            for name, array in vector.arrays.items():
                found = tensors[f"{kind}.{name}"]
                if found.shape != array.shape or found.dtype != array.dtype:
                    raise ValueError(f"{kind}.{name} is {found.dtype} {found.shape}")
                array[...] = found
        self.generator.bit_generator.state = about["generator"]
        self.losses = tensors["losses"].tolist()
        self.validation = [(int(step), loss) for step, loss in tensors["validation"].tolist()]
        self.optimizer.steps = self.step
        self.model.load()


def read(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """What stands in a checkpoint: about the run, and arrays by name."""
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        about = json.loads((file.metadata() or {}).get("about", "{}"))
        if about.get("format") != FORMAT:
            raise ValueError(f"expected the format {FORMAT!r}, got {about.get('format')!r}")
        return about, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside the path, bring it to the disk, then put it in place in one step."""
    beside = path.with_name(path.name + ".tmp")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    if os.name == "posix":  # the new name itself
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
