"""How fast each pair of numbers turns in a rotary embedding: from base and recipe to radians."""

import math
import numbers
import operator
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from .arrays import Array
from .float_mode import UsualFloatMode

DEFAULT_BASE = 10000.0
_MOST_KEPT = 2**16
"""The widest rotary_dim whose frequencies are kept for the next call."""

#: The recipes, by the names that model configurations use, with the keys that each of them needs.
_NEEDED: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
    "yarn": ("factor", "original_max_position_embeddings"),
}
_OPTIONAL: dict[str, tuple[str, ...]] = {
    "yarn": (
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
    ),
}
_NAMES = ("rope_type", "type")
_EVERYWHERE = ("rope_theta", "partial_rotary_factor")
_DICT_FIX = "pass the dict that a model's configuration has under rope_scaling or rope_parameters"
_BASE_FIX = f"pass the rope_theta of the model, or {DEFAULT_BASE}"


class Recipe(NamedTuple):
    """A checked scaling: its name, and its numbers in the order of the names of its keys."""

    name: str
    numbers: tuple[tuple[str, float | None], ...] = ()


class Turning(NamedTuple):
    """What a call needs to know of base, rotary_dim and scaling."""

    frequencies: Array  # (rotary_dim / 2,) float64, read-only: radians per position
    factor: float  # of cosines and sines


def turning_of(head_dim: int, base: Any, rotary_dim: Any, scaling: Any) -> Turning:
    """Check the arguments; the frequencies are made once for equal ones."""
    recipe = Recipe("default") if scaling is None else _recipe(scaling)
    if type(base) is not float or not 1 <= base < math.inf:
        base = _check_base("base", base)
    given = None if rotary_dim is None else _check_dim(rotary_dim, head_dim)
    for key, value in recipe.numbers:
        if key == "rope_theta" and value is not None:
            if base not in (DEFAULT_BASE, value):
                raise ValueError(
                    f"scaling: expected a rope_theta of {base} like base, got {value}; "
                    "pass one of the two"
                )
            base = value
        if key == "partial_rotary_factor" and value is not None:
            part = _check_part(value, head_dim)
            if given not in (None, part):
                raise ValueError(
                    f"scaling: expected a partial_rotary_factor that gives rotary_dim {given}, got "
                    f"{value}, which gives {part}; pass one of the two"
                )
            given = part
    if given is None and head_dim % 2:
        raise ValueError(
            f"x: expected an even head_dim (last axis), got {head_dim}; "
            f"pass rotary_dim={head_dim - 1} to leave the last number of each row as it is"
        )
    if recipe.name == "yarn" and base == 1:
        raise ValueError(f"base: expected more than 1 for yarn, got {base}; {_BASE_FIX}")
    rotary_dim = head_dim if given is None else given
    make = _turning if rotary_dim <= _MOST_KEPT else _turning.__wrapped__
    return make(base, rotary_dim, recipe)


# Checks -------------------------------------------------------------------------------------------


def _check_base(name: str, base: Any) -> float:
    if isinstance(base, (bool, np.bool_)) or not isinstance(base, numbers.Real):
        raise TypeError(
            f"{name}: expected a real number, got {base!r} ({type(base).__name__}); {_BASE_FIX}"
        )
    value = _float(base)
    if not 1 <= value < math.inf:
        raise ValueError(
            f"{name}: expected a finite number of at least 1, got {value}; {_BASE_FIX}"
        )
    return value


def _check_dim(rotary_dim: Any, head_dim: int) -> int:
    wanted = f"an even int from 2 to head_dim, which is {head_dim}"
    fix = "pass how many numbers of each row are rotated, or None for all"
    try:
        if isinstance(rotary_dim, (bool, np.bool_)):
            raise TypeError
        value = operator.index(rotary_dim)
    except TypeError:
        got = f"{rotary_dim!r} ({type(rotary_dim).__name__})"
        raise TypeError(f"rotary_dim: expected {wanted}, got {got}; {fix}") from None
    if value < 2 or value > head_dim or value % 2:
        raise ValueError(f"rotary_dim: expected {wanted}, got {value}; {fix}")
    return value


def _check_part(factor: float, head_dim: int) -> int:
    """The rotary_dim that a partial_rotary_factor means, as model configurations count it."""
    part = int(head_dim * factor)
    if part < 2 or part > head_dim or part % 2:
        raise ValueError(
            f"scaling: expected a partial_rotary_factor that gives an even number from 2 to "
            f"head_dim, which is {head_dim}, got {factor}, which gives {part}; pass rotary_dim and "
            "leave the key out"
        )
    return part


def _recipe(scaling: Any) -> Recipe:
    if not isinstance(scaling, Mapping):
        got = type(scaling).__name__
        raise TypeError(f"scaling: expected a dict or None, got {got}; {_DICT_FIX}")
    items = tuple((key, type(value), value) for key, value in scaling.items())
    try:
        hash(items)
    except TypeError:  # some value is a list or a dict, which _parsed refuses by name
        return _parsed.__wrapped__(items)
    return _parsed(items)


@lru_cache(maxsize=64)
def _parsed(items: tuple[tuple[Any, type, Any], ...]) -> Recipe:
    """The recipe in these (key, type, value), each checked."""
    given = {key: value for key, _, value in items}
    names = {key: given.pop(key) for key in _NAMES if key in given}
    wanted = ", ".join(f'"{name}"' for name in _NEEDED)
    if not names:
        raise ValueError(f'scaling: expected a key "rope_type" with one of {wanted}; {_DICT_FIX}')
    for key, name in names.items():
        if not isinstance(name, str) or name not in _NEEDED:
            raise ValueError(
                f"scaling: expected one of {wanted} for {key!r}, got {name!r}; other recipes are "
                "not offered"
            )
    if len(set(names.values())) > 1:
        both = " and ".join(repr(name) for name in names.values())
        raise ValueError(
            f'scaling: expected the same for "rope_type" and "type", got {both}; leave one out'
        )
    name = next(iter(names.values()))
    known = (*_NEEDED[name], *_OPTIONAL.get(name, ()), *_EVERYWHERE)
    for key in given:
        if key not in known:
            keys = ", ".join(map(str, known))
            raise ValueError(
                f"scaling: expected for {name!r} no keys but {keys}, got {key!r}; leave out "
                "what is no part of the rotary embedding"
            )
    for key in _NEEDED[name]:
        if given.get(key) is None:
            raise ValueError(
                f"scaling: expected a number for {key!r}, which {name!r} needs, got none; "
                "add the key"
            )
    found = tuple((key, _number(key, given[key])) for key in known if key in given)
    _check_together(name, dict(found))
    return Recipe(name, found)


def _number(key: str, value: Any) -> float | None:
    """The checked value of a key as a float; None is as good as no key."""
    if value is None:
        return None
    if key == "truncate":
        if not isinstance(value, (bool, np.bool_)):
            raise TypeError(
                f"scaling: expected True or False for 'truncate', got {value!r} "
                f"({type(value).__name__}); convert it with bool()"
            )
        return float(value)
    if key == "rope_theta":
        return _check_base("scaling['rope_theta']", value)
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise TypeError(
            f"scaling: expected a real number for {key!r}, got {value!r} "
            f"({type(value).__name__}); convert it with float()"
        )
    number = _float(value)
    least = 1 if key in ("factor", "original_max_position_embeddings") else 0
    zero = key in ("mscale", "mscale_all_dim", "beta_fast", "beta_slow")  # as good as no key
    if not (math.isfinite(number) and (number >= least if least or zero else number > 0)):
        bound = f"of at least {least}" if least or zero else "above 0"
        raise ValueError(
            f"scaling: expected a finite number {bound} for {key!r}, got {number}; "
            "take it from the model's configuration"
        )
    return number


def _float(value: numbers.Real) -> float:
    """The number, infinite where it is too large for a float."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _check_together(name: str, found: dict[str, float | None]) -> None:
    """The larger one of two keys is really larger."""
    low, high = {
        "llama3": ("low_freq_factor", "high_freq_factor"),
        "yarn": ("beta_slow", "beta_fast"),
    }.get(name, ("", ""))
    if not low:
        return
    least, most = found.get(low) or 1.0, found.get(high) or 32.0
    if least >= most:
        raise ValueError(
            f"scaling: expected {high!r} above {low!r}, got {most} and {least}; "
            "take them from the model's configuration"
        )


# Formulas -----------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _turning(base: float, rotary_dim: int, recipe: Recipe) -> Turning:
    with UsualFloatMode():  # they are kept for callers in any mode
        return _computed(base, rotary_dim, recipe)


def _computed(base: float, rotary_dim: int, recipe: Recipe) -> Turning:
    frequencies = base ** -(np.arange(0, rotary_dim, 2) / rotary_dim)
    factor = 1.0
    values = {key: value for key, value in recipe.numbers if value is not None}
    if recipe.name == "linear":
        frequencies = frequencies / values["factor"]
    elif recipe.name == "llama3":
        frequencies = _llama3(frequencies, values)
    elif recipe.name == "yarn":
        frequencies = _yarn(frequencies, values, base)
        factor = _attention_factor(values)
    frequencies.flags.writeable = False
    return Turning(frequencies, factor)


def _llama3(frequencies: Array, values: dict[str, float]) -> Array:
    """Slow pairs divided by the factor, fast ones as they are, a line between the two."""
    turns = values["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    low, high = values["low_freq_factor"], values["high_freq_factor"]
    kept = np.clip((turns - low) / (high - low), 0, 1)
    result: Array = kept * frequencies + (1 - kept) * (frequencies / values["factor"])
    return result


def _yarn(frequencies: Array, values: dict[str, float], base: float) -> Array:
    """The same with the line along the pairs' numbers, between those of two numbers of turns."""
    dim = 2 * frequencies.size
    context = values["original_max_position_embeddings"]

    def pair_with(turns: float) -> float:
        """The pair, not a whole number, that turns so often within the original context."""
        return dim * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(base))

    first = pair_with(values.get("beta_fast") or 32.0)
    last = pair_with(values.get("beta_slow") or 1.0)
    if values.get("truncate", 1.0):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    if first == last:
        last += 0.001
    slowed = np.clip((np.arange(dim // 2) - first) / (last - first), 0, 1)
    result: Array = (1 - slowed) * frequencies + slowed * (frequencies / values["factor"])
    return result


def _attention_factor(values: dict[str, float]) -> float:
    """What cosines and sines are multiplied by; its square stands before the scores."""
    if "attention_factor" in values:
        return values["attention_factor"]

    def grown(share: float) -> float:
        return 0.1 * share * math.log(values["factor"]) + 1

    numerator, denominator = values.get("mscale"), values.get("mscale_all_dim")
    if numerator and denominator:
        return grown(numerator) / grown(denominator)
    return grown(1)
