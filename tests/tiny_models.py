"""Tiny models of transformers with random weights that make attention matter."""

from __future__ import annotations

import copy
from typing import Any

VOCABULARY = 61
WINDOW = 5

_PLAIN = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
_GROUPED = _PLAIN | {"num_key_value_heads": 2, "head_dim": 8}
_GEMMA = _GROUPED | {"sliding_window": WINDOW, "query_pre_attn_scalar": 8}

#: Class of the configuration, and its values; each with two layers, of which one may be a window.
DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", _GROUPED),
    "gpt2": ("GPT2Config", _PLAIN | {"n_inner": 40}),
    "mistral": ("MistralConfig", _GROUPED | {"sliding_window": WINDOW}),
    "qwen2": (
        "Qwen2Config",
        _PLAIN
        | {
            "num_key_value_heads": 1,
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "max_window_layers": 1,
        },
    ),
    "qwen3": ("Qwen3Config", _GROUPED),
    "gemma2": ("Gemma2Config", _GEMMA | {"attn_logit_softcapping": 2.0}),
    "gemma3": (
        "Gemma3TextConfig",
        _GEMMA | {"layer_types": ["sliding_attention", "full_attention"]},
    ),
    "gpt_oss": (
        "GptOssConfig",
        _GROUPED
        | {
            "sliding_window": WINDOW,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
    ),
}

#: Where PyTorch's own function is refused, only the plain formulas can be compared with.
NO_SDPA = ("gemma2", "gpt_oss")

ENCODER = ("BertConfig", {n: x for n, x in _PLAIN.items() if "_token_" not in n})

_ENCODER_DECODER = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 3,
}
_SIDES = {
    f"{side}_{what}": size
    for side in ("encoder", "decoder")
    for what, size in (("layers", 1), ("attention_heads", 4), ("ffn_dim", 40))
}
SEQUENCE_TO_SEQUENCE: dict[str, tuple[str, dict[str, Any]]] = {
    "bart": (
        "BartConfig",
        _ENCODER_DECODER | _SIDES | {"max_position_embeddings": 64, "forced_eos_token_id": None},
    ),
    "t5": (
        "T5Config",
        _ENCODER_DECODER | {"d_kv": 8, "d_ff": 40, "num_layers": 2, "num_heads": 4},
    ),
}


def made(kind: str, config: tuple[str, dict[str, Any]], **changes: Any) -> Any:
    """A model of the class AutoModel...: the same random weights at each call."""
    import torch
    import transformers

    name, values = config
    made_config = getattr(transformers, name)(**copy.deepcopy(values), **changes)
    model = getattr(transformers, kind).from_config(made_config).eval()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.4, generator=generator)
            else:
                parameter.add_(torch.empty_like(parameter).normal_(0.0, 0.1, generator=generator))
    return model
