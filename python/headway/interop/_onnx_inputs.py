"""Inputs and attributes of ONNX's operator Attention: checked, and in the package's terms."""

from typing import Any

import numpy as np

from ..arrays import Array, as_array, dtype_text, kind_of
from ..options import whole_numbers
from ..weights import checked_size

DOUBLE = 11
_PRECISIONS = (1, 10, 11, 16)  # TensorProto's float32, float16, float64 and bfloat16
_MASK_FIX = "put axes of length 1 where it is the same for all"


# Attributes ---------------------------------------------------------------------------------------


def check_attributes(
    is_causal: Any, left: Any, right: Any, mode: Any, softmax_precision: Any
) -> None:
    """The attributes that are numbers of a short list."""
    _one_of("is_causal", is_causal, (0, 1))
    for name, bound in (("left_window_size", left), ("right_window_size", right)):
        if _integer(name, bound) < -1:
            raise ValueError(f"{name}: expected -1 or more, got {bound}; -1 means no limit")
    if mode is not None:
        _one_of("qk_matmul_output_mode", mode, (0, 1, 2, 3))
    if softmax_precision is not None:
        _one_of("softmax_precision", softmax_precision, _PRECISIONS)


def _integer(name: str, value: Any) -> int:
    try:
        number = whole_numbers(name, int(value) if isinstance(value, (bool, np.bool_)) else value)
    except TypeError:
        number = []
    if not isinstance(number, int):
        raise TypeError(f"{name}: expected an int, got {type(value).__name__}; convert with int()")
    return number


def _one_of(name: str, value: Any, allowed: tuple[int, ...]) -> None:
    if _integer(name, value) not in allowed:
        *first, last = (str(n) for n in allowed)
        raise ValueError(
            f"{name}: expected {', '.join(first)} or {last}, got {value}; pass one of these"
        )


# Arrays -------------------------------------------------------------------------------------------


def split_heads(
    inputs: tuple[Array, Array, Array], q_num_heads: Any, kv_num_heads: Any
) -> tuple[Array, Array, Array]:
    """Views (B, H, T, D) of Q, K and V, whose heads may stand side by side in the last axis."""
    q, k, v = inputs
    for name, x in (("Q", q), ("K", k), ("V", v)):
        kind_of(name, x)
        if x.ndim not in (3, 4) or x.ndim != q.ndim:
            wanted = "3 or 4 axes" if name == "Q" else f"{q.ndim} axes like Q"
            raise ValueError(
                f"{name}: expected {wanted}, got shape {x.shape}; (batch, heads, tokens, width) "
                "or (batch, tokens, heads * width), the same for all three"
            )
    if k.dtype != q.dtype:
        raise TypeError(
            f"K: expected {q.dtype.name} like Q, got {k.dtype.name}; "
            f"convert with K.astype({dtype_text(q.dtype.name, 'Q')})"
        )
    queries = _heads(q, "Q", "q_num_heads", q_num_heads)
    keys = _heads(k, "K", "kv_num_heads", kv_num_heads)
    return queries, keys, _heads(v, "V", "kv_num_heads", kv_num_heads)


def _heads(x: Array, name: str, attribute: str, count: Any) -> Array:
    if count is not None:
        count = checked_size(attribute, count)
    if x.ndim == 4:
        if count is not None and count != x.shape[1]:
            raise ValueError(
                f"{attribute}: expected {x.shape[1]} like the heads of {name} {x.shape}, got "
                f"{count}; leave it out for inputs of four axes"
            )
        return x
    if count is None:
        raise ValueError(
            f"{attribute}: expected a number of heads for {name} of three axes, got None; "
            "pass how many heads stand side by side in the last axis"
        )
    batch, tokens, width = x.shape
    if width % count:
        raise ValueError(
            f"{name}: expected a last axis that is a multiple of {attribute}={count}, got "
            f"{width} in shape {x.shape}; heads of one width stand side by side in it"
        )
    return x.reshape(batch, tokens, count, width // count).swapaxes(1, 2)


def checked_past(past_key: Any, past_value: Any, k: Array, v: Array) -> tuple[Array, Array] | None:
    """(B, Hkv, P, D) and (B, Hkv, P, Dv) like K and V; None where there is no past."""
    if past_key is None and past_value is None:
        return None
    if past_key is None or past_value is None:
        name = "past_key" if past_key is None else "past_value"
        raise ValueError(f"{name}: expected an array beside the other past, got None; pass both")
    past = as_array("past_key", past_key), as_array("past_value", past_value)
    rows = past[0].shape[2] if past[0].ndim == 4 else 0
    pairs = ("past_key", past[0], "K", k), ("past_value", past[1], "V", v)
    for name, x, other, new in pairs:
        kind_of(name, x)
        if x.dtype != new.dtype:
            raise TypeError(
                f"{name}: expected {new.dtype.name} like {other}, got {x.dtype.name}; "
                f"convert with {name}.astype({other}.dtype)"
            )
        wanted = (*new.shape[:2], rows, new.shape[3])
        if x.shape != wanted:
            raise ValueError(
                f"{name}: expected shape {wanted}, (batch, kv heads, past, width), got {x.shape}; "
                "a past has four axes, and both have equally many tokens"
            )
    return past


def checked_valid(lengths: Any, past: bool, batch: int, keys: int) -> list[int] | None:
    """(B,) ints from 0 to the number of keys; None where they are not given."""
    if lengths is None:
        return None
    if past:
        raise ValueError(
            "nonpad_kv_seqlen: expected None beside past_key, got lengths; "
            "a whole cache in K and V has no past"
        )
    wanted = f"{batch} ints from 0 to {keys}, one for each batch entry"
    try:
        found = whole_numbers("nonpad_kv_seqlen", lengths)
        if isinstance(found, int):
            raise TypeError
    except TypeError:
        raise TypeError(
            f"nonpad_kv_seqlen: expected {wanted}, got {lengths!r}; pass an int64 array"
        ) from None
    if len(found) != batch or not all(0 <= n <= keys for n in found):
        raise ValueError(
            f"nonpad_kv_seqlen: expected {wanted}, got {found}; count the valid keys of each"
        )
    return found


def checked_mask(mask: Any, shape: tuple[int, int, int, int], working: np.dtype[Any]) -> Array:
    """A mask of bools or floats that broadcasts to (B, H, Tq, total), from any real numbers.

    A last axis that is too short is filled up: keys that the mask says nothing of are forbidden.
    """
    array = as_array("attn_mask", mask)
    if array.dtype.kind in "iu":
        array = array.astype(np.float64 if working == np.float64 else np.float32)
    elif array.dtype != np.bool_:
        kind_of("attn_mask", array)
    short = shape[3] - array.shape[-1] if array.ndim else 0
    padded = (*array.shape[:-1], shape[3]) if short > 0 else array.shape
    fits = len(padded) <= 4 and all(
        n in (1, wanted) for n, wanted in zip(padded[::-1], shape[::-1], strict=False)
    )
    if not fits or short < 0:
        raise ValueError(
            f"attn_mask: expected a shape that broadcasts to {shape}, (batch, heads, queries, "
            f"keys), got {array.shape}; {_MASK_FIX}"
        )
    if short <= 0:
        return array
    hidden = np.full((*array.shape[:-1], short), False if array.dtype == np.bool_ else -np.inf)
    return np.concatenate([array, hidden.astype(array.dtype)], axis=-1)


def working_dtype(q: Array, v: Array, softmax_precision: int | None) -> np.dtype[Any]:
    """The dtype of the computation: that of Q, or a wider one where V or the softmax wants it."""
    if softmax_precision == DOUBLE or np.float64 in (q.dtype, v.dtype):
        return np.dtype(np.float64)
    return q.dtype if v.dtype == q.dtype else np.dtype(np.float32)
