"""JAX: the same numbers as the reference, and gradients as jax.nn's, under jit and vmap."""

from __future__ import annotations

import doctest
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from helpers import LSE_TOLERANCE, TOLERANCE, Array, assert_close, dtype_of, make

import headway
from headway.interop import jax as ours

jax = pytest.importorskip("jax")
jnp = jax.numpy

B, H, HKV, TQ, TK, D, DV = 2, 4, 2, 5, 7, 8, 6


@pytest.fixture(autouse=True)
def _wide() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def arrays(dtype: str = "float64", layout: str = "BHTD") -> list[Any]:
    """q, k and v of JAX in the layout."""
    shapes = (B, H, TQ, D), (B, HKV, TK, D), (B, HKV, TK, DV)
    found = [make(n, shape, dtype) for n, shape in enumerate(shapes)]
    return [jnp.asarray(x if layout == "BHTD" else x.swapaxes(1, 2)) for x in found]


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "start": {"align": "start"},
    "position": {"align": 3},
    "positions": {"align": np.array([2, 0])},
    "all keys": {"causal": False, "scale": 0.3},
    "window": {"window": (3, 0), "softcap": 1.5},
    "bools": {"mask": make(5, (B, 1, TQ, TK)) > -0.5, "causal": False},
    "numbers": {"mask": make(6, (H, TQ, TK)), "sinks": make(7, (H,))},
    "lengths": {"kv_lengths": np.array([6, 3])},
    "slopes": {"alibi_slopes": headway.alibi_slopes(H)},
    "dropout": {"dropout": 0.4, "seed": 2**64 - 1},
    "dropout by an array": {"dropout": 0.4, "seed": np.array(2**63 + 5, np.uint64)},
    "slopes of each": {"alibi_slopes": make(8, (B, H)), "softcap": 2.0},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize(("traced", "layout"), [(False, "BTHD"), (True, "BHTD")])
def test_options(name: str, traced: bool, layout: str) -> None:
    inputs, options = arrays(layout=layout), OPTIONS[name]
    numbers = {n: x for n, x in options.items() if n in ("mask", "sinks", "kv_lengths")}
    numbers |= {n: options[n] for n in ("align", "seed") if isinstance(options.get(n), np.ndarray)}
    known = {n: x for n, x in options.items() if n not in numbers}

    def task(q: Any, k: Any, v: Any, numbers: Any) -> Any:
        return ours.attention(q, k, v, **known, **numbers, layout=layout, return_lse=True)

    out, lse = (jax.jit(task) if traced else task)(*inputs, numbers)
    wanted = headway.reference.attention(
        *(np.asarray(x) for x in inputs), **options, layout=layout, return_lse=True
    )
    assert isinstance(out, jax.Array)
    assert_close(np.asarray(out), wanted[0], 1e-12)
    assert_close(np.asarray(lse), wanted[1], 1e-12)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_every_dtype(dtype: str, isa: str, threads: int) -> None:
    inputs = arrays(dtype)
    out, lse = jax.jit(lambda *x: ours.attention(*x, return_lse=True))(*inputs)
    wide = [np.asarray(x).astype(np.float64) for x in inputs]
    wanted = headway.reference.attention(*wide, return_lse=True)
    assert out.dtype == dtype_of(dtype)
    assert_close(np.asarray(out), wanted[0], TOLERANCE[dtype])
    assert_close(np.asarray(lse), wanted[1], LSE_TOLERANCE[dtype])


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("layout", ["BHTD", "BTHD"])
def test_fewer_axes(rank: int, layout: str) -> None:
    q, k, v = (x[(0,) * (4 - rank)] for x in arrays(layout="BHTD"))
    if rank == 3 and layout == "BTHD":
        q, k, v = (x.swapaxes(0, 1) for x in (q, k, v))
    out, lse = ours.attention(q, k, v, layout=layout, return_lse=True)
    wanted = headway.reference.attention(
        *(np.asarray(x) for x in (q, k, v)), layout=layout, return_lse=True
    )
    assert_close(np.asarray(out), wanted[0], 1e-12)
    assert_close(np.asarray(lse), wanted[1], 1e-12)


# Gradients ----------------------------------------------------------------------------------------


def gradients(task: Any, inputs: list[Any]) -> list[Array]:
    """By every input, of a loss in which no element counts like another."""

    def loss(*given: Any) -> Any:
        out = task(*given)
        return (out * jnp.cos(jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape)).sum()

    found = jax.jit(jax.grad(loss, tuple(range(len(inputs)))))(*inputs)
    return [np.asarray(x) for x in found]


@pytest.mark.parametrize(
    ("options", "theirs"),
    [
        ({"align": "start"}, {"is_causal": True}),
        ({"causal": False, "scale": 0.3}, {"scale": 0.3}),
        ({"align": "start", "window": (2, 0)}, {"is_causal": True, "local_window_size": (2, 0)}),
    ],
)
@pytest.mark.parametrize("kind", ["none", "mask", "bias"])
def test_gradients_as_those_of_jax(
    kind: str, options: dict[str, Any], theirs: dict[str, Any]
) -> None:
    """jax.nn.dot_product_attention, with shared key heads, masks and biases.

    Its scores are computed in float32, whatever the inputs are.
    """
    dtype = "float32"
    inputs = [x[..., : DV if n == 2 else D] for n, x in enumerate(arrays(dtype, "BTHD"))]
    inputs[2] = jnp.concatenate([inputs[2], inputs[2][..., :2]], axis=-1)  # it wants Dv = D
    extra: dict[str, Any] = {}
    if kind == "mask":
        extra = {"mask": jnp.asarray(make(5, (B, 1, TQ, TK)) > -0.5).at[..., 0].set(True)}
        options, theirs = options | extra, theirs | extra
    if kind == "bias":
        inputs.append(jnp.asarray(make(6, (1, H, TQ, TK), dtype)))

    def task(q: Any, k: Any, v: Any, bias: Any = None) -> Any:
        given = {} if bias is None else {"mask": bias}
        return ours.attention(q, k, v, layout="BTHD", **options, **given)

    def other(q: Any, k: Any, v: Any, bias: Any = None) -> Any:
        return jax.nn.dot_product_attention(q, k, v, bias, **theirs)

    for got, wanted in zip(gradients(task, inputs), gradients(other, inputs), strict=True):
        assert got.dtype == dtype_of(dtype)
        assert_close(got, wanted, TOLERANCE[dtype])


@pytest.mark.parametrize("mask", [(), (B, 1, 1, TK), (B, H, TQ, TK)])
def test_gradients_of_every_input(mask: tuple[int, ...]) -> None:
    """Sinks, masks that are broadcast, soft caps and the lse, by differences."""
    from jax.test_util import check_grads

    def task(*given: Any) -> Any:
        *inputs, bias, sinks = given
        options = {"mask": bias, "sinks": sinks, "softcap": 2.0, "kv_lengths": jnp.array([6, 7])}
        return ours.attention(*inputs, **options, return_lse=True)

    given = (*arrays(), jnp.asarray(make(6, mask)), jnp.asarray(make(7, (H,))))
    check_grads(task, given, order=1, modes=["rev"], rtol=1e-6, atol=1e-6)


def test_gradients_with_dropout() -> None:
    """The backward pass drops what the forward pass dropped."""
    from jax.test_util import check_grads

    seed = jax.random.bits(jax.random.key(3))

    def task(*given: Any) -> Any:
        return ours.attention(*given, dropout=0.3, seed=seed)

    check_grads(jax.jit(task), tuple(arrays()), order=1, modes=["rev"], rtol=1e-6, atol=1e-6)
    assert (task(*arrays()) != ours.attention(*arrays())).any()


def test_gradients_of_one_input_alone() -> None:
    """What is not asked for costs no pass of its own, and the loss may use the lse alone."""
    q, k, v = arrays()
    bias = jnp.asarray(make(6, (TQ, TK)))
    of_all = jax.grad(lambda b, x: ours.attention(q, x, v, mask=b).sum(), (0, 1))(bias, k)
    of_one = jax.grad(lambda x: ours.attention(q, x, v, mask=bias).sum())(k)
    assert_close(np.asarray(of_one), np.asarray(of_all[1]), 1e-14)

    def lse(x: Any) -> Any:
        return ours.attention(q, x, v, causal=False, return_lse=True)[1].sum()

    weights = headway.reference.attention_weights(np.asarray(q), np.asarray(k), causal=False)
    wanted = np.einsum("bhij,bhid->bhjd", weights, np.asarray(q)) / D**0.5
    wanted = wanted.reshape(B, HKV, H // HKV, TK, D).sum(2)
    assert_close(np.asarray(jax.grad(lse)(k)), wanted, 1e-12)


# Limits -------------------------------------------------------------------------------------------


def test_what_jax_refuses() -> None:
    q, k, v = arrays()
    with pytest.raises(TypeError, match="custom_vjp"):
        jax.jvp(lambda q: ours.attention(q, k, v), (q,), (q,))
    with pytest.raises(ValueError, match="callbacks do not support JVP"):
        jax.grad(lambda q: jax.grad(lambda q: ours.attention(q, k, v).sum())(q).sum())(q)


def test_errors_come_when_the_call_is_traced() -> None:
    q, k, v = arrays()
    with pytest.raises(ValueError, match="k: expected head_dim 8 like q, got 7"):
        jax.jit(ours.attention)(q, k[..., :7], v)
    with pytest.raises(TypeError, match="v: expected float64 like q, got float32"):
        ours.attention(q, k, v.astype(jnp.float32))
    with pytest.raises(TypeError, match="scale: expected a real number or None"):
        jax.jit(lambda q, s: ours.attention(q, k, v, scale=s))(q, 0.5)
    with pytest.raises(ValueError, match="mask: expected a shape that broadcasts"):
        ours.attention(q, k, v, mask=jnp.ones((TQ, TK + 1), bool))
    with pytest.raises(TypeError, match="align: expected"):
        ours.attention(q, k, v, align=jnp.array([0.5, 1.0]))
    with pytest.raises(TypeError, match="alibi_slopes: expected numbers that are known"):
        jax.jit(lambda s: ours.attention(q, k, v, alibi_slopes=s))(jnp.ones(H))
    with pytest.raises(TypeError, match="seed: expected one integer, got float64"):
        ours.attention(q, k, v, dropout=0.5, seed=jnp.array(0.5))
    with pytest.raises(ValueError, match="seed: expected"):
        jax.jit(lambda q: ours.attention(q, k, v, dropout=0.5))(q)
    with pytest.raises(ValueError, match="layout: expected"):
        ours.attention(q, k, v, layout="BTDH")
    with pytest.raises(Exception, match="kv_lengths: expected 2 ints from 0 to 7"):
        ours.attention(q, k, v, kv_lengths=jnp.array([8, 1])).block_until_ready()


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (np.asarray(x) for x in arrays())
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "jax", None)
        with pytest.raises(ImportError, match=r"needs the package jax: pip install 'headway\[jax"):
            ours.attention(q, k, v)


def test_examples() -> None:
    with jax.enable_x64(False):
        failed, tried = doctest.testmod(ours)
    assert (failed, tried > 0) == (0, True)
