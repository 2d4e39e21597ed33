"""Weights of the modules: how they are checked, copied in, drawn and shown."""

import math
import operator
from collections.abc import Mapping
from typing import Any, Generic, Protocol, TypeVar, overload

import numpy as np

from .arrays import Array, as_array, dtype_text, kind_of
from .float_mode import UsualFloatMode

Shown = TypeVar("Shown", covariant=True)

KINDS = ("query", "key", "value")


class HasWeights(Protocol):
    """A module, as its weights see it."""

    _weights: dict[str, Array]

    def _assign(self, name: str, value: Any) -> None: ...


class Weight(Generic[Shown]):
    """A weight as an attribute of a module: shown read-only; what is assigned is copied in."""

    def __init__(self, text: str) -> None:
        self.__doc__ = text

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, module: None, owner: type) -> "Weight[Shown]": ...

    @overload
    def __get__(self, module: HasWeights, owner: type) -> Shown: ...

    def __get__(self, module: HasWeights | None, owner: type) -> Any:
        return self if module is None else module._weights.get(self.name)

    def __set__(self, module: HasWeights, value: Any) -> None:
        module._assign(self.name, value)


# Checks -------------------------------------------------------------------------------------------


def checked(name: str, value: Any, like: Array | None = None, owner: str = "w_query") -> Array:
    """``value`` as an array of one of the four dtypes: that of ``like`` where it is given."""
    array = as_array(name, value)
    kind = kind_of(name, array)
    if like is not None and array.dtype != like.dtype:
        wanted = kind_of(owner, like)
        fix = "'bfloat16'" if wanted == "bfloat16" else dtype_text(wanted)
        raise TypeError(
            f"{name}: expected {wanted} like {owner}, got {kind}; convert with {name}.astype({fix})"
        )
    return array


def checked_matrix(name: str, value: Any, axes: str) -> Array:
    """``value`` as a matrix without an empty axis; ``axes`` names the two axes in the text."""
    array = checked(name, value)
    if array.ndim != 2 or 0 in array.shape:
        raise ValueError(
            f"{name}: expected a matrix {axes}, both at least 1, got shape {array.shape}; "
            "a torch Linear stores the transpose of it"
        )
    return array


def checked_rows(x: Any, weight: Array) -> Array:
    """``x`` as rows, one for each row of ``x @ weight``, in the dtype of the weight."""
    if type(x) is not np.ndarray or x.dtype != weight.dtype:
        x = checked("x", x, weight, "weight")
    d_in = weight.shape[0]
    if not x.shape:
        raise ValueError(
            f"x: expected shape (..., {d_in}), one axis at least, got shape (); "
            "pass a row as x[None]"
        )
    if x.shape[-1] != d_in:
        raise ValueError(
            f"x: expected {d_in} numbers per row (last axis) like the rows of weight, got "
            f"{x.shape[-1]} in shape {x.shape}; a torch Linear stores the transpose of weight"
        )
    rows: Array = x
    return rows


def check_shape(name: str, array: Array, shape: tuple[int, ...], why: str) -> None:
    """``array`` has this shape; ``why`` says where the shape comes from, or what to do."""
    if array.shape != shape:
        raise ValueError(f"{name}: expected shape {shape}, got {array.shape}; {why}")


def checked_biases(biases: Mapping[str, Any], weights: Mapping[str, Array]) -> dict[str, Array]:
    """The biases ``b_...`` that are given, each as long as its weight ``w_...`` has columns."""
    found: dict[str, Array] = {}
    for name, value in biases.items():
        if value is None:
            continue
        weight = "w" + name[1:]
        if weight not in weights:
            raise ValueError(f"{name}: expected None without {weight}; give {weight}, too")
        found[name] = checked(name, value, weights[weight], weight)
        why = f"one number for each column of {weight}"
        check_shape(name, found[name], (weights[weight].shape[1],), why)
    return found


def checked_output(w_out: Any, b_out: Any, width: int, like: Array) -> dict[str, Array]:
    """The output projection where there is one: w_out (width, d_out) and perhaps b_out (d_out,)."""
    found: dict[str, Array] = {}
    if w_out is not None:
        weight = checked("w_out", w_out, like, "the other weights")
        if weight.ndim != 2 or weight.shape[0] != width or weight.shape[1] == 0:
            raise ValueError(
                f"w_out: expected a matrix ({width}, d_out), d_out at least 1, got shape "
                f"{weight.shape}; it has one row for each column of all heads together"
            )
        found["w_out"] = weight
    return found | checked_biases({"b_out": b_out}, found)


def checked_size(name: str, value: Any, lowest: int = 1) -> int:
    """``value`` as an int of at least ``lowest``."""
    fix = f"pass an int of at least {lowest}"
    try:
        size = None if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except TypeError:
        size = None
    if size is None:
        raise TypeError(f"{name}: expected an int, got {type(value).__name__}; {fix}")
    if size < lowest:
        raise ValueError(f"{name}: expected at least {lowest}, got {size}; {fix}")
    return size


def checked_head_counts(num_heads: Any, num_kv_heads: Any) -> tuple[int, int]:
    """Numbers of query heads and of key and value heads, the second a divisor of the first."""
    heads = checked_size("num_heads", num_heads)
    if num_kv_heads is None:
        return heads, heads
    kv_heads = checked_size("num_kv_heads", num_kv_heads)
    if heads % kv_heads:
        raise ValueError(
            f"num_kv_heads: expected a divisor of num_heads={heads}, got {kv_heads}; "
            "every key and value head serves equally many query heads"
        )
    return heads, kv_heads


def frozen(array: Array) -> Array:
    """``array`` itself, from now on read-only."""
    array.flags.writeable = False
    return array


def frozen_copies(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """A C-contiguous, read-only copy of each array."""
    return {name: frozen(np.array(array, order="C")) for name, array in arrays.items()}


# Initialisation -----------------------------------------------------------------------------------


def merged_widths(d_out: Any, num_heads: int, num_kv_heads: int) -> tuple[int, int, int]:
    """Columns of w_query, w_key and w_value where heads of one head_dim stand side by side."""
    width = checked_size("d_out", d_out)
    if width % num_heads:
        raise ValueError(
            f"d_out: expected a multiple of num_heads={num_heads}, got {width}; "
            f"pass e.g. {width + num_heads - width % num_heads}"
        )
    kv_width = width // num_heads * num_kv_heads
    return width, kv_width, kv_width


def draw(
    d_in: int,
    widths: tuple[int, int, int],
    *,
    qkv_bias: bool,
    out_proj: bool,
    seed: Any,
    dtype: Any,
) -> dict[str, Array]:
    """Weights by the name of the argument, drawn as torch's ``Linear`` draws them.

    Every number is uniform between ``-1 / sqrt(n)`` and ``1 / sqrt(n)``, where n is the number of
    rows of the weight (for a bias: of its weight). They are drawn in float64 in one fixed order,
    so the seed decides them, and all dtypes get the same numbers but for rounding.
    """
    kind = checked_dtype(dtype)
    rng = np.random.default_rng(None if seed is None else checked_size("seed", seed, 0))

    def uniform(rows: int, *shape: int) -> Array:
        with UsualFloatMode():
            bound = 1.0 / math.sqrt(rows)
            return rng.uniform(-bound, bound, shape).astype(kind)

    drawn = {f"w_{n}": uniform(d_in, d_in, width) for n, width in zip(KINDS, widths, strict=True)}
    if qkv_bias:
        drawn |= {f"b_{n}": uniform(d_in, width) for n, width in zip(KINDS, widths, strict=True)}
    if out_proj:
        width = widths[0]
        drawn |= {"w_out": uniform(width, width, width), "b_out": uniform(width, width)}
    return drawn


def checked_dtype(dtype: Any) -> Any:
    """The dtype, one of the four, by itself or by its name."""
    if isinstance(dtype, str) and dtype == "bfloat16":
        from .storage import bfloat16

        return bfloat16()
    wanted = "dtype: expected float32, float64, float16 or bfloat16"
    fix = "pass e.g. np.float32"
    try:
        found = np.dtype(dtype)
    except TypeError:
        raise TypeError(f"{wanted}, got {dtype!r}; {fix}") from None
    if found.name not in wanted.replace(",", "").split() or not found.isnative:
        raise TypeError(f"{wanted} in native byte order, got {found.str}; {fix}")
    return found
