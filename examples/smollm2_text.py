"""SmolLM2's text: from characters to token ids and back, and the form of a conversation."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
CONTROL = 3
"""The type of tokens that stand for no text, such as the end of an answer."""


def byte_letters() -> dict[str, int]:
    """The letter that stands for each byte in the vocabulary, as in GPT-2.

    Printable characters of Latin-1 stand for themselves; the other bytes, in order, are the
    letters from 256 on.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    letters = {chr(byte): byte for byte in plain}
    return letters | {chr(256 + place): byte for place, byte in enumerate(others)}


class Text:
    """The tokenizer that a GGUF file of SmolLM2 describes (byte-level byte-pair encoding)."""

    def __init__(self, fields: dict[str, Any]) -> None:
        from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

        form = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")
        if form != ("gpt2", "smollm"):
            raise ValueError(f"the file: expected a tokenizer ('gpt2', 'smollm'), got {form}")
        names: list[str] = fields["tokenizer.ggml.tokens"]
        types: list[int] = fields["tokenizer.ggml.token_type"]
        self.end: int = fields["tokenizer.ggml.eos_token_id"]
        self.tokenizer = Tokenizer(
            models.BPE(
                vocab={name: number for number, name in enumerate(names)},
                merges=[tuple(pair.split(" ")) for pair in fields["tokenizer.ggml.merges"]],
            )
        )
        self.tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
        control = {name for name, kind in zip(names, types, strict=True) if kind == CONTROL}
        self.tokenizer.add_special_tokens(
            [AddedToken(name, normalized=False, special=True) for name in names if name in control]
        )
        letters = byte_letters()
        self.bytes = [
            b"" if name in control else bytes(letters[letter] for letter in name) for name in names
        ]

    def encode(self, text: str) -> list[int]:
        """The token ids of a text; the names of control tokens in it become those tokens."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        return b"".join(self.bytes[token] for token in ids).decode("utf-8", "replace")

    def question(self, content: str, before: Sequence[int] = ()) -> list[int]:
        """The tokens that put a question to the model, to follow those of the conversation before.

        An answer before that was cut short is closed first.
        """
        turn = f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"
        if not before:
            return self.encode(f"<|im_start|>system\n{SYSTEM}<|im_end|>\n{turn}")
        closing = [] if before[-1] == self.end else [self.end]
        return closing + self.encode(f"\n{turn}")

    def stream(self) -> Stream:
        """A decoder that takes one token after another."""
        return Stream(self.bytes)


class Stream:
    """Text from one token after another: a character is given out when its last byte is there."""

    def __init__(self, token_bytes: list[bytes]) -> None:
        self.bytes = token_bytes
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def __call__(self, token: int) -> str:
        """What can be shown after this token."""
        return self.decoder.decode(self.bytes[token])

    def close(self) -> str:
        """What is left at the end: a sign for a character that was cut short, or nothing."""
        return self.decoder.decode(b"", final=True)
