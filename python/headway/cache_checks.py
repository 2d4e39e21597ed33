"""Whole numbers that the caches are given: counts, lengths, indices."""

from collections.abc import Sequence
from typing import Any

from .options import whole_numbers


def ints_for_all(
    name: str, value: Any, wanted: str, fix: str, highest: Sequence[int], each: str, one: bool
) -> list[int]:
    """One int from 0 to ``highest`` for each entry; ``one``: one int serves all of them, too."""
    given = _ints(name, value, wanted, fix)
    if isinstance(given, int):
        if not one:
            raise TypeError(f"{name}: expected {wanted}, got the int {given}; {fix}")
        given = [given] * len(highest)
    if len(given) != len(highest):
        raise ValueError(f"{name}: expected {wanted}, got {len(given)} ints; {fix}")
    for n, (number, high) in enumerate(zip(given, highest, strict=True)):
        if not 0 <= number <= high:
            raise ValueError(
                f"{name}: expected {wanted}, got {number} for {each} {n}, where 0 to {high} are "
                f"possible; {fix}"
            )
    return given


def checked_indices(name: str, value: Any, batch: int, count: int | None) -> list[int]:
    """Ints from 0 to ``batch - 1``: ``count`` of them, or any number of them, or one."""
    many = "ints" if count is None else f"{count} ints"
    wanted = f"{many} from 0 to {batch - 1}, numbers of sequences of the cache"
    fix = f"pass e.g. {name}=[{', '.join(str(n) for n in range(min(batch, count or 1, 3)))}]"
    given = _ints(name, value, wanted, fix)
    if isinstance(given, int):
        if count is not None:
            raise TypeError(f"{name}: expected {wanted}, got the int {given}; {fix}")
        given = [given]
    if count is not None and len(given) != count:
        raise ValueError(f"{name}: expected {wanted}, got {len(given)} ints; {fix}")
    for index in given:
        if not 0 <= index < batch:
            raise ValueError(f"{name}: expected {wanted}, got {index}; {fix}")
    return given


def _ints(name: str, value: Any, wanted: str, fix: str) -> int | list[int]:
    try:
        return whole_numbers(name, value)
    except TypeError:
        got = f"{value!r} ({type(value).__name__})"
        raise TypeError(f"{name}: expected {wanted}, got {got}; {fix}") from None


def checked_counts(counts: Any, batch: int, n: int, each: str) -> list[int]:
    """(batch,) ints from 0 to n: how many of n tokens each entry takes."""
    wanted = f"{batch} ints from 0 to {n}, the tokens that each {each} takes"
    fix = "pass one int for each, or None for all tokens"
    return ints_for_all("counts", counts, wanted, fix, [n] * batch, "entry", one=False)
