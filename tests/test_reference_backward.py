"""The gradients of the reference: central differences, torch's figures, and exact answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conformance import as_call, load_suite
from gradients import GRADIENT_TOLERANCE, assert_gradient, differences, named_gradients
from helpers import DTYPES, Array, dtype_of, lse_dtype, make, make_qkv
from hypothesis import given, settings
from hypothesis import strategies as st
from option_table import Options, Problem
from test_reference_options import OPTIONS, H, problem

from headway import reference

INF, NAN = np.inf, np.nan


def from_above(q: Array, v: Array) -> tuple[Array, Array]:
    """Return grad_out and grad_lse."""
    return make(31, (*q.shape[:3], v.shape[3])), make(32, q.shape[:3])


def gradients(q: Array, k: Array, v: Array, options: Options) -> dict[str, Array]:
    """Return all gradients of a loss of out and lse."""
    grad_out, grad_lse = from_above(q, v)
    out, lse = reference.attention(q, k, v, return_lse=True, **options)
    arrays = grad_out, q, k, v, out, lse
    return named_gradients(reference.attention_backward, arrays, options, grad_lse)


def check_differences(q: Array, k: Array, v: Array, options: Options) -> None:
    """Compare every gradient with central differences of the forward pass."""
    options = dict(options)
    if "sinks" in options:
        options["sinks"] = np.array(options["sinks"], np.float64)
    found = gradients(q, k, v, options)
    expected = differences(*from_above(q, v), q, k, v, options)
    assert found.keys() == expected.keys()
    for name, got in found.items():
        np.testing.assert_allclose(got, expected[name], rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", OPTIONS)
def test_central_differences(name: str) -> None:
    check_differences(*problem(), OPTIONS[name])


@pytest.mark.parametrize("shape", [(), (1,), (7,), (5, 1), (1, 1, 7), (4, 1, 1), (2, 1, 5, 7)])
def test_central_differences_of_a_mask_that_is_broadcast(shape: tuple[int, ...]) -> None:
    check_differences(*problem(), {"mask": make(33, shape) if shape else np.array(0.3)})


CHOSEN = (
    (None, "bool-mask", "padding-mask", "float-mask", "row-mask"),
    (None, "window", "two-sided"),
    (None, "alibi", "batch-alibi"),
    (None, "start", "int-align", "entry-aligns"),
)
SINGLE = ("softcap", "sinks", "lengths", "all-keys", "scale")


@settings(max_examples=25)
@given(
    st.tuples(*map(st.sampled_from, CHOSEN)),
    st.sets(st.sampled_from(SINGLE)),
    st.sampled_from([(5, 7), (4, 4), (7, 3), (1, 6)]),
    st.sampled_from([(4, 2), (3, 1), (2, 2)]),
    st.integers(0, 1000),
)
def test_central_differences_of_any_mix(
    chosen: tuple[str | None, ...],
    more: set[str],
    tokens: tuple[int, int],
    heads: tuple[int, int],
    seed: int,
) -> None:
    p = Problem("float64", heads=heads, tokens=tokens, head_dim=3, value_dim=2, seed=seed)
    names = [name for name in chosen if name is not None] + sorted(more)
    check_differences(*p.arrays(), p.options(names))


GOLDEN = [case for case in load_suite("golden") if case.has_gradients]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in GOLDEN])
def test_golden(case: Any) -> None:
    """Gradients by torch's autograd, in float64. A case with a mask holds none by it."""
    call = as_call(case, "float64")
    arrays, packed = (call.q, call.k, call.v), call.members or ()
    forward = reference.attention_varlen if packed else reference.attention
    backward = reference.attention_varlen_backward if packed else reference.attention_backward
    out, lse = forward(*arrays, *packed, return_lse=True, **call.options)
    options = {name: x for name, x in call.options.items() if name != "mask"}
    more = {"mask": call.options["mask"]} if "mask" in call.options else {}
    saved = call.grad_out, *arrays, out, lse, *packed
    found = named_gradients(backward, saved, options, **more)
    for name, got in found.items():
        allowed = (
            case.meta.get("tol", {}).get("float64", {}).get(name, GRADIENT_TOLERANCE["float64"])
        )
        assert_gradient(got, case.outputs[name], allowed, case.meta["scales"][name], name)


@pytest.mark.parametrize("name", ["none", "sinks", "window pair", "slopes of entries", "softcap"])
def test_packed(name: str) -> None:
    """Each sequence as it is alone; sinks are shared by all of them."""
    q, k, v = problem()
    options = OPTIONS[name]
    expected = gradients(q, k, v, options)
    packed = [x.swapaxes(1, 2).reshape(-1, x.shape[1], x.shape[3]) for x in (q, k, v)]
    grad_out, grad_lse = from_above(q, v)
    cuts = [np.arange(3) * x.shape[2] for x in (q, k)]
    out, lse = reference.attention_varlen(*packed, *cuts, return_lse=True, **options)
    above = grad_out.swapaxes(1, 2).reshape(out.shape), grad_lse.swapaxes(0, 1).reshape(lse.shape)
    arrays = above[0], *packed, out, lse, *cuts
    found = named_gradients(reference.attention_varlen_backward, arrays, options, above[1])
    assert found.keys() == expected.keys()
    for part, x in found.items():
        if part != "dsinks":
            assert x.flags.c_contiguous
            x = x.reshape(2, -1, *x.shape[1:]).swapaxes(1, 2)
        np.testing.assert_allclose(x, expected[part], rtol=1e-12, atol=1e-13, err_msg=part)


@pytest.mark.parametrize("layout", ["BHTD", "BTHD"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rank", [4, 3, 2])
def test_ranks_layouts_and_dtypes(rank: int, layout: str, dtype: str) -> None:
    arrays = make_qkv(3, dtype, heads=(1, 1) if rank == 2 else (4, 2), tokens=(3, 5), value_dim=6)
    out, lse = reference.attention(*arrays, return_lse=True)
    grad_out, grad_lse = from_above(*arrays[::2])
    grad_out, grad_lse = grad_out.astype(out.dtype), grad_lse.astype(lse.dtype)
    wide = [x.astype(np.float64) for x in (grad_out, *arrays, out, lse)]
    expected = reference.attention_backward(*wide, grad_lse=grad_lse.astype(np.float64))
    drop = (0, 0) if rank == 2 else (0,) * (4 - rank)

    def named(x: Array) -> Array:
        x = x.swapaxes(1, 2) if layout == "BTHD" and rank > 2 else x
        return np.asarray(x[drop])

    given = [named(x) for x in (grad_out, *arrays, out)]
    found = reference.attention_backward(
        *given, lse[drop], grad_lse=grad_lse[drop], layout=layout, sinks=None
    )
    for got, wanted in zip(found, expected, strict=True):
        assert got.dtype == dtype_of(dtype)
        assert got.flags.c_contiguous
        np.testing.assert_array_equal(got, named(wanted).astype(got.dtype))
    assert lse.dtype == lse_dtype(dtype)


def test_a_part_of_the_keys() -> None:
    """With the output and the lse of all keys, gradients by parts of the keys add up."""
    q, k, v = problem()
    grad_out, grad_lse = from_above(q, v)
    out, lse = reference.attention(q, k, v, causal=False, return_lse=True)
    whole = reference.attention_backward(
        grad_out, q, k, v, out, lse, grad_lse=grad_lse, causal=False
    )
    parts = [
        reference.attention_backward(
            grad_out, q, k[:, :, keys], v[:, :, keys], out, lse, grad_lse=grad_lse, causal=False
        )
        for keys in (slice(0, 3), slice(3, None))
    ]
    np.testing.assert_allclose(parts[0][0] + parts[1][0], whole[0], rtol=1e-12, atol=1e-13)
    for n in (1, 2):
        joined = np.concatenate([part[n] for part in parts], axis=2)
        np.testing.assert_allclose(joined, whole[n], rtol=1e-12, atol=1e-13)


def test_a_head_without_a_sink_has_no_gradient_by_it() -> None:
    q, k, v = problem()
    q[0, 1, 2] = NAN
    found = gradients(q, k, v, {"sinks": np.array([0.5, -INF, 1.0, -INF])[:H]})
    assert (found["dsinks"][[1, 3]] == 0).all()
    assert np.isfinite(found["dsinks"]).all()


@pytest.mark.parametrize("bad", [NAN, INF])
@pytest.mark.parametrize("name", ["none", "window", "lengths", "bool mask", "float mask", "all"])
def test_what_an_option_hides_does_not_exist(name: str, bad: float) -> None:
    """A key, and then a query, that is NaN: only who is seen or sees it has another gradient."""
    q, k, v = problem()
    options = OPTIONS[name]
    out, lse = reference.attention(q, k, v, return_lse=True, **options)
    seen = reference.attention_scores(q, k, **options) > -INF
    arrays = {"grad_out": from_above(q, v)[0], "q": q, "k": k, "v": v, "out": out, "lse": lse}
    clean = reference.attention_backward(**arrays, **options)

    def check(which: tuple[str, ...], token: int, rows: Array) -> None:
        changed = dict(arrays)
        for x in which:
            changed[x] = arrays[x].copy()
            changed[x][:, :, token] = bad
        found = reference.attention_backward(**changed, **options)
        keys = (seen & rows[..., None]).any(axis=2)
        keys = keys.reshape(len(keys), k.shape[1], -1, keys.shape[2]).any(axis=2)
        for got, same, reached in zip(found, clean, (rows, keys, keys), strict=True):
            np.testing.assert_allclose(got[~reached], same[~reached], rtol=1e-12, atol=1e-14)
        assert np.isnan(found[0][rows]).all()

    for j in range(k.shape[2]):
        check(("k", "v"), j, seen[..., j])
    for i in range(q.shape[2]):
        rows = np.zeros(seen.shape[:3], bool)
        rows[:, :, i] = seen[:, :, i].any(axis=2)
        check(("q", "grad_out", "out"), i, rows)
