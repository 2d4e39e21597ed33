"""What the small GPT reads and writes: a text in two parts, batches of it, and samples.

Its characters are the 256 bytes of a text in UTF-8, so that any file will do.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from char_gpt_layers import Array
from char_gpt_model import CharGPT, Memory

LEFT_OUT = {
    *("test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"),
    *("encodings", "pydoc_data"),  # tables
    *("distutils", "lib2to3", "idlelib", "turtledemo"),  # not in every version of Python
}
LIMIT = 16 * 2**20
"""Bytes that are read at most."""

VALIDATED = 16_384
"""Bytes that the validation loss is the mean of, where the text has that many."""

HELD_OUT = 10
"""One file of so many, or one byte of so many of a single file, is kept for the validation."""


@dataclass(frozen=True)
class Text:
    """A text in two parts, each (length,) of uint8."""

    training: Array
    validation: Array

    @property
    def digest(self) -> str:
        """Tells this text from others."""
        digests = [hashlib.sha256(p.tobytes()).digest() for p in (self.training, self.validation)]
        return hashlib.sha256(b"".join(digests)).hexdigest()

    def batch(self, count: int, context: int, generator: np.random.Generator) -> Array:
        """Pieces of the training part, drawn: (count, context + 1)."""
        starts = generator.integers(0, len(self.training) - context, count)
        return windows(self.training, starts, context)

    def held_out(self, count: int, context: int) -> Iterator[Array]:
        """Always the same pieces of the validation part, (count or fewer, context + 1) each."""
        pieces = min(-(-VALIDATED // context), (len(self.validation) - 1) // context)
        last = len(self.validation) - context - 1
        starts = np.linspace(0, last, pieces).astype(np.intp)
        for first in range(0, pieces, count):
            yield windows(self.validation, starts[first : first + count], context)


def windows(text: Array, starts: Array, context: int) -> Array:
    """The pieces of `context` bytes and one more that begin there."""
    return text[starts[:, None] + np.arange(context + 1)].astype(np.intp)


def standard_library() -> Text:
    """The sources of Python's standard library, in the order of their names."""
    root = Path(sysconfig.get_path("stdlib"))
    names = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py"))
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    size = number = 0
    for name in names:
        if LEFT_OUT.isdisjoint(name.split("/")) and size < LIMIT:
            content = (root / name).read_bytes()[: LIMIT - size]
            parts[number % HELD_OUT == HELD_OUT - 1].append(content)
            size += len(content)
            number += 1
    return Text(*(np.frombuffer(b"".join(part), np.uint8) for part in parts))


def one_file(path: Path) -> Text:
    """A file: its end is kept for the validation."""
    with path.open("rb") as file:
        content = np.frombuffer(file.read(LIMIT), np.uint8)
    cut = len(content) - len(content) // HELD_OUT
    return Text(content[:cut], content[cut:])


def sample(
    model: CharGPT, prompt: bytes, count: int, temperature: float, generator: np.random.Generator
) -> Iterator[bytes]:
    """So many bytes after the prompt, one by one, drawn from softmax(logits / temperature).

    The model knows `context` positions. Where they are used up, it goes on from the later half of
    them.
    """
    context = model.config.context
    memory = Memory(model.config)
    written = np.frombuffer(prompt[-context:], np.uint8).astype(np.intp)
    news = written
    for _ in range(count):
        if memory.length + len(news) > context:
            memory.reset()
            news = written = written[-max(1, context // 2) :]
        logits = model.logits(news, memory).astype(np.float64)
        sums = np.exp((logits - logits.max()) / temperature).cumsum()
        drawn = np.searchsorted(sums, generator.random() * sums[-1], side="right")
        news = np.array([drawn])
        written = np.append(written, news)
        yield bytes([int(drawn)])
