"""Random arrays, options and bad values for ``fuzz_calls.py``; a seed and a number decide all."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
from helpers import DTYPES, Array, dtype_of

Item = TypeVar("Item")

_POOL = 1 << 19
_SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 3e38, -3e38, 1e-40, 65504.0)


class Lends:
    """An array behind ``__array__`` alone."""

    def __init__(self, x: Array) -> None:
        self.x = x

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self.x


class Dice:
    """Everything that is random in a call. Arrays are views of pools that nobody may write to."""

    def __init__(self, seed: int) -> None:
        g = np.random.default_rng(seed)
        plain = g.standard_normal(_POOL)
        special = np.where(g.random(_POOL) < 0.1, g.choice(_SPECIAL, _POOL), plain)
        with np.errstate(all="ignore"):
            self._pools = {
                (dtype, odd): (special if odd else plain).astype(dtype_of(dtype))
                for dtype in DTYPES
                for odd in (False, True)
            }
        self._bools = g.random(_POOL) < 0.8
        for pool in (*self._pools.values(), self._bools):
            pool.flags.writeable = False
        self._before = self.sums()
        self._seed = seed
        self.odd = False  # whether arrays hold NaN, infinities and numbers at the ends of the range
        self.random = random.Random()

    def sums(self) -> list[bytes]:
        """What the pools hold; it never changes."""
        return [bytes(x.view(np.uint8)[::37]) for x in (*self._pools.values(), self._bools)]

    def unchanged(self) -> bool:
        """Whether no call has written to its inputs."""
        return self.sums() == self._before

    def restart(self, number: int) -> None:
        """Throw anew, for the call of this number."""
        self.random.seed(self._seed << 40 | number)
        self.odd = self.chance(0.1)

    def chance(self, share: float) -> bool:
        """True with this probability."""
        return self.random.random() < share

    def one(self, items: Sequence[Item]) -> Item:
        """One of these."""
        return items[int(self.random.random() * len(items))]

    def size(self, *, least: int = 0) -> int:
        """A small size, up to more than two vectors."""
        return max(self.one((0, 1, 1, 2, 2, 3, 4, 5, 7, 8, 16, 17, 33)), least)

    def width(self) -> int:
        """Numbers per token of a head."""
        return self.one((1, 2, 3, 4, 7, 8, 8, 15, 16, 17, 24, 64))

    def dtype(self) -> str:
        """The name of one of the four dtypes."""
        return self.one(("float32", *DTYPES))

    # Arrays -------------------------------------------------------------------------------------

    def array(self, shape: tuple[int, ...], dtype: str, *, plain: bool = False) -> Array:
        """An array of this shape in any layout."""
        pool = self._bools if dtype == "bool" else self._pools[dtype, self.odd]
        return self._laid_out(pool, shape, 0.0 if plain else self.random.random())

    def _laid_out(self, pool: Array, shape: tuple[int, ...], how: float) -> Array:
        count = math.prod(shape)
        start = int(self.random.random() * (_POOL - 2 * count - 1))
        if how < 0.5 or not count:
            return pool[start : start + count].reshape(shape)
        if how < 0.6:  # backwards on any axes
            x = pool[start : start + count].reshape(shape)
            return x[tuple(slice(None, None, self.one((1, -1))) for _ in shape)]
        if how < 0.68:  # the axes in another order in memory
            order = self.random.sample(range(len(shape)), len(shape))
            x = pool[start : start + count].reshape([shape[axis] for axis in order])
            return x.transpose(np.argsort(order))
        if how < 0.75:
            return pool[start : start + 2 * count : 2].reshape(shape)
        if how < 0.82:  # the same numbers over and over
            short = tuple(n if self.chance(0.6) else 1 for n in shape)
            x = pool[start : start + math.prod(short)].reshape(short)
            return np.broadcast_to(x, shape)
        if how < 0.88:  # a part of a larger array
            more = (*shape[:-1], shape[-1] + 3)
            x = np.resize(pool[start : start + count], more)
            return x[..., 2:-1]
        if how < 0.94:  # no multiple of the item size
            data = b"\0" + pool[start : start + count].tobytes()
            return np.frombuffer(data, pool.dtype, offset=1).reshape(shape)
        return np.asfortranarray(pool[start : start + count].reshape(shape))

    def lent(self, x: Array) -> Any:
        """The array, or something else that lends it."""
        return Lends(x) if self.chance(0.03) else x

    def out(self, shape: tuple[int, ...], dtype: str) -> Array:
        """An array that takes a result, its numbers not those of any result."""
        if dtype in ("float16", "bfloat16") and self.chance(0.3):
            dtype = "float32"
        if len(shape) > 1 and self.chance(0.4):
            axes = self.random.sample(range(len(shape)), len(shape))
            x = np.full([shape[axis] for axis in axes], 77, dtype_of(dtype))
            return x.transpose(np.argsort(axes))
        if self.chance(0.3):
            return np.full((*shape[:-1], 2 * shape[-1]), 77, dtype_of(dtype))[..., ::2]
        return np.full(shape, 77, dtype_of(dtype))

    def ints(self, count: int, low: int, high: int) -> Any:
        """So many ints, as a list, a tuple or an array."""
        numbers = [self.random.randint(low, high) for _ in range(count)]
        kind = self.one((list, tuple, np.int32, np.int64))
        return (
            kind(numbers)
            if isinstance(kind, type) and kind in (list, tuple)
            else np.array(numbers, kind)
        )

    # Options ------------------------------------------------------------------------------------

    def options(
        self, shape: tuple[int, int, int, int], rank: int, *, packed: bool = False
    ) -> dict[str, Any]:
        """Options of a call whose scores have this shape (B, H, Tq, Tk)."""
        batch, heads, tq, tk = shape
        found: dict[str, Any] = {}
        if self.chance(0.4):
            return found
        if self.chance(0.3):
            found["causal"] = False
        if self.chance(0.3):
            found["align"] = self.one(
                ("end", "start", 0, tk // 2, -1, tk - tq, self.ints(batch, -3, tk + 3))
            )
        if self.chance(0.2):
            found["scale"] = self.one((0, 1, 0.5, -0.3, np.float32(0.2)))
        if self.chance(0.3):
            found["window"] = self.one((1, 2, 5, tk + 1, (2, 0), (0, 3), (-1, 1), (3, -1)))
        if self.chance(0.2):
            found["softcap"] = self.one((0, 1, 0.5, 30.0))
        if self.chance(0.2):
            shape_of = self.one(((heads,), (batch, heads)))
            found["alibi_slopes"] = (
                self.array(shape_of, self.one(DTYPES), plain=True)
                if (not self.odd)
                else np.ones(shape_of)
            )
        if self.chance(0.2):
            found["sinks"] = (
                np.full(heads, -np.inf) if self.odd else self.array((heads,), self.one(DTYPES))
            )
        if packed:
            return found
        if self.chance(0.25):
            found["kv_lengths"] = self.ints(batch, 0, tk)
        if self.chance(0.3):
            full = shape[4 - rank :]
            part = tuple(n if self.chance(0.7) else 1 for n in full)
            part = part[self.one((0, 0, len(part) - 2)) :]
            found["mask"] = self.array(part, self.one(("bool", "bool", *DTYPES)))
        return found

    # Bad values ---------------------------------------------------------------------------------

    def junk(self) -> Any:
        """Something that hardly any argument takes; nothing that is long to compute."""
        return self.one(_JUNK)

    def spoilt(self, value: Any) -> Any:
        """The value with one thing changed, or something else."""
        if not isinstance(value, np.ndarray) or value.size > 2**20 or self.chance(0.3):
            return self.junk()
        if value.dtype.kind in "OSUMmc" or value.dtype.names is not None:
            return self.junk()  # no real numbers: spoilt already
        how = self.random.randrange(9)
        if how == 0:
            return value[None]
        if how == 1 and value.ndim:
            return value[0] if len(value) else value.reshape(-1)
        if how == 2 and value.ndim:
            return np.concatenate([value, value], axis=self.random.randrange(value.ndim))
        if how == 3 and value.ndim:
            axis = self.random.randrange(value.ndim)
            return np.take(value, np.arange(max(value.shape[axis] - 1, 0)), axis)
        if how == 4:
            with np.errstate(all="ignore"):
                return np.array(value).astype(self.one(("f4", "f8", "f2", "i4", "c8", "O", "?")))
        if how == 5:
            return np.array(value).astype(np.float32).astype(">f4")
        if how == 6:
            return np.ma.MaskedArray(value)
        if how == 7:
            return value.swapaxes(0, -1) if value.ndim > 1 else value[..., None]
        return np.broadcast_to(
            value.reshape(-1)[:1].reshape(()) if value.size else value.dtype.type(0),
            self.one(((2**59,), (2**40, 1, 1, 1), (1, 2**29, 2**30, 1))),
        )


_JUNK: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    3,
    2**31,
    2**63,
    2**64,
    -(2**70),
    0.5,
    -0.0,
    np.nan,
    np.inf,
    1j,
    "",
    "end",
    "start",
    "BTHD",
    "x",
    b"ab",
    [],
    (),
    [1],
    (1, 2),
    (1, 2, 3),
    [0.5],
    ["a"],
    [[1], [2, 3]],
    {},
    {1: 2},
    set(),
    object(),
    int,
    np.float32,
    np.float32(1),
    np.int64(-3),
    np.bool_(True),
    np.zeros(0),
    np.zeros((0, 3)),
    np.ones(3),
    np.ones((2, 2)),
    np.ones((1, 1, 1, 1, 1)),
    np.array(2.0),
    np.array(2),
    np.arange(3),
    np.arange(6).reshape(2, 3),
    np.ones((2, 3), bool),
    np.array([None, 1]),
    np.array(["a", "b"]),
    np.ones(2, ">f8"),
    np.ones((1, 1, 2, 2), ml_dtypes.float8_e4m3fn),
    np.ma.masked_array([1.0, 2.0], [True, False]),
    np.ones(3, "M8[s]"),
    np.ones(2, [("a", "f4")]),
    np.broadcast_to(np.float32(1), (2**60,)),
    np.broadcast_to(np.float32(1), (2**30, 2**30)),
    np.broadcast_to(np.float64(1), (1, 1, 2**50, 8)),
    np.broadcast_to(np.float32(1), (2**50, 1, 1, 1)),
    np.broadcast_to(np.int64(1), (2**59,)),
    memoryview(b"abcd"),
    range(3),
    iter([1, 2]),
    slice(1),
    lambda *_: None,
    Exception,
    NotImplemented,
    ...,
)
