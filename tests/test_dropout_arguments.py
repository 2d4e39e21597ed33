"""The arguments of dropout: what is refused, with which text, and what counts as none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import assert_same_bits, make
from refusals import FUNCTIONS, Refusal, assert_refused, cases, good, wrong_kind, wrong_value

import headway

Call = Callable[..., Any]
PACKED: dict[str, Call] = {
    "attention_varlen": headway.attention_varlen,
    "reference.attention_varlen": headway.reference.attention_varlen,
}
RATE = "0 or more and below 1"
PROBABILITY = "the probability of a weight to be dropped"
SEED = "an int from 0 to 2**64 - 1"


def wrong_rate(value: Any, got: str) -> Refusal:
    return wrong_value("dropout", value, RATE, got, PROBABILITY, seed=1)


def wrong_seed(value: Any, got: str) -> Refusal:
    return wrong_kind("seed", value, SEED, got, "int(seed)", dropout=0.5)


REFUSALS: dict[str, Refusal] = {
    "rate 1": wrong_rate(1, "1.0"),
    "rate above 1": wrong_rate(1.5, "1.5"),
    "rate below 0": wrong_rate(-1e-300, "-1e-300"),
    "rate NaN": wrong_rate(np.nan, "nan"),
    "rate inf": wrong_rate(np.inf, "inf"),
    "rate too large": wrong_rate(10**400, "inf"),
    "rate None": wrong_kind("dropout", None, RATE, "None (NoneType)", "0.0 for none"),
    "rate bool": wrong_kind("dropout", True, RATE, "True (bool)", "0.0 for none"),
    "rate text": wrong_kind("dropout", "0.1", RATE, "'0.1' (str)", "0.0 for none"),
    "rate complex": wrong_kind("dropout", 0.1j, RATE, "0.1j (complex)", "0.0 for none"),
    "rate array": wrong_kind("dropout", np.zeros(1), RATE, "(ndarray)", "0.0 for none"),
    "no seed": wrong_value(
        "seed", None, f"{SEED} with dropout=0.5", "None", "another one for every call", dropout=0.5
    ),
    "seed below 0": wrong_value("seed", -1, SEED, "-1", "seed % 2**64", dropout=0.5),
    "seed too large": wrong_value("seed", 2**64, SEED, str(2**64), "seed % 2**64", dropout=0.5),
    "seed without dropout": wrong_value("seed", -1, SEED, "-1", "seed % 2**64"),
    "seed float": wrong_seed(1.0, "1.0 (float)"),
    "seed bool": wrong_seed(True, "True (bool)"),
    "seed NumPy bool": wrong_seed(np.True_, "True"),
    "seed text": wrong_seed("1", "'1' (str)"),
    "seed array": wrong_seed(np.zeros(2, int), "(ndarray)"),
    "seed generator": wrong_seed(np.random.default_rng(0), "(Generator)"),
}


def packed() -> dict[str, Any]:
    """Return a call on packed sequences that passes."""
    x = good()
    arrays = {name: x[name][0].swapaxes(0, 1) for name in ("q", "k", "v", "out")}
    return arrays | {"cu_seqlens_q": [0, 2, 5], "cu_seqlens_k": [0, 4, 7]}


@pytest.mark.parametrize(("function", "refusal"), cases(FUNCTIONS, REFUSALS))
def test_refused_with_a_text_that_helps(function: str, refusal: Refusal) -> None:
    assert_refused(FUNCTIONS[function], good(), refusal)


@pytest.mark.parametrize(("function", "refusal"), cases(PACKED, REFUSALS))
def test_refused_where_packed(function: str, refusal: Refusal) -> None:
    assert_refused(PACKED[function], packed(), refusal)


@pytest.mark.parametrize("function", ["attention_scores", "reference.attention_scores"])
def test_scores_know_no_dropout(function: str) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'dropout'"):
        FUNCTIONS[function](good()["q"], good()["k"], dropout=0.0)


def test_caches_know_no_dropout() -> None:
    cache = headway.KVCache(1, 1, 4, 2)
    with pytest.raises(TypeError, match="unexpected keyword argument 'dropout'"):
        cache.attend(np.zeros((1, 1, 1, 2), np.float32), dropout=0.5, seed=1)


@pytest.mark.parametrize(
    "given",
    [
        {"dropout": 0.0},
        {"dropout": 0},
        {"dropout": -0.0, "seed": 5},
        {"dropout": np.float32(0), "seed": None},
        {"seed": np.uint64(2**64 - 1)},
    ],
)
def test_none_at_all(given: dict[str, Any], isa: str) -> None:
    """A rate of 0, with or without a seed, gives the very bits of a call without one."""
    q = make(1, (1, 2, 40, 8), "float32")
    for options in ({}, {"sinks": [1.0, 2.0], "softcap": 3.0}):
        plain = headway.attention(q, q, q, return_lse=True, **options)
        found = headway.attention(q, q, q, return_lse=True, **options, **given)
        for one, other in zip(plain, found, strict=True):
            assert_same_bits(other, one)
        same = headway.attention_weights(q, q, **options, **given)
        assert_same_bits(same, headway.attention_weights(q, q, **options))


@pytest.mark.parametrize("module", [headway, headway.reference])
def test_numbers_of_every_kind(module: Any) -> None:
    """NumPy's numbers and Python's are the same rate and seed."""
    q = make(1, (1, 1, 20, 8), "float64")
    expected = module.attention(q, q, q, dropout=0.25, seed=12)
    for rate, seed in ((np.float16(0.25), np.int8(12)), (np.float64(0.25), np.array(12))):
        assert_same_bits(module.attention(q, q, q, dropout=rate, seed=seed), expected)
