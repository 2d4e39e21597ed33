"""Where the sequences of a packed batch begin and end: the checks of cu_seqlens."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .arrays import Array, as_array
from .options import MOST_NUMBERS, check_count


def check_cu_seqlens(queries: Any, keys: Any, total_q: int, total_k: int) -> tuple[Array, Array]:
    """(n + 1,) int64 each, for q and for k; None for the keys means those of the queries."""
    cuts_q = check_offsets("cu_seqlens_q", queries, total_q, "q")
    if keys is None:
        if total_k != total_q:
            raise ValueError(
                f"cu_seqlens_k: expected integer offsets from 0 to {total_k}, the tokens of k, got "
                f"None, for those of q, up to {total_q}; pass the offsets of k"
            )
        return cuts_q, cuts_q
    cuts_k = check_offsets("cu_seqlens_k", keys, total_k, "k")
    if cuts_k.size != cuts_q.size:
        raise ValueError(
            f"cu_seqlens_k: expected {cuts_q.size} offsets like cu_seqlens_q, got {cuts_k.size}; "
            "repeat an offset for a sequence without keys"
        )
    return cuts_q, cuts_k


def check_offsets(name: str, offsets: Any, total: int, tokens_of: str) -> Array:
    """(n + 1,) int64: where the sequences begin in the packed tokens, and where the last one ends.

    The copy is the call's own: nobody changes it while the call runs.
    """
    wanted = f"integer offsets from 0 to {total}, the tokens of {tokens_of}"
    fix = "pass 0 and then the running sum of the lengths, e.g. np.cumsum([0, *lengths])"
    numbers = isinstance(offsets, Sequence) and not isinstance(offsets, (str, bytes, bytearray))
    if numbers:
        check_count(name, offsets, MOST_NUMBERS)
    try:
        array = np.asarray(offsets) if numbers else as_array(name, offsets)
    except (TypeError, ValueError):
        raise TypeError(f"{name}: expected {wanted}, got {type(offsets).__name__}; {fix}") from None
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name}: expected {wanted}, on one axis, got shape {array.shape}; {fix}")
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name}: expected {wanted}, got {array.dtype.name}; {fix}")
    first, last = int(array[0]), int(array[-1])
    if first != 0:
        raise ValueError(f"{name}: expected {wanted}, got {first} as the first one; {fix}")
    falls = np.flatnonzero(array[1:] < array[:-1])
    if falls.size:
        at = int(falls[0])
        raise ValueError(
            f"{name}: expected {wanted}, none below the one before it, got {array[at + 1]} after "
            f"{array[at]}; {fix}"
        )
    if last != total:
        raise ValueError(f"{name}: expected {wanted}, got {last} as the last one; {fix}")
    return array.astype(np.int64)
