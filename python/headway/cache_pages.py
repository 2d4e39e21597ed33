"""Where the caches keep keys and values: pages of tokens, of floats or of 8-bit numbers."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import _core
from .arrays import Array, as_array, dtype_text, kind_of, readable
from .available import ALWAYS_THERE, available_bytes

#: The names of 8-bit formats, with their array dtype, and what else stands for them.
QUANTISED = {"int8": "int8", "fp8_e4m3": "uint8"}
_ALIASES = {"float8_e4m3fn": "fp8_e4m3"}
FLOATS = ("float32", "float64", "float16", "bfloat16")
#: What can be appended to a quantised cache, and what can attend to it.
SOURCES = ("float32", "float16", "bfloat16")


def checked_kind(dtype: Any) -> tuple[str, np.dtype[Any]]:
    """The name of a cache's dtype, and the dtype of its arrays."""
    wanted = 'float32, float64, float16, bfloat16, "int8" or "fp8_e4m3"'
    fix = "pass e.g. np.float32"
    if isinstance(dtype, str):
        dtype = _ALIASES.get(dtype, dtype)
        if dtype in QUANTISED:
            return dtype, np.dtype(QUANTISED[dtype])
        if dtype == "bfloat16":
            from .storage import bfloat16

            return dtype, bfloat16()
    try:
        if dtype is None:  # NumPy takes it for float64
            raise TypeError
        found = np.dtype(dtype)
    except TypeError:
        raise TypeError(f"dtype: expected {wanted}, got {dtype!r}; {fix}") from None
    name = _ALIASES.get(found.name, found.name)
    if name in QUANTISED:
        return name, np.dtype(QUANTISED[name])
    if name not in FLOATS or not found.isnative:
        got = name if found.isnative else f"byte-swapped {name}"
        raise TypeError(f"dtype: expected {wanted}, got {got}; {fix}")
    return name, found


class Pages:
    """Keys (N, Hkv, P, D) and values (N, Hkv, P, Dv): N pages of P tokens each, zeros at first.

    ``int8`` pages have scales (N, Hkv, P) beside them: number = scale * integer. ``beside``: bytes
    that have to fit in memory, too.
    """

    def __init__(
        self,
        kind: str,
        dtype: np.dtype[Any],
        shape: tuple[int, int, int],
        dims: tuple[int, int],
        beside: int = 0,
    ) -> None:
        if kind != "bfloat16":  # what unpickling makes is equal, but unknown to the everyday calls
            dtype = np.dtype(dtype.name)
        self.kind = kind
        self.dtype = dtype
        self.quantised = kind in QUANTISED
        item = dtype.itemsize * sum(dims) + (8 if kind == "int8" else 0)
        _check_size((*shape, sum(dims)), dtype, math.prod(shape) * item + beside)
        self.keys = _zeros((*shape, dims[0]), dtype)
        self.values = _zeros((*shape, dims[1]), dtype)
        self.key_scales: Array | None = None
        self.value_scales: Array | None = None
        if kind == "int8":
            self.key_scales = _zeros(shape, np.dtype(np.float32))
            self.value_scales = _zeros(shape, np.dtype(np.float32))
        self._collect()

    def _collect(self) -> None:
        scales = (self.key_scales, self.value_scales)
        self.arrays = (self.keys, self.values, *(s for s in scales if s is not None))
        self.parts = (self.kind, self.keys, self.values, *scales)  # as the core takes them

    def like(self, num_pages: int, page_size: int) -> "Pages":
        """New pages of this kind and these heads."""
        shape = num_pages, self.keys.shape[1], page_size
        return Pages(self.kind, self.dtype, shape, (self.keys.shape[3], self.values.shape[3]))

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self.arrays)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Pages":
        return _pages_of(self.kind, self.arrays)

    def __reduce__(self) -> tuple[Any, ...]:
        return _pages_of, (self.kind, self.arrays)

    def copy_page(self, source: "Pages", old: int, new: int, tokens: int) -> None:
        """Copy the first ``tokens`` slots of a page of ``source`` to one of these pages."""
        if source is self and old == new:
            return
        for to, array in zip(self.arrays, source.arrays, strict=True):
            to[new, :, :tokens] = array[old, :, :tokens]

    def reorder(self, sources: Sequence[int], tokens: Sequence[int]) -> None:
        """Page b becomes what page ``sources[b]`` was: its first ``tokens[b]`` slots are copied.

        Pages that stay are not touched; a page that others wait for is copied aside first.
        """
        steps, aside = _in_order(sources)
        spare = self.like(1, max(tokens)) if aside else self
        for to, source in steps:
            if to == _ASIDE:
                spare.copy_page(self, source, 0, max(tokens))
            elif source == _ASIDE:
                self.copy_page(spare, 0, to, tokens[to])
            else:
                self.copy_page(self, source, to, tokens[to])

    # What is appended ---------------------------------------------------------------------------

    def checked(self, k: Any, v: Any, batch: int, entries: str) -> tuple[Array, Array, str]:
        """k (batch, Hkv, n, D) and v (batch, Hkv, n, Dv), checked, and the name of their dtype.

        ``entries`` says what there is one of for each entry of the first axis.
        """
        kv_heads, head_dim = self.keys.shape[1], self.keys.shape[3]
        if not (
            type(k) is np.ndarray
            and type(v) is np.ndarray
            and k.dtype == v.dtype == self.dtype
            and not self.quantised
            and len(shape := k.shape) == 4
            and shape[0] == batch
            and shape[1] == kv_heads
            and shape[3] == head_dim
            and v.shape == (*shape[:3], self.values.shape[3])
        ):
            return self._explained(k, v, batch, entries)
        return k, v, self.kind

    def _explained(self, k: Any, v: Any, batch: int, entries: str) -> tuple[Array, Array, str]:
        kv_heads, head_dim = self.keys.shape[1], self.keys.shape[3]
        found: list[Array] = []
        kinds: list[str] = []
        dims = (head_dim, self.values.shape[3])
        for name, x, width in (("k", k, dims[0]), ("v", v, dims[1])):
            array = as_array(name, x)
            kinds.append(self.checked_source(name, array))
            array = with_entry(array, batch)
            n = found[0].shape[2] if found else "n"
            wanted = f"({batch}, {kv_heads}, {n}, {width})"
            if array.ndim != 4 or array.shape[0] != batch:
                raise ValueError(
                    f"{name}: expected shape {wanted}, one entry for each {entries}, got shape "
                    f"{np.shape(x)}; pass (batch, kv_heads, tokens, width)"
                )
            if array.shape[1] != kv_heads or array.shape[3] != width:
                raise ValueError(
                    f"{name}: expected shape {wanted}, {kv_heads} heads of {width} numbers like "
                    f"the cache, got shape {np.shape(x)}; "
                    f"swap axes that are (batch, tokens, heads, width) with {name}.swapaxes(1, 2)"
                )
            if found and array.shape[2] != n:
                raise ValueError(
                    f"v: expected {n} tokens like k, got {array.shape[2]} in shape {np.shape(x)}; "
                    "pass one value for each key"
                )
            found.append(array)
        if kinds[0] != kinds[1]:
            raise TypeError(
                f"v: expected {kinds[0]} like k, got {kinds[1]}; "
                f"convert with v.astype({dtype_text(kinds[0], 'k')})"
            )
        return found[0], found[1], kinds[0]

    def checked_source(self, name: str, array: Array) -> str:
        """The name of the array's dtype, which this cache takes."""
        kind = kind_of(name, array)
        if self.quantised:
            if kind not in SOURCES:
                raise TypeError(
                    f"{name}: expected float32, float16 or bfloat16 with a cache of {self.kind}, "
                    f"got {kind}; convert with {name}.astype(np.float32)"
                )
        elif array.dtype != self.dtype:
            fix = f"np.{self.kind}" if self.kind != "bfloat16" else "cache.keys.dtype"
            raise TypeError(
                f"{name}: expected {self.kind} like the cache, got {kind}; "
                f"convert with {name}.astype({fix})"
            )
        return kind

    def encoded(self, k: Array, v: Array, kind: str) -> tuple[Array, ...]:
        """What the tokens are as entries of ``arrays``: k and v, or 8-bit numbers and scales."""
        if not self.quantised:
            return k, v
        encoded = []
        scales = []
        for x in (k, v):
            numbers = np.empty(x.shape, self.dtype)
            scale = np.empty(x.shape[:3], np.float32) if self.kind == "int8" else None
            _core.quantize(readable(x), kind, numbers, scale)
            encoded.append(numbers)
            if scale is not None:
                scales.append(scale)
        return (*encoded, *scales)


def _zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Zeros in memory of its own, which begins at a page; huge pages where the system has them."""
    size = math.prod(shape) * dtype.itemsize
    try:
        array: Array = _core.allocate(size).view(dtype).reshape(shape)
        return array
    except (MemoryError, OverflowError, TypeError):
        raise _too_large(shape, dtype, size) from None


def _check_size(shape: tuple[int, ...], dtype: np.dtype[Any], size: int) -> None:
    """All of a cache fits in memory: it is written to at once, and the system may promise more."""
    if size > ALWAYS_THERE and size > available_bytes():
        raise _too_large(shape, dtype, size)


def _too_large(shape: tuple[int, ...], dtype: np.dtype[Any], size: int) -> MemoryError:
    return MemoryError(
        f"cache: expected a size that fits in memory, got {shape} numbers of {dtype.name}, "
        f"{size / 2**30:.3g} GiB; make the cache smaller"
    )


def _pages_of(kind: str, arrays: tuple[Array, ...]) -> Pages:
    """Pages that hold what these arrays hold, in memory of their own."""
    keys, values = arrays[:2]
    pages = Pages(kind, keys.dtype, keys.shape[:3], (keys.shape[3], values.shape[3]))
    for to, array in zip(pages.arrays, arrays, strict=True):
        to[...] = array
    return pages


_ASIDE = -1


def _in_order(sources: Sequence[int]) -> tuple[list[tuple[int, int]], bool]:
    """Steps (to, from) that leave at b what stood at ``sources[b]``; -1 is a place aside.

    No step overwrites what a later one reads. Also whether the place aside is needed.
    """
    waiting = {to: source for to, source in enumerate(sources) if to != source}
    readers = [0] * len(sources)
    for source in waiting.values():
        readers[source] += 1
    steps: list[tuple[int, int]] = []
    free = [to for to in waiting if not readers[to]]
    aside = False
    while waiting:
        if not free:  # only circles are left
            to = next(iter(waiting))
            steps.append((_ASIDE, to))
            aside = True
            reader = next(other for other, source in waiting.items() if source == to)
            waiting[reader] = _ASIDE
            free.append(to)
        to = free.pop()
        source = waiting.pop(to)
        steps.append((to, source))
        if source != _ASIDE:
            readers[source] -= 1
            if not readers[source] and source in waiting:
                free.append(source)
    return steps, aside


def with_entry(array: Array, batch: int) -> Array:
    """An array of 2 or 3 axes with those that a cache of one entry may leave out."""
    if array.ndim == 4 or batch != 1 or array.ndim < 2:
        return array
    return array[None] if array.ndim == 3 else array[None, None]
