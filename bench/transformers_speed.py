"""One layer of a Hugging Face Llama on headway and on PyTorch's attention: prefill and decode.

9 heads, 3 key heads of 64 columns, width 576, random weights, 2,048 tokens. Both models have the
same weights and are called in turns; milliseconds of wall time of the whole model, and of the
attention function alone as the model's layer calls it.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers

import headway
from headway.interop.transformers import register

TOKENS = 2048
TYPES = (torch.float32, torch.bfloat16)


def model_of(implementation: str, dtype: Any) -> Any:
    """A model of one layer; the same weights for every implementation."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=1,
        num_attention_heads=9,
        num_key_value_heads=3,
        vocab_size=256,
        max_position_embeddings=2 * TOKENS,
        attn_implementation=implementation,
    )
    return transformers.LlamaForCausalLM(config).to(dtype).eval()


def measured(dtype: Any, prefills: int, steps: int) -> dict[str, dict[str, list[float]]]:
    """Milliseconds of every call, by what was done and by implementation."""
    models = {name: model_of(name, dtype) for name in ("sdpa", "headway")}
    tokens = torch.randint(0, 256, (1, TOKENS))
    caches = {}
    for name, model in models.items():
        caches[name] = transformers.DynamicCache(config=model.config)
        with torch.no_grad():
            model(tokens, past_key_values=caches[name], use_cache=True, logits_to_keep=1)
    times: dict[str, dict[str, list[float]]] = {}

    def take(what: str, name: str, call: Callable[[], object]) -> None:
        start = time.perf_counter()
        with torch.no_grad():
            call()
        elapsed = 1e3 * (time.perf_counter() - start)
        times.setdefault(what, {}).setdefault(name, []).append(elapsed)

    def step(name: str) -> Callable[[], object]:
        options = {"past_key_values": caches[name], "use_cache": True}
        return lambda: models[name](tokens[:, :1], **options)

    for _ in range(prefills):
        for name, model in models.items():
            prefill = partial(model, tokens, use_cache=False, logits_to_keep=1)
            take("prefill", name, prefill)
    for _ in range(steps):
        for name in models:
            take("decode", name, step(name))
    layer = models["sdpa"].model.layers[0].self_attn
    keys, values = (torch.randn(1, 3, TOKENS, 64).to(dtype) for _ in range(2))
    functions = transformers.AttentionInterface()
    for what, queries, turns in (("prefill", TOKENS, prefills), ("decode", 1, 4 * steps)):
        query = torch.randn(1, 9, queries, 64).to(dtype)
        for _ in range(turns):
            for name in models:
                call = partial(functions[name], layer, query, keys, values, None, scaling=0.125)
                take(f"{what}, attention alone", name, call)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prefills", type=int, default=12)
    parser.add_argument("--steps", type=int, default=150)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    headway.set_num_threads(given.threads)
    warnings.simplefilter("ignore", FutureWarning)  # of transformers, about its own names
    register()
    print("| threads | dtype | what | sdpa, ms | headway, ms | ahead | by medians |")
    print("| --- | --- | --- | --: | --: | --: | --: |")
    for dtype in TYPES:
        for what, found in measured(dtype, given.prefills, given.steps).items():
            best = {name: min(times) for name, times in found.items()}
            middle = {name: statistics.median(times) for name, times in found.items()}
            print(
                f"| {given.threads} | {str(dtype).removeprefix('torch.')} | {what} "
                f"| {best['sdpa']:.3f} | {best['headway']:.3f} "
                f"| {best['sdpa'] / best['headway']:.2f} "
                f"| {middle['sdpa'] / middle['headway']:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
