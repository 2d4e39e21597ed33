"""All pairs: few combinations in which any two choices of different options meet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

Row = dict[str, Any]


def all_pairs(options: Mapping[str, Sequence[Any]]) -> list[Row]:
    """Return rows that hold, between them, every pair of choices of two options.

    Greedy and without chance: each row starts from the first pair that is still missing and
    takes, option by option, the choice that adds most missing pairs; a tie goes to the choice
    used least so far, then to the first. Choices are told apart by their place in the
    sequence, so that they may be of any type.
    """
    names = list(options)
    missing = {
        (first, i, second, j)
        for first, second in combinations(names, 2)
        for i in range(len(options[first]))
        for j in range(len(options[second]))
    }
    order = sorted(missing, key=lambda pair: (names.index(pair[0]), names.index(pair[2]), pair))
    used = {name: [0] * len(options[name]) for name in names}
    rows: list[Row] = []
    for first, i, second, j in order:
        if (first, i, second, j) not in missing:
            continue
        row = {first: i, second: j}
        for name in names:
            if name not in row:
                gains = [
                    len(_new_pairs(row, name, n, names, missing)) for n in range(len(options[name]))
                ]
                row[name] = min(range(len(gains)), key=lambda n: (-gains[n], used[name][n], n))
        missing -= {(a, row[a], b, row[b]) for a, b in combinations(names, 2)}
        for name in names:
            used[name][row[name]] += 1
        rows.append({name: options[name][row[name]] for name in names})
    return rows


def _new_pairs(
    row: Mapping[str, int],
    name: str,
    choice: int,
    names: Sequence[str],
    missing: set[tuple[str, int, str, int]],
) -> set[tuple[str, int, str, int]]:
    """Return the missing pairs that `choice` of option `name` makes with the row so far."""
    place = names.index(name)
    pairs = {
        (name, choice, other, n) if place < names.index(other) else (other, n, name, choice)
        for other, n in row.items()
    }
    return pairs & missing
