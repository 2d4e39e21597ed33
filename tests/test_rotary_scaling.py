"""The dict that says how frequencies change: what it may hold, what it means, what is refused."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from helpers import Array, assert_same_bits, make

import headway
from headway.frequencies import turning_of

LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 4096,
}


def frequencies(scaling: Any, base: float = 10000.0, head_dim: int = 128) -> Array:
    return turning_of(head_dim, base, None, scaling).frequencies


# What it means ------------------------------------------------------------------------------------


def test_llama3_in_three_parts() -> None:
    """Fast pairs are as they were, slow ones a factor slower, those between fall in between."""
    plain, scaled = frequencies(None, 500000.0), frequencies(LLAMA3, 500000.0)
    turns = 8192 * plain / (2 * np.pi)
    np.testing.assert_array_equal(scaled[turns >= 4], plain[turns >= 4])
    np.testing.assert_allclose(scaled[turns <= 1], plain[turns <= 1] / 8, rtol=1e-15)
    between = (turns > 1) & (turns < 4)
    assert between.sum() > 3
    share = (turns[between] - 1) / 3
    expected = plain[between] * (share + (1 - share) / 8)
    np.testing.assert_allclose(scaled[between], expected, rtol=1e-14)


def test_yarn_in_three_parts() -> None:
    plain, scaled = frequencies(None), frequencies(YARN)
    kept, slowed = scaled == plain, np.isclose(scaled, plain / 4, rtol=1e-14)
    first, last = kept.sum(), 64 - slowed.sum()
    assert (kept[:first].all(), slowed[last:].all()) == (True, True)
    turns = 4096 * plain / (2 * np.pi)
    assert turns[first - 1] >= 32
    assert turns[last] <= 1
    line = (scaled / plain)[first - 1 : last + 1]
    np.testing.assert_allclose(np.diff(line), np.diff(line)[0], rtol=1e-9)


def test_linear_is_a_position_divided() -> None:
    x = make(1, (2, 6, 16), "float32")
    expected = headway.rotary_embedding(x, np.arange(6) * 3)
    got = headway.rotary_embedding(
        x, np.arange(6) * 12, scaling={"rope_type": "linear", "factor": 4}
    )
    assert_same_bits(got, expected)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_attention_factor_multiplies_what_is_turned(dtype: str, isa: str) -> None:
    x = make(2, (2, 5, 16), dtype)
    one = headway.rotary_embedding(x, 0, scaling=YARN | {"attention_factor": 1}, rotary_dim=12)
    two = headway.rotary_embedding(x, 0, scaling=YARN | {"attention_factor": 2}, rotary_dim=12)
    np.testing.assert_array_equal(two[..., :12], 2 * one[..., :12])
    np.testing.assert_array_equal(two[..., 12:], x[..., 12:])
    np.testing.assert_array_equal(
        headway.reference.rotary_embedding(
            x.astype(np.float64), 0, scaling=YARN | {"attention_factor": 2}, rotary_dim=12
        ).astype(x.dtype)[:, 0],
        two[:, 0],
    )


def test_default_is_none() -> None:
    assert_same_bits(frequencies({"rope_type": "default"}), frequencies(None))
    assert_same_bits(frequencies({"type": "default"}), frequencies(None))
    assert_same_bits(frequencies(MappingProxyType(YARN)), frequencies(YARN))
    both = YARN | {"type": "yarn"}
    assert_same_bits(frequencies(both), frequencies(YARN))


def test_none_and_zero_as_good_as_no_key() -> None:
    """Configurations are written with null for what has no value."""
    empty = {"attention_factor": None, "mscale": None, "truncate": None, "beta_fast": None}
    for more in (empty, {"beta_fast": 0, "beta_slow": 0}, {"mscale": 0, "mscale_all_dim": 0.7}):
        assert turning_of(64, 1e4, None, YARN | more).factor == turning_of(64, 1e4, None, YARN)[1]
        assert_same_bits(frequencies(YARN | more), frequencies(YARN))


def test_rope_theta_and_partial_rotary_factor() -> None:
    x = make(3, (3, 16), "float32")
    whole = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}
    expected = headway.rotary_embedding(x, 4, base=500.0, rotary_dim=8)
    assert_same_bits(headway.rotary_embedding(x, 4, scaling=whole), expected)
    got = headway.rotary_embedding(x, 4, scaling=whole, base=500, rotary_dim=8)
    assert_same_bits(got, expected)
    assert_same_bits(headway.reference.rotary_embedding(x, 0, scaling=whole)[0], x[0])


def test_the_dict_is_read_again_in_every_call() -> None:
    """Frequencies are kept for equal dicts, not for the same one."""
    x = make(4, (3, 16), "float64")
    scaling = dict(LLAMA3)
    first = headway.rotary_embedding(x, 5, scaling=scaling)
    scaling["factor"] = 2.0
    second = headway.rotary_embedding(x, 5, scaling=scaling)
    assert not np.array_equal(first, second)
    assert_same_bits(headway.rotary_embedding(x, 5, scaling=LLAMA3), first)
    with pytest.raises(ValueError, match="read-only"):
        frequencies(LLAMA3)[0] = 0


# What is refused ----------------------------------------------------------------------------------
FIX = "pass the dict that a model's configuration has under rope_scaling or rope_parameters"
RECIPES = '"default", "linear", "llama3", "yarn"'
TAKE = "take it from the model's configuration"


def without(scaling: dict[str, Any], key: str) -> dict[str, Any]:
    return {k: v for k, v in scaling.items() if k != key}


REFUSED: dict[str, tuple[type[Exception], Any, str]] = {
    "a list": (TypeError, [1], f"scaling: expected a dict or None, got list; {FIX}"),
    "a name": (TypeError, "yarn", f"scaling: expected a dict or None, got str; {FIX}"),
    "no type": (
        ValueError, {"factor": 2.0},
        f'scaling: expected a key "rope_type" with one of {RECIPES}; {FIX}',
    ),
    "one for each kind of layer": (
        ValueError, {"full_attention": {"rope_type": "default"}},
        f'scaling: expected a key "rope_type" with one of {RECIPES}; {FIX}',
    ),
    "another type": (
        ValueError, {"rope_type": "longrope", "factor": 2.0},
        f"scaling: expected one of {RECIPES} for 'rope_type', got 'longrope'; "
        "other recipes are not offered",
    ),
    "no name": (
        ValueError, {"type": None},
        f"scaling: expected one of {RECIPES} for 'type', got None; other recipes are not offered",
    ),
    "two types": (
        ValueError, YARN | {"type": "linear"},
        'scaling: expected the same for "rope_type" and "type", got \'yarn\' and \'linear\'; '
        "leave one out",
    ),
    "unknown key": (
        ValueError, {"rope_type": "linear", "factor": 2.0, "beta_fast": 32},
        "scaling: expected for 'linear' no keys but factor, rope_theta, partial_rotary_factor, "
        "got 'beta_fast'; leave out what is no part of the rotary embedding",
    ),
    "no factor": (
        ValueError, without(LLAMA3, "factor"),
        "scaling: expected a number for 'factor', which 'llama3' needs, got none; add the key",
    ),
    "null for the context": (
        ValueError, YARN | {"original_max_position_embeddings": None},
        "scaling: expected a number for 'original_max_position_embeddings', which 'yarn' needs, "
        "got none; add the key",
    ),
    "text": (
        TypeError, YARN | {"factor": "4"},
        "scaling: expected a real number for 'factor', got '4' (str); convert it with float()",
    ),
    "bool": (
        TypeError, LLAMA3 | {"low_freq_factor": True},
        "scaling: expected a real number for 'low_freq_factor', got True (bool); "
        "convert it with float()",
    ),
    "list": (
        TypeError, YARN | {"factor": [4.0]},
        "scaling: expected a real number for 'factor', got [4.0] (list); convert it with float()",
    ),
    "truncate": (
        TypeError, YARN | {"truncate": 1},
        "scaling: expected True or False for 'truncate', got 1 (int); convert it with bool()",
    ),
    "factor below 1": (
        ValueError, YARN | {"factor": 0.5},
        f"scaling: expected a finite number of at least 1 for 'factor', got 0.5; {TAKE}",
    ),
    "factor nan": (
        ValueError, YARN | {"factor": float("nan")},
        f"scaling: expected a finite number of at least 1 for 'factor', got nan; {TAKE}",
    ),
    "attention_factor 0": (
        ValueError, YARN | {"attention_factor": 0},
        f"scaling: expected a finite number above 0 for 'attention_factor', got 0.0; {TAKE}",
    ),
    "mscale below 0": (
        ValueError, YARN | {"mscale": -1},
        f"scaling: expected a finite number of at least 0 for 'mscale', got -1.0; {TAKE}",
    ),
    "too large": (
        ValueError, YARN | {"factor": 10**400},
        f"scaling: expected a finite number of at least 1 for 'factor', got inf; {TAKE}",
    ),
    "low above high": (
        ValueError, LLAMA3 | {"low_freq_factor": 5.0},
        "scaling: expected 'high_freq_factor' above 'low_freq_factor', got 4.0 and 5.0; "
        "take them from the model's configuration",
    ),
    "slow above fast": (
        ValueError, YARN | {"beta_slow": 40},
        "scaling: expected 'beta_fast' above 'beta_slow', got 32.0 and 40.0; "
        "take them from the model's configuration",
    ),
    "rope_theta": (
        ValueError, YARN | {"rope_theta": 0.5},
        "scaling['rope_theta']: expected a finite number of at least 1, got 0.5; "
        "pass the rope_theta of the model, or 10000.0",
    ),
    "yarn of base 1": (
        ValueError, YARN | {"rope_theta": 1},
        "base: expected more than 1 for yarn, got 1.0; "
        "pass the rope_theta of the model, or 10000.0",
    ),
    "partial_rotary_factor": (
        ValueError, YARN | {"partial_rotary_factor": 0.2},
        "scaling: expected a partial_rotary_factor that gives an even number from 2 to head_dim, "
        "which is 16, got 0.2, which gives 3; pass rotary_dim and leave the key out",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    error, scaling, text = REFUSED[name]
    for _ in range(2):  # the second one as the first, whatever is kept
        with pytest.raises(error) as caught:
            headway.rotary_embedding(np.zeros((2, 16)), 0, scaling=scaling)
        assert str(caught.value) == text


def test_arguments_that_contradict_the_dict() -> None:
    x, both = np.zeros((2, 16)), "pass one of the two"
    with pytest.raises(ValueError, match="scaling") as caught:
        headway.rotary_embedding(x, 0, base=500.0, scaling=YARN | {"rope_theta": 600})
    assert str(caught.value) == (
        f"scaling: expected a rope_theta of 500.0 like base, got 600.0; {both}"
    )
    with pytest.raises(ValueError, match="scaling") as caught:
        headway.rotary_embedding(x, 0, rotary_dim=4, scaling=YARN | {"partial_rotary_factor": 0.5})
    assert str(caught.value) == (
        "scaling: expected a partial_rotary_factor that gives rotary_dim 4, got 0.5, "
        f"which gives 8; {both}"
    )
