"""What several test files share: dtypes, tolerances, comparisons and inputs.

Errors are always measured relative to the scale of the expected array, that is, to its
largest finite magnitude. Infinities and NaN have to be where they are expected.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

import headway

Array = npt.NDArray[Any]

DTYPES = ("float64", "float32", "float16", "bfloat16")
FULL = ("float64", "float32")
HALF = ("float16", "bfloat16")

#: Error allowed to a result, relative to its scale. For 16 bits: two steps of the dtype.
TOLERANCE = {"float64": 1e-12, "float32": 2e-5, "float16": 2.0**-9, "bfloat16": 2.0**-6}

#: The lse is computed and returned in the accumulation type.
LSE_TOLERANCE = {"float64": 1e-12, "float32": 2e-5, "float16": 2e-5, "bfloat16": 2e-5}

#: Error allowed to a result in float32 where the weights were rounded to bfloat16.
ROUNDED_WEIGHTS = 2.0**-8


def multiplies_pairs(dtype: str) -> bool:
    """Whether the ISA multiplies pairs of bfloat16: weights rounded, subnormal numbers 0."""
    return dtype == "bfloat16" and headway.isa() in ("avx512bf16", "amx")


def flushed(x: Array) -> Array:
    """Return x with the subnormal numbers of bfloat16 as 0, as products of pairs may read them."""
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.zeros((), x.dtype), x)


def wide_tolerance(dtype: str) -> float:
    """Return the error allowed to a result in the accumulation type, for inputs of this dtype."""
    if multiplies_pairs(dtype):
        return ROUNDED_WEIGHTS
    return TOLERANCE["float64" if dtype == "float64" else "float32"]


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype of this name; bfloat16 comes from ml_dtypes."""
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def lse_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of the lse for inputs of this dtype."""
    return np.dtype(np.float64 if name == "float64" else np.float32)


def error(got: Array, expected: Array) -> float:
    """Return max |got - expected| over the finite values, relative to max |expected|.

    float16 has 2^-14 for its least scale: smaller numbers are multiples of 2^-24 there. Infinite
    when the shapes differ, or when NaN, inf or -inf stand at other places.
    """
    if got.shape != expected.shape:
        return np.inf
    wide = got.astype(np.float64)
    wanted = expected.astype(np.float64)
    finite = np.isfinite(wanted)
    if not np.array_equal(wide[~finite], wanted[~finite], equal_nan=True):
        return np.inf
    if not np.isfinite(wide[finite]).all():
        return np.inf
    if not finite.any():
        return 0.0
    scale = np.abs(wanted[finite]).max()
    if got.dtype == np.float16:
        scale = max(scale, 2.0**-14)
    return float(np.abs(wide[finite] - wanted[finite]).max() / (scale if scale > 0 else 1.0))


def assert_close(got: Array, expected: Array, tolerance: float, what: str = "result") -> None:
    """Fail unless the error relative to the scale of `expected` is within the tolerance."""
    assert got.shape == expected.shape, f"{what}: shape {got.shape}, wanted {expected.shape}"
    found = error(got, expected)
    assert found <= tolerance, f"{what}: error {found:.3e} of the scale, allowed {tolerance:.1e}"


def bits(x: Array) -> Array:
    """Return the array's elements as unsigned integers, so that NaN compares like any other."""
    return np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")


def assert_same_bits(got: Array, expected: Array, what: str = "result") -> None:
    """Fail unless shape, dtype and every bit agree; a NaN equals the same NaN only."""
    assert got.shape == expected.shape, f"{what}: shape {got.shape}, wanted {expected.shape}"
    assert got.dtype == expected.dtype, f"{what}: dtype {got.dtype}, wanted {expected.dtype}"
    differ = np.argwhere(bits(got) != bits(expected))
    if len(differ):
        first = tuple(int(i) for i in differ[0])
        raise AssertionError(
            f"{what}: {len(differ)} of {got.size} elements differ in their bits, the first at "
            f"{first}: {got[first]!r}, wanted {expected[first]!r}"
        )


def make(seed: int | tuple[int, ...], shape: tuple[int, ...], dtype: str = "float64") -> Array:
    """Return normal random numbers of this shape and dtype; the seed decides all of them."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype_of(dtype))


def make_qkv(
    seed: int,
    dtype: str,
    *,
    batch: int = 1,
    heads: tuple[int, int] = (2, 2),
    tokens: tuple[int, int] = (8, 8),
    head_dim: int = 8,
    value_dim: int | None = None,
) -> tuple[Array, Array, Array]:
    """Return q (B,H,Tq,D), k (B,Hkv,Tk,D) and v (B,Hkv,Tk,Dv), contiguous."""
    wide = head_dim if value_dim is None else value_dim
    return (
        make((seed, 1), (batch, heads[0], tokens[0], head_dim), dtype),
        make((seed, 2), (batch, heads[1], tokens[1], head_dim), dtype),
        make((seed, 3), (batch, heads[1], tokens[1], wide), dtype),
    )


def attend(q: Any, k: Any, v: Any, **options: Any) -> tuple[Array, Array]:
    """Return (out, lse) of headway.attention."""
    result = headway.attention(q, k, v, return_lse=True, **options)
    assert isinstance(result, tuple)
    return result


def reference(q: Array, k: Array, v: Array, **options: Any) -> tuple[Array, Array]:
    """Return (out, lse) of the reference for the same numbers, both in float64."""
    wide = [np.array(x, dtype=np.float64, order="C") for x in (q, k, v)]
    result = headway.reference.attention(*wide, return_lse=True, **options)
    assert isinstance(result, tuple)
    return result


@contextmanager
def using(isa: str, threads: int) -> Iterator[None]:
    """Compute with this instruction set and thread count; restore both afterwards."""
    before = headway.isa(), headway.get_num_threads()
    headway.set_isa(isa)
    headway.set_num_threads(threads)
    try:
        yield
    finally:
        headway.set_isa(before[0])
        headway.set_num_threads(before[1])


def run_python(
    code: str,
    *arguments: str,
    env: Mapping[str, str | None] | None = None,
    timeout: float = 60.0,
) -> Any:
    """Run code in a fresh interpreter and return its last line of output, read as JSON.

    Settings of the library are taken out of the environment first; in `env` a value of None
    removes a variable. Fails when the program fails or does not end in time.
    """
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=clean_environment(env),
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout.splitlines()[-1])


def clean_environment(env: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """Return this process's environment without the library's settings, changed by `env`."""
    changed = dict(os.environ)
    for name in ("HEADWAY_ISA", "HEADWAY_NUM_THREADS", "OMP_NUM_THREADS", "OMP_WAIT_POLICY"):
        changed.pop(name, None)
    for name, value in (env or {}).items():
        changed.pop(name, None)
        if value is not None:
            changed[name] = value
    return changed


def probe(queries: int, keys: int, dtype: str, **options: Any) -> tuple[Array, Array]:
    """Return the mean of the visible key numbers and exp(lse), the number of them, per query."""
    q = np.zeros((1, 1, queries, 4), dtype_of(dtype))
    k = np.zeros((1, 1, keys, 4), dtype_of(dtype))
    v = np.arange(keys).astype(dtype_of(dtype)).reshape(1, 1, keys, 1)
    out, lse = attend(q, k, v, **options)
    assert_same_bits(headway.attention(q, k, v, **options), out, "without the lse")
    return out[0, 0, :, 0].astype(np.float64), np.exp(lse[0, 0])


class LendsByDLPack:
    """An array of another library, with DLPack alone."""

    def __init__(self, x: Array) -> None:
        self.x = x

    def __dlpack__(self, **options: Any) -> Any:
        return self.x.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.x.__dlpack_device__()


def in_threads(tasks: list[Callable[[], None]]) -> None:
    """Run every task in a thread of its own, all at once; raise the first failure."""
    failures: list[BaseException] = []
    start = threading.Barrier(len(tasks))

    def run(task: Callable[[], None]) -> None:
        try:
            start.wait()
            task()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
