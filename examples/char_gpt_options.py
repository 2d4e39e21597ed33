"""The command line of train_char_gpt.py."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

DEFAULTS: dict[str, Any] = {
    "steps": 1200, "seed": 0, "dropout": 0.0, "batch": 16, "context": 128, "layers": 4, "heads": 4,
    "width": 128, "learning_rate": 3e-3, "validate_every": 200, "data": "",
}  # fmt: skip
"""The settings of a run; a run that is resumed keeps those of its checkpoint."""


def whole(least: int) -> Callable[[str], int]:
    """Reads a whole number from `least` on."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(
                f"expected a whole number from {least} on, got {text!r}"
            )
        return int(text)

    return read


def positive(text: str) -> float:
    """A finite number above 0."""
    with suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"expected a finite number above 0, got {text!r}")


def part(text: str) -> float:
    """A number from 0 on and below 1."""
    with suppress(ValueError):
        if 0 <= float(text) < 1:
            return float(text)
    raise argparse.ArgumentTypeError(f"expected a number from 0 on and below 1, got {text!r}")


def whole_path(text: str) -> str:
    """A path that stays right in another folder."""
    return str(Path(text).resolve())


def some(text: str) -> str:
    """A text that is not empty."""
    if not text:
        raise argparse.ArgumentTypeError("expected one character at least, got ''")
    return text


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line's options."""
    parser = argparse.ArgumentParser(
        prog="train_char_gpt", description="Train a small GPT on text, in NumPy and headway alone."
    )

    def option(name: str, help: str, **more: Any) -> None:
        default = DEFAULTS.get(name.strip("-").replace("-", "_"))
        parser.add_argument(name, help=help if default is None else f"{help} ({default})", **more)

    option("--steps", "steps of training", type=whole(1), metavar="N")
    option("--seed", "of the weights, the batches, dropout and the sample", type=whole(0),
           metavar="N")  # fmt: skip
    option("--dropout", "share of attention weights and branches dropped", type=part, metavar="P")
    option("--batch", "sequences per step", type=whole(1), metavar="N")
    option("--context", "bytes per sequence", type=whole(2), metavar="N")
    option("--layers", "blocks of attention and MLP", type=whole(1), metavar="N")
    option("--heads", "heads per block", type=whole(1), metavar="N")
    option("--width", "numbers per token", type=whole(1), metavar="N")
    option("--learning-rate", "highest", type=positive, metavar="R")
    option("--data", "a text (default: the standard library's sources)", type=whole_path,
           metavar="FILE")  # fmt: skip
    option("--out", "folder of the results (%(default)s)", type=Path, default=Path("char_gpt"),
           metavar="DIR")  # fmt: skip
    option("--resume", "go on from the checkpoint in the folder", action="store_true")
    option("--save-every", "steps between checkpoints (%(default)s)", type=whole(1), default=100,
           metavar="N")  # fmt: skip
    option("--validate-every", "steps between validations", type=whole(1), metavar="N")
    option("--threads", "threads to use (default: all)", type=whole(1), metavar="N")
    option("--sample", "bytes to write at the end (%(default)s)", type=whole(0), default=500,
           metavar="N")  # fmt: skip
    option("--prompt", "what they begin with (default: a new line)", type=some, default="\n",
           metavar="TEXT")  # fmt: skip
    option("--temperature", "of the sample (%(default)s)", type=positive, default=0.8, metavar="T")
    return parser.parse_args(arguments)
