"""Projection's forward and backward: what is kept between them, memory, refusals."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import sys
import weakref
from typing import Any

import numpy as np
import pytest
from helpers import DTYPES, assert_same_bits, make, run_python
from peaks import MIB, START

from headway import Projection


def build() -> Projection:
    return Projection(make(1, (6, 4), "float32"), make(2, (4,), "float32"))


NOTHING = (
    "backward: expected a forward call of this Projection that was saved, with the weights it has "
    "now, got none; call forward(x, save=True) before each backward"
)


def assert_nothing_saved(projection: Projection) -> None:
    with pytest.raises(RuntimeError) as caught:
        projection.backward(np.zeros((3, 4), np.float32))
    assert str(caught.value) == NOTHING


def test_backward_needs_a_saved_forward_and_uses_it_up() -> None:
    projection, x = build(), make(1, (3, 6), "float32")
    assert_nothing_saved(projection)
    projection(x)
    projection.forward(x)
    assert_nothing_saved(projection)
    projection.forward(x, save=True)
    projection.backward(np.zeros((3, 4), np.float32))
    assert_nothing_saved(projection)
    projection.forward(x, save=True)
    for other in copy.copy(projection), copy.deepcopy(projection):
        assert_nothing_saved(other)
    assert_nothing_saved(pickle.loads(pickle.dumps(projection)))
    with pytest.raises(ValueError, match="x: expected 6 numbers"):
        projection.forward(x[:, :5], save=True)
    assert_nothing_saved(projection)


def test_what_is_saved_is_freed() -> None:
    projection, grad = build(), np.zeros((3, 4), np.float32)
    first, second = make(1, (3, 6), "float32"), make(2, (3, 6), "float32")
    alive = weakref.ref(first), weakref.ref(second)
    projection.forward(first, save=True)
    del first
    assert alive[0]() is not None  # kept, not copied
    projection.forward(second, save=True)
    projection(second)
    del second
    gc.collect()
    assert alive[0]() is None
    projection.backward(grad)
    gc.collect()
    assert alive[1]() is None


REFUSED: dict[str, tuple[type[Exception], Any, str]] = {
    "a list": (
        TypeError, [[1.0]],
        "grad: expected a NumPy array or an object with __dlpack__ or __array__, got list; "
        "convert with np.asarray(grad, dtype=np.float32)",
    ),
    "float64": (
        TypeError, np.zeros((3, 4)),
        "grad: expected float32 like weight, got float64; convert with grad.astype(np.float32)",
    ),
    "shape": (
        ValueError, np.zeros((3, 6), np.float32),
        "grad: expected shape (3, 4) like the result of forward, got (3, 6); "
        "pass the gradient of every number of the result",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_gradients(name: str) -> None:
    error, grad, text = REFUSED[name]
    projection = build()
    projection.forward(make(1, (3, 6), "float32"), save=True)
    with pytest.raises(error) as caught:
        projection.backward(grad)
    assert str(caught.value) == text
    projection.backward(np.zeros((3, 4), np.float32))  # what was saved stayed


def test_save_of_a_wrong_kind() -> None:
    with pytest.raises(TypeError, match="save: expected"):
        build().forward(make(1, (3, 6), "float32"), save=1)  # type: ignore[arg-type]


def test_out_takes_the_result_of_a_saved_forward() -> None:
    projection, x, out = build(), make(1, (3, 6), "float32"), np.zeros((3, 4), "f4")
    assert projection.forward(x, save=True, out=out) is out
    assert_same_bits(out, projection(x))


def test_state_dict_of_gradients() -> None:
    projection, x = build(), make(1, (3, 6), "float32")
    projection.forward(x, save=True)
    got = projection.backward(make(2, (3, 4), "float32"))
    state = got.state_dict(prefix="mlp.")
    assert list(state) == ["mlp.weight", "mlp.bias"]
    assert_same_bits(state["mlp.weight"], got.weights["weight"].T)
    assert state["mlp.weight"].flags.c_contiguous


MEMORY = """
rows, dtype = json.loads(sys.argv[1])
dtype = dtype_of(dtype)
headway.set_num_threads(2)
project = headway.Projection(np.ones((128, 384), dtype))
x, grad = np.ones((rows, 128), dtype), np.ones((rows, 384), dtype)
project.forward(x[:9], save=True)
project.backward(grad[:9])
headway.release_memory()
project.forward(x, save=True)
beyond = peak_of(lambda: project.backward(grad))
print(json.dumps(beyond - x.nbytes))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="this machine: has no /proc/self/status")
@pytest.mark.parametrize("dtype", DTYPES)
def test_memory_of_backward_is_bounded(dtype: str) -> None:
    """2048 * (128 + 384) numbers, 8 MiB of float64; a copy of grad would take 24 MiB or more."""
    beyond = run_python(START + MEMORY, json.dumps([2**15, dtype]))
    assert beyond < 14 * MIB, f"{beyond / MIB:.2f} MiB"
