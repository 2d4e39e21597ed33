"""Models of transformers: the same logits and tokens as with its own attention functions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from helpers import assert_close
from tiny_models import DECODERS, NO_SDPA, SEQUENCE_TO_SEQUENCE, VOCABULARY, WINDOW, made

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", "5.24", reason="transformers 5.24: its models")

TOLERANCE = 1e-5
TOKENS = 13  # longer than the window


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Iterator[None]:
    from headway.interop.transformers import register

    register()
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # the models are tiny
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=DECODERS)
def decoder(request: pytest.FixtureRequest) -> Any:
    return made("AutoModelForCausalLM", DECODERS[request.param])


@pytest.fixture(scope="module", params=SEQUENCE_TO_SEQUENCE)
def both_sides(request: pytest.FixtureRequest) -> Any:
    return made("AutoModelForSeq2SeqLM", SEQUENCE_TO_SEQUENCE[request.param])


def prompt(batch: int, tokens: int = TOKENS, padding: str = "none") -> dict[str, Any]:
    """Token numbers, and where they are padded a mask: the first entry is 4 tokens shorter."""
    generator = torch.Generator().manual_seed(11)
    ids = torch.randint(4, VOCABULARY, (batch, tokens), generator=generator)
    if padding == "none":
        return {"input_ids": ids}
    mask = torch.ones_like(ids)
    mask[0, slice(0, 4) if padding == "left" else slice(tokens - 4, None)] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def others(model: Any) -> list[str]:
    """The attention functions of transformers that the model takes."""
    return ["eager"] if model.config.model_type in NO_SDPA else ["eager", "sdpa"]


def run(model: Any, implementation: str, task: Any) -> Any:
    """The result of a task on the model with this attention function."""
    model.set_attn_implementation(implementation)
    assert model.config._attn_implementation == implementation
    with torch.no_grad():
        return task(model)


def assert_same_logits(model: Any, task: Any) -> None:
    """Ours agree with each of theirs, relative to the largest logit."""
    got = run(model, "headway", task).numpy()
    for name in others(model):
        assert_close(got, run(model, name, task).numpy(), TOLERANCE, name)


def assert_same_tokens(model: Any, task: Any) -> None:
    got = run(model, "headway", task)
    assert len({tuple(row) for row in got.tolist()}) == len(got)
    assert torch.equal(got, run(model, others(model)[-1], task))


# Decoders -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("padding", ["none", "left", "right"])
def test_logits(decoder: Any, padding: str) -> None:
    """All tokens at once; the rows of padding are looked at by nobody."""
    inputs = prompt(2, padding=padding)
    shown = inputs.get("attention_mask", torch.ones(2, TOKENS)).bool()
    assert_same_logits(decoder, lambda model: model(**inputs, use_cache=False).logits[shown])


@pytest.mark.parametrize("cache", ["dynamic", "static", "none"])
def test_greedy_tokens(decoder: Any, cache: str) -> None:
    """Prompts of unequal length, padded on the left, and a continuation that passes the window."""
    options: dict[str, Any] = {"use_cache": False}
    if cache != "none":
        options = {"cache_implementation": cache}
    inputs = prompt(2, padding="left")

    def task(model: Any) -> Any:
        made_tokens = model.generate(
            **inputs, **options, max_new_tokens=6, do_sample=False, pad_token_id=0
        )
        return made_tokens[:, TOKENS:]

    assert_same_tokens(decoder, task)


def test_beams(decoder: Any) -> None:
    inputs = prompt(2, padding="left")
    assert_same_tokens(
        decoder,
        lambda model: model.generate(
            **inputs, num_beams=3, num_return_sequences=2, max_new_tokens=5, do_sample=False
        )[:, TOKENS:],
    )


@pytest.mark.parametrize("cache", ["DynamicCache", "StaticCache"])
def test_chunked_prefill(decoder: Any, cache: str) -> None:
    """Pieces of 5, 1, 4 and 3 tokens after one another; the logits of each, as of the whole."""
    inputs = prompt(2)["input_ids"]

    def task(model: Any) -> Any:
        lengths = {"max_cache_len": TOKENS + 3} if cache == "StaticCache" else {}
        kept = getattr(transformers, cache)(config=model.config, **lengths)
        pieces = [model(piece, cache=kept).logits for piece in inputs.split([5, 1, 4, 3], dim=1)]
        return torch.cat(pieces, dim=1)

    assert_same_logits(decoder, task)
    whole = run(decoder, "headway", lambda model: model(inputs, use_cache=False).logits)
    assert_close(run(decoder, "headway", task).numpy(), whole.numpy(), TOLERANCE)


def test_the_window_and_the_padding_count() -> None:
    """What the comparisons above would miss if the models did not depend on it."""
    ids = prompt(2, padding="left")
    for name, config in DECODERS.items():
        model = made("AutoModelForCausalLM", config)
        plain = run(model, "headway", lambda model: model(**ids).logits[:, 4:])
        unmasked = run(model, "headway", lambda model: model(ids["input_ids"]).logits[:, 4:])
        assert (plain - unmasked)[0].abs().max() > 0.01 * plain.abs().max(), name
        if "sliding_window" in config[1]:
            model = made("AutoModelForCausalLM", (config[0], config[1] | {"sliding_window": 60}))
            wide = run(model, "headway", lambda model: model(**ids).logits[:, 4:])
            assert (plain - wide).abs().max() > 0.01 * plain.abs().max(), name
    assert TOKENS > WINDOW + 4


def test_packed_sequences(decoder: Any) -> None:
    """Positions that begin anew: no sequence sees another one."""
    ids = prompt(1)["input_ids"]
    positions = torch.cat([torch.arange(n) for n in (6, 7)])[None]

    def task(model: Any) -> Any:
        return model(ids, position_ids=positions, use_cache=False).logits

    if decoder.config.model_type != "gpt_oss":  # which makes its masks without the positions
        alone = run(decoder, "headway", lambda model: model(ids[:, 6:], use_cache=False).logits)
        assert_close(run(decoder, "headway", task)[:, 6:].numpy(), alone.numpy(), TOLERANCE)
    assert_same_logits(decoder, task)


def test_returned_weights(decoder: Any) -> None:
    inputs = prompt(2)

    def task(model: Any) -> Any:
        return torch.stack(model(**inputs, output_attentions=True).attentions)

    got = run(decoder, "headway", task)
    assert got.shape == (2, 2, 4, TOKENS, TOKENS)
    assert_close(got.numpy(), run(decoder, "eager", task).numpy(), TOLERANCE)


def test_bfloat16() -> None:
    """Sixteen bits throughout: as near to float32 as transformers' own function."""
    pytest.importorskip("ml_dtypes")
    model = made("AutoModelForCausalLM", DECODERS["llama"])
    inputs = prompt(2, padding="left")
    shown = inputs["attention_mask"].bool()

    def task(model: Any) -> Any:
        return model(**inputs).logits[shown].float()

    wanted = run(model, "eager", task)
    model = model.to(torch.bfloat16)
    errors = [(run(model, name, task) - wanted).abs().max() for name in ("headway", "sdpa")]
    assert errors[0] < 1.5 * errors[1]


def test_autocast() -> None:
    """Rotated queries and keys come wider than the values there."""
    pytest.importorskip("ml_dtypes")
    model = made("AutoModelForCausalLM", DECODERS["llama"])
    inputs = prompt(2, padding="left")
    shown = inputs["attention_mask"].bool()

    def task(model: Any) -> Any:
        return model(**inputs).logits[shown].float()

    wanted = run(model, "eager", task)
    with torch.autocast("cpu", torch.bfloat16):
        errors = [(run(model, name, task) - wanted).abs().max() for name in ("headway", "sdpa")]
    assert 0 < errors[0] < 1.5 * errors[1]


# Encoders -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("padding", ["none", "left", "right"])
def test_an_encoder(padding: str) -> None:
    from tiny_models import ENCODER

    model = made("AutoModel", ENCODER)
    inputs = prompt(2, padding=padding)
    shown = inputs.get("attention_mask", torch.ones(2, TOKENS)).bool()
    assert_same_logits(model, lambda model: model(**inputs).last_hidden_state[shown])


@pytest.mark.parametrize("padding", ["none", "left", "right"])
def test_both_sides(both_sides: Any, padding: str) -> None:
    """Encoder, decoder and cross attention; the decoder reads six tokens at once."""
    inputs = prompt(2, padding=padding)
    started = prompt(2, 6)["input_ids"]
    assert_same_logits(both_sides, lambda model: model(**inputs, decoder_input_ids=started).logits)


@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize(
    "options",
    [{}, {"num_beams": 3}, {"cache_implementation": "static"}, {"use_cache": False}],
    ids=["dynamic", "beams", "static", "none"],
)
def test_tokens_of_both_sides(both_sides: Any, options: dict[str, Any], padding: str) -> None:
    inputs = prompt(2, padding=padding)
    assert_same_tokens(
        both_sides,
        lambda model: model.generate(**inputs, **options, max_new_tokens=7, do_sample=False),
    )
