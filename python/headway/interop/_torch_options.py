"""Options that are tensors in PyTorch: numbers and integers, and the seed of the dropout."""

import operator
from typing import Any

import torch
from torch import Tensor

from ..checks import real_number
from ..options import whole_numbers
from ._torch_tensors import check_dense, name_of

_MOST_SEED = 2**64 - 1


def chance_and_seed(dropout_p: Any, seed: Any) -> tuple[float, Tensor | None]:
    """The probability, and the seed as an int64 with the bits of the unsigned number."""
    chance = dropout_p if type(dropout_p) is float else real_number("dropout_p", dropout_p)
    if not 0 <= chance <= 1:
        raise ValueError(
            f"dropout_p: expected a probability from 0 to 1, got {dropout_p}; pass e.g. 0.1"
        )
    if seed is not None:
        try:
            number = operator.index(seed)
        except TypeError:
            raise TypeError(
                f"seed: expected an int or None, got {seed!r} ({type(seed).__name__}); "
                "convert with int(seed)"
            ) from None
        if not 0 <= number <= _MOST_SEED:
            raise ValueError(
                f"seed: expected an int from 0 to 2**64 - 1, got {number}; "
                "pass None to let PyTorch's generator draw one"
            )
    if chance == 0:
        return 0.0, None
    if seed is None:
        return chance, torch.randint(2**63 - 1, (), dtype=torch.int64, device="cpu")
    signed = number if number < 2**63 else number - 2**64
    return chance, torch.tensor(signed, device="cpu")


def numbers(name: str, values: Any) -> Tensor | None:
    """Real numbers as a dense tensor; what kind and how many is for the face to check."""
    if values is None:
        return None
    if not isinstance(values, Tensor):
        try:
            values = torch.as_tensor(values, dtype=torch.float64, device="cpu")
        except (RuntimeError, TypeError, ValueError):
            raise TypeError(
                f"{name}: expected real numbers, got {values!r} ({type(values).__name__}); "
                f"convert with torch.as_tensor({name})"
            ) from None
    check_dense(name, values)
    if name == "alibi_slopes" and values.requires_grad:
        raise ValueError(
            "alibi_slopes: expected numbers without a gradient, got a tensor that requires one; "
            "pass alibi_slopes.detach()"
        )
    return values


def integers(name: str, values: Any) -> Tensor | None:
    """Integers as a tensor: one without an axis, several on one."""
    if values is None:
        return None
    if not isinstance(values, Tensor):
        whole = values if type(values) is int else _whole(name, values)
        values = torch.tensor(whole, device="cpu")
    check_dense(name, values)
    if values.dtype is torch.bool or values.is_floating_point() or values.is_complex():
        raise TypeError(
            f"{name}: expected integers, got {name_of(values.dtype)}; "
            f"convert with {name}.to(torch.int64)"
        )
    return values


def window_of(window: Any) -> list[int] | None:
    """The window as a list, of one number of keys or of two bounds."""
    if window is None:
        return None
    given = window if type(window) is int else _whole("window", window)
    return list(given) if isinstance(given, list) else [given]


def _whole(name: str, values: Any) -> int | list[int]:
    try:
        return whole_numbers(name, values)
    except TypeError:
        raise TypeError(
            f"{name}: expected an int, or several, got {values!r} ({type(values).__name__}); "
            f"convert with torch.as_tensor({name})"
        ) from None
