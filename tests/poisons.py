"""What is put in place of numbers that may not matter, and how NaN is looked for."""

from __future__ import annotations

import numpy as np
from helpers import Array, assert_same_bits, make

LARGEST = {
    "float64": 1.7976931348623157e308,
    "float32": 3.4028234663852886e38,
    "float16": 65504.0,
    "bfloat16": 3.3895313892515355e38,
}
POISONS = ("nan", "inf", "-inf", "max", "random")


def poison(x: Array, kind: str) -> None:
    """Overwrite every element of x."""
    if kind == "random":
        x[...] = 100 * make(99, x.shape).astype(x.dtype)
    elif kind == "max":
        signs = np.where(make(98, x.shape) > 0, 1.0, -1.0).astype(x.dtype)
        x[...] = LARGEST[x.dtype.name] * signs
    else:
        x[...] = float(kind)


def check_nan(got: Array, clean: Array, where: Array, what: str) -> None:
    """Fail unless `got` is NaN exactly where said, and elsewhere the bits of `clean`."""
    found = np.isnan(got.astype(np.float64))
    assert np.array_equal(found, where), (
        f"{what}: {np.count_nonzero(found & ~where)} NaN too many, "
        f"{np.count_nonzero(where & ~found)} missing"
    )
    assert_same_bits(got[~where], clean[~where], what)
