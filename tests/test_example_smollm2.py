"""The model of examples/smollm2.py beside Hugging Face transformers on the same file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from example_files import module, needs_model

pytestmark = [needs_model, pytest.mark.filterwarnings("ignore")]

PROMPTS = [
    "What is the capital of France?",
    "Explain in three sentences why the sky is blue.",
    "List the first ten prime numbers and say what a prime number is.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "Écris une phrase sur l'été, s'il te plaît. 日本語 🎉",
]
"""Whose first 64 tokens lead by 0.017 at least, a hundred times the error of a logit."""
NUM_TOKENS = 64
TEXTS = [
    "Hello world! It's 12345 o'clock,\n\n\tisn't it?  Two blanks.   Three",
    "naïve Zoë — “quotes” … €100 x²",
    "日本語の文章、한국어 текст ελληνικά עברית",
    "🎉👩‍👩‍👧‍👦 é (combining) \u200b zero width",
    "def f(x):\n    return x ** 2  # comment\r\n",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|> <|im_end |>",
    " leading and trailing ",
    "",
]


@dataclass
class Both:
    """Our model and its text; those of transformers."""

    model: Any
    text: Any
    their_model: Any
    their_text: Any

    def memory(self, dtype: str = "float32", capacity: int = 256) -> Any:
        return module("smollm2_model").Memory(self.model.config, capacity, dtype)


@pytest.fixture(scope="module")
def both() -> Both:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = module("smollm2").model_file()
    their_text = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    their_model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="sdpa"
    )
    their_model.generation_config.eos_token_id = None  # go on after the end of the answer
    return Both(*module("smollm2").load(None), their_model, their_text)


def greedy(both: Both, ids: list[int], count: int) -> tuple[list[int], list[float]]:
    """So many tokens after these, and by how much each was likelier than the next one."""
    memory = both.memory()
    tokens, leads = [], []
    news = ids
    for _ in range(count):
        logits = both.model(news, memory)
        second, first = np.partition(logits, -2)[-2:]
        tokens.append(int(logits.argmax()))
        leads.append(float(first - second))
        news = tokens[-1:]
    return tokens, leads


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_tokens_are_those_of_transformers(both: Both, prompt: str) -> None:
    """After the prompt and any number of our tokens, theirs takes the next one that we took."""
    import torch

    ids = both.text.question(prompt)
    tokens, leads = greedy(both, ids, NUM_TOKENS)
    with torch.no_grad():
        logits = both.their_model(torch.tensor([[*ids, *tokens[:-1]]])).logits[0, len(ids) - 1 :]
    expected = logits.argmax(dim=1).tolist()
    assert len(expected) == NUM_TOKENS
    assert tokens == expected, f"the smallest lead of a token is {min(leads):.2g}"


def test_their_generate_gives_the_same_tokens(both: Both) -> None:
    """As a user of transformers calls it: token by token, with its own cache."""
    import torch

    ids = both.text.question(PROMPTS[0])
    expected = both.their_model.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids)),  # else it hides <|im_end|>, which also fills up
        do_sample=False,
        max_new_tokens=24,
        pad_token_id=both.text.end,
    )[0, len(ids) :].tolist()
    assert greedy(both, ids, 24)[0] == expected


def test_every_layer_is_close_to_transformers(both: Both) -> None:
    import torch

    ids = both.text.question(PROMPTS[1])
    with torch.no_grad():
        theirs = both.their_model(torch.tensor([ids]), output_hidden_states=True)
    memory = both.memory()
    x = both.model.embedding[np.asarray(ids)]
    layers = list(zip(both.model.layers, memory.caches, strict=True))
    for number, (layer, cache) in enumerate(layers, 1):
        x = layer(x, 0, cache, memory.dtype)
        if number < len(layers):  # transformers gives the last one after its norm
            expected = theirs.hidden_states[number][0].numpy()
            error = np.abs(x - expected).max() / np.abs(expected).max()
            assert error < 2e-5, f"layer {number}"
    logits = both.model(ids, both.memory())
    np.testing.assert_allclose(logits, theirs.logits[0, -1].numpy(), rtol=0, atol=2e-3)


@pytest.mark.parametrize("cuts", [[1], [20], [7, 8, 30], list(range(1, 33))], ids=str)
def test_the_prompt_may_come_in_pieces(both: Both, cuts: list[int]) -> None:
    ids = both.text.question(PROMPTS[0])
    whole = both.model(ids, both.memory())
    memory = both.memory()
    for start, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        logits = both.model(ids[start:end], memory)
    assert memory.length == len(ids)
    np.testing.assert_allclose(logits, whole, rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("dtype", "most"), [("bfloat16", 1.0), ("float16", 0.1), ("int8", 1.0), ("fp8_e4m3", 4.0)]
)
def test_smaller_caches_change_little(both: Both, dtype: str, most: float) -> None:
    ids = both.text.question(PROMPTS[1])
    exact = both.model(ids, both.memory())
    error = np.abs(both.model(ids, both.memory(dtype)) - exact).max()
    assert 0 < error < most


def test_a_failed_call_leaves_the_memory_as_it_was(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = both.text.question("Hello")
    memory = both.memory()
    both.model(ids, memory)
    expected = both.model([5, 6], memory)
    memory.truncate(len(ids))

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(both.model.layers[17], "feed_forward", interrupted)
        with pytest.raises(KeyboardInterrupt):
            both.model([5, 6], memory)
    assert memory.length == len(ids)
    assert [cache.lengths.tolist() for cache in memory.caches] == [[len(ids)]] * 30
    np.testing.assert_array_equal(both.model([5, 6], memory), expected)


@pytest.mark.parametrize("text", TEXTS)
def test_token_ids_are_those_of_transformers(both: Both, text: str) -> None:
    ids = both.text.encode(text)
    assert ids == both.their_text(text)["input_ids"]
    if "<|" not in text:
        assert both.text.decode(ids) == text
        stream = both.text.stream()
        assert "".join(stream(token) for token in ids) + stream.close() == text


def test_digits_are_cut_off_first_as_the_file_says(both: Both) -> None:
    from tokenizers import pre_tokenizers

    text = "x =   12,\n\n  3 4 ¼"
    ids = both.text.encode(text)
    plain = both.their_text.backend_tokenizer.pre_tokenizer
    try:
        # "smollm" in the file; transformers takes what GPT-2 has, where blanks are cut otherwise.
        both.their_text.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), plain]
        )
        assert ids == both.their_text(text)["input_ids"]
    finally:
        both.their_text.backend_tokenizer.pre_tokenizer = plain
    assert both.text.decode(ids) == text


def test_the_conversation_has_the_form_of_the_file(both: Both) -> None:
    turns = [
        {"role": "user", "content": "Where is Paris?"},
        {"role": "assistant", "content": "In France."},
        {"role": "user", "content": "And Rome?"},
    ]

    def template(turns: list[dict[str, str]]) -> Any:
        text = both.their_text.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=True
        )
        return both.text.encode(text)

    first = both.text.question("Where is Paris?")
    assert first == template(turns[:1])
    answer = both.text.encode("In France.")
    ended = [*first, *answer, both.text.end]
    assert ended + both.text.question("And Rome?", ended) == template(turns)
    cut_short = [*first, *answer]
    assert cut_short + both.text.question("And Rome?", cut_short) == template(turns)


def test_a_character_is_shown_when_its_last_byte_is_there(both: Both) -> None:
    ids = both.text.encode("a🎉b")
    stream = both.text.stream()
    pieces = [stream(token) for token in ids]
    assert len(pieces) > 3
    assert [piece for piece in pieces if piece] == ["a", "🎉", "b"]
    stream = both.text.stream()
    assert "".join(stream(token) for token in ids[:-2]) == "a"
    assert stream.close() == "\N{REPLACEMENT CHARACTER}"


def test_a_full_context_ends_the_answer(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    smollm2 = module("smollm2")
    monkeypatch.setattr(both.model, "config", replace(both.model.config, context=40))
    talk = smollm2.Conversation(both.model, both.text, both.memory(), smollm2.picker(0.0, None))
    assert "".join(talk.reply("What is the capital of France?", 100)) == "The capital of"
    assert len(talk.ids) == 40
    with pytest.raises(smollm2.Complaint, match=r"would have 5. tokens .* takes 40"):
        list(talk.reply("And of Italy?", 100))
    talk.restart()
    assert "".join(talk.reply("What is the capital of France?", 2)) == "The capital"
