"""The everyday call, which the bindings take at once: the same bits as by way of the checks.

``_core.attention_plain`` gives None for whatever it leaves to the checks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import DTYPES, Array, assert_same_bits, make, make_qkv, run_python
from layouts import LAYOUTS, lay_out

import headway
from headway import _core

#: Layouts that are read where they lie; the others need a copy.
IN_PLACE = (
    "contiguous",
    "token_major",
    "reversed_tokens",
    "reversed_heads",
    "reversed_batch",
    "broadcast_batch",
    "broadcast_heads",
    "broadcast_tokens",
    "one_element_in",
    "read_only",
    "cache_slice",
    "wide_rows",
)

Operands = tuple[Any, Any, Any]


def checked(q: Array, k: Array, v: Array, *, causal: bool = True, layout: str = "BHTD") -> Array:
    """The call by way of the checks, as a layout's name in a string of its own makes it go."""
    name = "".join(list(layout))
    assert name is not layout
    return headway.attention(q, k, v, causal=causal, layout=name)


def as_tokens_first(x: Array) -> Array:
    """(B, H, T, D) to a contiguous (B, T, H, D)."""
    return np.ascontiguousarray(x.swapaxes(1, 2))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_same_bits_as_by_way_of_the_checks(
    dtype: str, heads: tuple[int, int], causal: bool, isa: str, some_threads: int
) -> None:
    """One query, a chunk and a prefill; values of another width; both orders of the axes."""
    for queries, keys, width in ((1, 70, 16), (7, 40, 5), (70, 70, 16), (9, 4, 1)):
        q, k, v = make_qkv(
            5,
            dtype,
            batch=2,
            heads=heads,
            tokens=(queries, keys),
            head_dim=16,
            value_dim=width,
        )
        out = _core.attention_plain(q, k, v, causal, False)
        assert out is not None
        assert out.flags.c_contiguous
        assert_same_bits(out, checked(q, k, v, causal=causal))
        assert_same_bits(out, headway.attention(q, k, v, causal=causal))
        apart = as_tokens_first(q), as_tokens_first(k), as_tokens_first(v)
        swapped = _core.attention_plain(*apart, causal, True)
        assert swapped is not None
        assert swapped.flags.c_contiguous
        assert swapped.shape == (2, queries, 4, width)
        assert_same_bits(swapped.swapaxes(1, 2), out, "BTHD")
        assert_same_bits(swapped, checked(*apart, causal=causal, layout="BTHD"))
        assert_same_bits(swapped, headway.attention(*apart, causal=causal, layout="BTHD"))


@pytest.mark.parametrize("memory", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_memory_layouts(memory: str, dtype: str, isa: str) -> None:
    """What can be read where it lies is taken; what cannot is left to the checks, which copy."""
    arrays = make_qkv(6, dtype, batch=2, heads=(4, 2), tokens=(9, 33), head_dim=16)
    for chosen in ("q", "k", "v", "qkv"):
        q, k, v = lay_out(arrays, memory, chosen)
        plain = [np.array(x, order="C") for x in (q, k, v)]
        expected = headway.attention(*plain)
        for tokens_first in (False, True):
            layout = "BTHD" if tokens_first else "BHTD"
            given = [x.swapaxes(1, 2) if tokens_first else x for x in (q, k, v)]
            out = _core.attention_plain(*given, True, tokens_first)
            assert (out is not None) == (memory in IN_PLACE), chosen
            whole = headway.attention(*given, layout=layout)
            assert whole.flags.c_contiguous
            for got in (whole,) if out is None else (whole, out):
                heads_first = got.swapaxes(1, 2) if tokens_first else got
                assert_same_bits(heads_first, expected, f"{layout}, {chosen} {memory}")


@pytest.mark.parametrize("dtype", DTYPES)
def test_strides_of_axes_of_one_element_mean_nothing(dtype: str) -> None:
    """An axis of one element is never stepped along, whatever its stride."""
    x = make(7, (3, 5, 7, 3), dtype)
    parts = x[:1, :1, :, :1], x[1:2, 2:3, :, 1:2], x[2:, 4:, :, 2:]
    out = _core.attention_plain(*parts, True, False)
    assert out is not None
    assert_same_bits(out, headway.attention(*(x.copy() for x in parts)))


class Named(np.ndarray[Any, Any]):
    """An array of a class of its own."""


def masked(x: Array) -> Any:
    return np.ma.masked_array(x, mask=x > 0)


def swapped_bytes(x: Array) -> Any:
    return x.astype(x.dtype.newbyteorder())


def left_to_the_checks() -> dict[str, Operands]:
    """Calls that the bindings must not take."""
    q, k, v = make_qkv(8, "float32", batch=2, heads=(4, 2), tokens=(5, 6), value_dim=3)
    whole, half = q.astype(np.int16), make(8, q.shape, "bfloat16")
    return {
        "a list": (q.tolist(), k, v),
        "None": (q, k, None),
        "a masked array": (masked(q), k, v),
        "masked values": (q, k, masked(v)),
        "a class of its own": (q.view(Named), k, v),
        "swapped bytes": (swapped_bytes(q), swapped_bytes(k), swapped_bytes(v)),
        "swapped halves": tuple(swapped_bytes(x.astype(np.float16)) for x in (q, k, v)),
        "other bytes in k": (q, swapped_bytes(k), v),
        "two dtypes": (q, k.astype(np.float64), v),
        "two dtypes of 16 bits": (half, k.astype(np.float16), v.astype(np.float16)),
        "integers": (whole, whole, whole),
        "complex numbers": (q.astype(complex), k.astype(complex), v.astype(complex)),
        "objects": (q.astype(object), k.astype(object), v.astype(object)),
        "three axes": (q[0], k[0], v[0]),
        "five axes": (q[None], k[None], v[None]),
        "another batch": (q, k[:1], v),
        "another batch of values": (q, k, v[:1]),
        "heads that do not divide": (q, k[:, [0, 1, 1]], v[:, [0, 1, 1]]),
        "more heads in k": (q[:, :1], k, v),
        "other heads in v": (q, k, v[:, :1]),
        "other tokens in v": (q, k, v[:, :, :4]),
        "another head_dim": (q, k[..., :4], v),
        "no batch": (q[:0], k[:0], v[:0]),
        "no heads": (q[:, :0], k, v),
        "no heads in k": (q, k[:, :0], v[:, :0]),
        "no queries": (q[:, :, :0], k, v),
        "no keys": (q, k[:, :, :0], v[:, :, :0]),
        "no head_dim": (q[..., :0], k[..., :0], v),
        "no value_dim": (q, k, v[..., :0]),
    }


@pytest.mark.parametrize("tokens_first", [False, True])
@pytest.mark.parametrize("what", left_to_the_checks())
def test_left_to_the_checks(what: str, tokens_first: bool) -> None:
    """None, and by way of `attention` what the checks say or do."""
    arrays = left_to_the_checks()[what]
    if tokens_first:
        arrays = tuple(x.swapaxes(-3, -2) if isinstance(x, np.ndarray) else x for x in arrays)  # type: ignore[assignment]
    layout = "BTHD" if tokens_first else "BHTD"
    assert _core.attention_plain(*arrays, True, tokens_first) is None
    expected: Array | str
    try:
        expected = checked(*arrays, layout=layout)
    except (TypeError, ValueError) as error:
        expected = str(error)
    if isinstance(expected, str):
        with pytest.raises((TypeError, ValueError)) as caught:
            headway.attention(*arrays, layout=layout)
        assert str(caught.value) == expected
    else:
        assert_same_bits(headway.attention(*arrays, layout=layout), expected)


def test_flags_of_another_kind_are_left_to_the_checks() -> None:
    """Only True and False themselves; the checks take NumPy's booleans and refuse a 1."""
    q, k, v = make_qkv(9, "float32")
    for causal in (1, 0, None, np.True_, "yes"):
        assert _core.attention_plain(q, k, v, causal, False) is None
    assert_same_bits(headway.attention(q, k, v, causal=np.False_), checked(q, k, v, causal=False))


def test_result_that_does_not_fit_in_memory() -> None:
    """Small inputs, a result of more elements than can be counted: the checks explain."""
    q = np.broadcast_to(np.float32(0), (1, 1, 2**40, 1))
    k, v = np.zeros((1, 1, 1, 1), np.float32), np.zeros((1, 1, 1, 2**21), np.float32)
    assert _core.attention_plain(q, k, v, True, False) is None
    with pytest.raises(MemoryError, match=r"^result: expected a size that fits in memory"):
        headway.attention(q, k, v)


BFLOAT16_BY_NAME = """
import json
import ml_dtypes
import numpy as np
from headway import _core, attention

class bfloat(np.void):
    pass

x = np.random.default_rng(1).standard_normal((1, 2, 5, 8)).astype(ml_dtypes.bfloat16)
expected = attention(x, x, x, layout="".join(["BH", "TD"]))
taken, same, mixed = [], [], []
for n in range(7):  # each a dtype of its own, of the same name
    other = x.view(np.dtype((bfloat, 2)))
    assert other.dtype.name == "bfloat16" and other.dtype is not x.dtype
    mixed.append(_core.attention_plain(x, other, x, True, False) is None)
    taken.append(_core.attention_plain(other, other, other, True, False) is not None)
    out = attention(other, other, other)
    same.append(out.dtype == other.dtype and out.tobytes() == expected.tobytes())
    again = attention(x, x, x)
    same.append(again.dtype == x.dtype and again.tobytes() == expected.tobytes())
print(json.dumps([taken, all(same), all(mixed)]))
"""


def test_bfloat16_is_known_by_name() -> None:
    """Several dtypes of this name: each gives its own dtype back, none is taken for another."""
    taken, same, mixed = run_python(BFLOAT16_BY_NAME)
    assert same
    assert mixed
    assert taken[0]
    assert not taken[-1]  # too many to be remembered: by way of the checks, with the same result


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_results_begin_with_a_cache_line(dtype: str) -> None:
    """By way of the bindings and by way of the checks; small ones are arrays of their own."""
    q, k, v = make_qkv(3, dtype, heads=(4, 4), tokens=(65, 65), head_dim=32)
    assert q.nbytes >= 1 << 14
    results = [headway.attention(q, k, v), headway.attention(q, k, v, layout="BTHD")]
    results += [checked(q, k, v), headway.attention(q, k, v, softcap=3.0)]
    for out in results:
        assert out.ctypes.data % 64 == 0
        assert out.flags.c_contiguous
        assert out.flags.writeable
    assert_same_bits(results[0], results[2])
    small = headway.attention(q[:, :, :8], k, v)
    assert small.base is None
