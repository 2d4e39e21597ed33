"""The text of the demo: read with care, cut into tokens, and embedded."""

import importlib.resources
import os
import re
from typing import NamedTuple

import numpy as np

from .arrays import Array

D_IN = 6  # numbers of an embedded token
SHOWN = 8  # tokens whose every number is printed
MOST_TOKENS = 1024  # tokens that go through a module
SEED = 0
LARGEST_FILE = 8 * 2**20  # bytes; the demo looks at the first tokens only

_TOKEN = re.compile(r"\w+|[^\w\s]")
# Control characters, but those that text files are known to hold (tabs, line ends, escapes).
_STRANGE = re.compile(r"[\x00-\x07\x0e-\x1a\x1c-\x1f\x7f-\x84\x86-\x9f]")


class TextError(Exception):
    """A file that the demo cannot use, told in one line."""


class Text(NamedTuple):
    """A text and its tokens: words in lower case, and single other characters."""

    name: str
    num_characters: int
    tokens: list[str]


def read_text(path: str | None) -> Text:
    """The text of a file, or the one that comes with the package.

    Raises
    ------
    TextError
        If the file is missing, a directory, unreadable, empty, blank, larger than 8 MiB, or not
        text in UTF-8.
    """
    if path is None:
        own = importlib.resources.files(__package__) / "data" / "attention.txt"
        return tokenize("attention.txt, which comes with headway", own.read_text("utf-8"))
    name = path if path.isprintable() else repr(path)
    return tokenize(name, _decode(name, _read(name, path)))


def _read(name: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except FileNotFoundError:
        raise TextError(f"{name}: no such file") from None
    except PermissionError:
        why = "is a directory" if os.path.isdir(path) else "may not be read"
        raise TextError(f"{name}: {why}; name a text file") from None
    except IsADirectoryError:
        raise TextError(f"{name}: is a directory; name a text file") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise TextError(f"{name}: cannot be read ({why})") from None
    if len(content) > LARGEST_FILE:
        raise TextError(
            f"{name}: larger than {LARGEST_FILE // 2**20} MiB; a few pages are enough for the demo"
        )
    return content


def _decode(name: str, content: bytes) -> str:
    if not content:
        raise TextError(f"{name}: is empty")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TextError(
            f"{name}: is not text in UTF-8 (byte 0x{content[error.start]:02x} at {error.start})"
        ) from None
    if strange := _STRANGE.search(text):
        raise TextError(f"{name}: is not text (it holds the character U+{ord(strange[0]):04X})")
    return text


def tokenize(name: str, text: str) -> Text:
    """The tokens of a text.

    Raises
    ------
    TextError
        If there is none.
    """
    tokens = _TOKEN.findall(text.lower())
    if not tokens:
        raise TextError(f"{name}: holds nothing but blanks")
    return Text(name, len(text), tokens)


def embed(tokens: list[str], vocabulary: list[str]) -> Array:
    """(T, d_in) float32: a random row for the token plus a random row for its position."""
    rng = np.random.default_rng(SEED)
    by_position = rng.standard_normal((MOST_TOKENS, D_IN))
    by_token = rng.standard_normal((len(vocabulary), D_IN))
    number = {token: n for n, token in enumerate(vocabulary)}
    rows = by_token[[number[token] for token in tokens]] + by_position[: len(tokens)]
    return np.asarray(rows.astype(np.float32))
