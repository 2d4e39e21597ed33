"""JAX's vmap: every example as if it were alone, whatever is mapped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from helpers import assert_close, make

from headway.interop.jax import attention

jax = pytest.importorskip("jax")
jnp = jax.numpy

N, B, H, HKV, TQ, TK, D, DV = 2, 3, 4, 2, 5, 7, 8, 6


@pytest.fixture(autouse=True)
def _wide() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def inputs(rank: int, layout: str, mapped: dict[str, int | None]) -> dict[str, Any]:
    """The arrays of N examples; one that is not mapped has no axis for them."""
    batch = (B,) if rank == 4 else ()
    shapes: dict[str, tuple[int, ...]] = {
        "q": (*batch, H, TQ, D),
        "k": (*batch, HKV, TK, D),
        "v": (*batch, HKV, TK, DV),
        "mask": (H, 1, TK),
        "sinks": (H,),
        "kv_lengths": batch or (1,),
    }
    if rank == 2:
        shapes |= {"q": (TQ, D), "k": (TK, D), "v": (TK, DV), "mask": (TQ, TK), "sinks": (1,)}
    found: dict[str, Any] = {}
    for n, (name, shape) in enumerate(shapes.items()):
        if name not in mapped:
            continue
        x = make(n, (N, *shape))
        if name == "kv_lengths":
            x = np.random.default_rng(1).integers(1, TK + 1, (N, *shape))
        if name in ("q", "k", "v") and layout == "BTHD" and rank > 2:
            x = x.swapaxes(-3, -2)
        axis = mapped[name]
        found[name] = jnp.asarray(x[0] if axis is None else np.moveaxis(x, 0, axis))
    return found


MAPPED: dict[str, dict[str, int | None]] = {
    "all": {"q": 0, "k": 0, "v": 0},
    "queries": {"q": 0, "k": None, "v": None},
    "keys": {"q": None, "k": 1, "v": 0},
    "a mask beside": {"q": 0, "k": 0, "v": 0, "mask": None},
    "a mask": {"q": None, "k": None, "v": None, "mask": 0},
    "sinks beside": {"q": 0, "k": 0, "v": 0, "sinks": None},
    "sinks": {"q": 0, "k": 0, "v": None, "sinks": 0},
    "lengths": {"q": 0, "k": 0, "v": 0, "kv_lengths": 0},
    "lengths beside": {"q": 0, "k": 0, "v": 0, "kv_lengths": None},
    "everything": {"q": 0, "k": 0, "v": 0, "mask": 0, "sinks": 0, "kv_lengths": 0},
}


def task(known: dict[str, Any]) -> Any:
    def run(arrays: dict[str, Any]) -> Any:
        return attention(**arrays, **known, return_lse=True)

    return run


def one_by_one(function: Any, arrays: dict[str, Any], mapped: dict[str, int | None]) -> Any:
    results = []
    for n in range(N):
        one = {
            name: x if mapped[name] is None else jnp.take(x, n, axis=mapped[name])
            for name, x in arrays.items()
        }
        results.append(function(one))
    return jax.tree.map(lambda *x: jnp.stack(x), *results)


def assert_same(got: Any, wanted: Any) -> None:
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert_close(np.asarray(a), np.asarray(b), 1e-14)


@pytest.mark.parametrize(
    ("name", "rank", "layout"),
    [(name, 4, "BHTD") for name in MAPPED]
    + [("everything", rank, layout) for rank in (2, 3) for layout in ("BHTD", "BTHD")]
    + [("lengths beside", rank, layout) for rank in (2, 3, 4) for layout in ("BHTD", "BTHD")],
)
def test_every_example_as_if_alone(name: str, rank: int, layout: str) -> None:
    mapped = MAPPED[name]
    arrays = inputs(rank, layout, mapped)
    function = task({"layout": layout})
    got = jax.jit(jax.vmap(function, (mapped,)))(arrays)
    assert_same(got, one_by_one(function, arrays, mapped))


@pytest.mark.parametrize(
    ("name", "rank"),
    [(name, 4) for name in MAPPED if "lengths" not in name]
    + [(name, rank) for name in ("all", "everything") for rank in (2, 3)],
)
def test_gradients_of_every_example(name: str, rank: int) -> None:
    """By each array of an example, and by those that all examples share."""
    mapped = MAPPED[name]
    arrays = inputs(rank, "BTHD", mapped)

    def loss(given: dict[str, Any]) -> Any:
        out, lse = task({"layout": "BTHD", "softcap": 2.0})(given)
        return (out**2).sum() + lse.sum()

    function = jax.grad(loss, allow_int=True)

    def floats(given: dict[str, Any]) -> Any:
        return {n: x for n, x in function(given).items() if n != "kv_lengths"}

    got = jax.jit(jax.vmap(floats, (mapped,)))(arrays)
    assert_same(got, one_by_one(floats, arrays, mapped))

    def total(given: dict[str, Any]) -> Any:
        return jax.vmap(loss, (mapped,))(given).sum()

    shared = jax.grad(total, allow_int=True)(arrays)
    for name_of, axis in mapped.items():
        if axis is None and name_of != "kv_lengths":
            assert_close(np.asarray(shared[name_of]), np.asarray(got[name_of].sum(0)), 1e-13)


def test_two_levels() -> None:
    mapped: dict[str, int | None] = {"q": 0, "k": 0, "v": 0, "sinks": None}
    arrays = inputs(3, "BHTD", mapped)
    doubled = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), arrays)
    inner = jax.vmap(task({}), (mapped,))
    got = jax.vmap(inner)(doubled)
    assert_same(
        got,
        jax.tree.map(
            lambda *x: jnp.stack(x), inner(arrays), inner(jax.tree.map(lambda x: 2 * x, arrays))
        ),
    )


@pytest.mark.parametrize("rank", [2, 4])
def test_slopes_and_positions(rank: int) -> None:
    mapped: dict[str, int | None] = {"q": 0, "k": 0, "v": 0}
    arrays = inputs(rank, "BHTD", mapped)
    slopes = make(9, (B, H)) if rank == 4 else make(9, (1, 1 if rank == 2 else H))
    align = jnp.array([1, 0, 2] if rank == 4 else [1])
    for known in ({"alibi_slopes": slopes}, {"alibi_slopes": slopes[0], "align": align}):
        got = jax.vmap(task(known), (mapped,))(arrays)
        assert_same(got, one_by_one(task(known), arrays, mapped))
    got = jax.vmap(lambda x, p: task({"align": p})(x), (mapped, 0))(arrays, jnp.array([2, 0]))
    wanted = [
        task({"align": int(p)})({n: x[i] for n, x in arrays.items()}) for i, p in enumerate((2, 0))
    ]
    assert_same(got, jax.tree.map(lambda *x: jnp.stack(x), *wanted))


def test_seeds() -> None:
    """A shared seed drops the same weights in every example, seeds of their own drop others."""
    mapped: dict[str, int | None] = {"q": None, "k": None, "v": None, "seed": 0}
    arrays = inputs(4, "BHTD", mapped) | {"seed": jnp.array([5, 9])}
    function = task({"dropout": 0.5})
    own = jax.vmap(function, (mapped,))(arrays)
    assert_same(own, one_by_one(function, arrays, mapped))
    assert (own[0][0] != own[0][1]).any()
    mapped = {"q": 0, "k": 0, "v": 0, "seed": None}
    arrays = inputs(4, "BHTD", mapped) | {"seed": jnp.array(5)}
    assert_same(jax.vmap(function, (mapped,))(arrays), one_by_one(function, arrays, mapped))
