"""Dropout of the modules: in training alone, the same in both stages, and in the gradients."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gradients import GRADIENT_TOLERANCE
from helpers import DTYPES, Array, assert_close, assert_same_bits, dtype_of, make
from module_helpers import CLASSES, Module, both_stages, build, renamed

import headway
from headway import CausalAttention, MultiHeadAttention, StackedMultiHeadAttention

DROPOUT: dict[str, Any] = {"training": True, "seed": 7}


def dropping(cls: type[Module], dtype: Any = np.float32, rate: float = 0.3) -> Module:
    module = build(cls, dtype)
    module.dropout = rate
    return module


@pytest.mark.parametrize("cls", CLASSES)
def test_only_in_training(cls: type[Module]) -> None:
    module, x = dropping(cls), make(1, (3, 9, 6), "float32")
    expected = build(cls)(x)
    for options in ({}, {"seed": 7}, {"training": False}, {"training": False, "seed": 3}):
        assert_same_bits(module(x, **options), expected)  # type: ignore[arg-type]
        assert_same_bits(module.forward(x, save=True, **options), expected)  # type: ignore[arg-type]
    assert_same_bits(module.heads(x), build(cls).heads(x))
    dropped = module(x, **DROPOUT)
    assert (dropped != expected).any()
    assert_same_bits(module(x, **DROPOUT), dropped)
    assert_same_bits(module.forward(x, save=True, **DROPOUT), dropped)
    assert (module(x, training=True, seed=8) != dropped).any()
    assert_same_bits(build(cls)(x, training=True), expected)  # nothing to drop: no seed needed


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_module_is_its_projections_and_the_attention(dtype: str, isa: str, threads: int) -> None:
    module = dropping(MultiHeadAttention, dtype)
    assert isinstance(module, MultiHeadAttention)
    x = make(2, (2, 70, 6), dtype)
    z = headway.attention(*module._projected(x), layout="BTHD", dropout=0.3, seed=7)
    assert module._out is not None
    assert_same_bits(module(x, **DROPOUT), module._out(z.reshape(2, 70, 8)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_both_stages_drop_the_same(dtype: str, isa: str) -> None:
    options = {"num_heads": 5, "qkv_bias": True, "out_proj": True, "dropout": 0.4}
    stacked, merged = both_stages(23, 40, seed=4, dtype=dtype_of(dtype), **options)
    x, grad = make(5, (2, 33, 23), dtype), make(6, (2, 33, 40), dtype)
    for shape in ((2, 33), (33,)):
        rows, above = x[: len(shape)].reshape(-1, 23), grad.reshape(-1, 40)
        rows, above = (a[: np.prod(shape)].reshape(*shape, -1) for a in (rows, above))
        assert_same_bits(
            stacked.forward(rows, save=True, **DROPOUT), merged.forward(rows, save=True, **DROPOUT)
        )
        one, other = stacked.backward(above), merged.backward(above)
        for name, array in renamed(stacked, other.weights).items():
            assert_same_bits(one.weights[name], array, name)
        assert_close(one.x, other.x.astype(np.float64), GRADIENT_TOLERANCE[dtype], "x")


@pytest.mark.parametrize("cls", CLASSES)
def test_central_differences(cls: type[Module], isa: str) -> None:
    module, x = dropping(cls, "float64"), make(1, (2, 7, 6))
    grad = make(2, (2, 7, 8))
    module.forward(x, save=True, **DROPOUT)
    got = module.backward(grad)
    step = 1e-5

    def loss(x: Array, **weights: Array) -> float:
        other = copy.copy(module)
        other.assign(weights)
        return float((other(x, **DROPOUT) * grad).sum())

    way = make(3, x.shape)
    slope = (loss(x + step * way) - loss(x - step * way)) / (2 * step)
    assert slope == pytest.approx((got.x * way).sum(), abs=1e-6)
    for name, weight in module.parameters().items():
        way = make(4, weight.shape)
        ahead, behind = (loss(x, **{name: weight + s * step * way}) for s in (1, -1))
        slope = (ahead - behind) / (2 * step)
        assert slope == pytest.approx((got.weights[name] * way).sum(), abs=1e-6), name


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_gradients_of_the_dtypes(dtype: str, isa: str, threads: int) -> None:
    """Those of the same numbers in float64."""
    module = MultiHeadAttention.init(
        24, 32, num_heads=4, num_kv_heads=2, out_proj=True, dropout=0.2, dtype=dtype_of(dtype)
    )
    wide = MultiHeadAttention.init(
        24, 32, num_heads=4, num_kv_heads=2, out_proj=True, dropout=0.2, dtype=np.float64
    )
    wide.assign({name: w.astype(np.float64) for name, w in module.parameters().items()})
    x, grad = make(1, (2, 50, 24), dtype), make(2, (2, 50, 32), dtype)
    module.forward(x, save=True, **DROPOUT)
    wide.forward(x.astype(np.float64), save=True, **DROPOUT)
    got, expected = module.backward(grad), wide.backward(grad.astype(np.float64))
    assert_close(got.x, expected.x, GRADIENT_TOLERANCE[dtype], "x")
    for name, array in expected.weights.items():
        assert_close(got.weights[name], array, GRADIENT_TOLERANCE[dtype], name)


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.usefixtures("any_threads")
def test_threads(cls: type[Module], isa: str) -> None:
    module, x = dropping(cls), make(2, (2, 130, 6), "float32")
    results = []
    for count in (1, 2, 5):
        headway.set_num_threads(count)
        grad = module.forward(x, save=True, **DROPOUT)
        results.append([grad, *module.backward(grad).weights.values()])
    for got in results[1:]:
        for array, expected in zip(got, results[0], strict=True):
            assert_same_bits(array, expected)


def test_the_draw_of_the_forward_pass_counts() -> None:
    """Another dropout afterwards changes nothing in the gradients."""
    module, x = dropping(MultiHeadAttention), make(1, (5, 6), "float32")
    grad = module.forward(x, save=True, **DROPOUT)
    expected = module.backward(grad)
    module.forward(x, save=True, **DROPOUT)
    module.dropout = 0.9
    assert_same_bits(module.backward(grad).x, expected.x)


# The attribute ------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", CLASSES)
def test_dropout_stays_with_the_module(cls: type[Module]) -> None:
    module = dropping(cls)
    others = [copy.copy(module), copy.deepcopy(module), pickle.loads(pickle.dumps(module))]
    if isinstance(module, StackedMultiHeadAttention):
        others += [module.fuse(), module[1], StackedMultiHeadAttention(list(module))]
    if isinstance(module, MultiHeadAttention):
        others += [module.split()]
    for other in others:
        assert other.dropout == 0.3
        assert "dropout=0.3, " in repr(other)
    assert "dropout" not in repr(build(cls))


@pytest.mark.parametrize("cls", CLASSES)
def test_dropout_in_files(cls: type[Module], tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    for rate in (0.0, 0.1):
        module = dropping(cls, rate=rate)
        module.save(tmp_path / "module.safetensors")
        assert cls.load(tmp_path / "module.safetensors").dropout == rate


def test_heads_of_one_dropout() -> None:
    heads = [CausalAttention.init(6, 2, dropout=rate) for rate in (0.1, 0.2)]
    text = r"^heads\[1\]: expected dropout 0.1 like heads\[0\], got 0.2; assign heads\[1\].dropout$"
    with pytest.raises(ValueError, match=text):
        StackedMultiHeadAttention(heads)
    heads[1].dropout = 0.1
    module = StackedMultiHeadAttention(heads)
    module[1].dropout = 0.3
    assert "dropout=[0.1, 0.3]" in repr(module)
    text = r"^dropout: expected heads of one dropout, got \[0.1, 0.3\]; assign module.dropout$"
    with pytest.raises(ValueError, match=text):
        module(np.zeros((5, 6), np.float32), **DROPOUT)
    module.dropout = 0.5
    assert [head.dropout for head in module] == [0.5, 0.5]


def test_heads_of_one_width_in_training() -> None:
    heads = [CausalAttention.init(6, size, dropout=0.1) for size in (2, 3)]
    module, x = StackedMultiHeadAttention(heads), np.zeros((5, 6), np.float32)
    module(x)
    with pytest.raises(ValueError, match=r"^heads: expected heads of one head_dim, got \[2, 3\]; "):
        module(x, **DROPOUT)


REFUSED: dict[str, tuple[type[Exception], dict[str, Any], str]] = {
    "no seed": (
        ValueError, {"training": True},
        "seed: expected an int from 0 to 2**64 - 1 with dropout=0.3, got None; "
        "pass e.g. seed=0, and another one for every call that is to drop others",
    ),
    "a seed below 0": (
        ValueError, {"seed": -1},
        "seed: expected an int from 0 to 2**64 - 1, got -1; pass e.g. seed % 2**64",
    ),
    "training": (
        TypeError, {"training": "yes"},
        "training: expected True or False, got 'yes'",
    ),
    "a cache": (
        ValueError, {**DROPOUT, "cache": headway.KVCache(1, 2, 8, 2)},
        "cache: expected None with save=True or training=True, got a cache; "
        "pass all tokens in one x",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_calls(name: str) -> None:
    error, options, text = REFUSED[name]
    module, x = dropping(MultiHeadAttention), np.zeros((5, 6), np.float32)
    for call in (module, module.forward):
        with pytest.raises(error) as caught:
            call(x, **options)
        assert str(caught.value).startswith(text)


@pytest.mark.parametrize(
    ("rate", "error"), [(1.0, ValueError), (-0.1, ValueError), ("a", TypeError)]
)
def test_refused_dropout(rate: Any, error: type[Exception]) -> None:
    module = build(MultiHeadAttention)
    with pytest.raises(error, match=r"^dropout: expected a "):
        module.dropout = rate
    assert module.dropout == 0.0
    for cls, options in ((CausalAttention, {}), (StackedMultiHeadAttention, {"num_heads": 2}),
                         (MultiHeadAttention, {"num_heads": 2})):  # fmt: skip
        with pytest.raises(error, match=r"^dropout: expected a "):
            cls.init(6, 8, dropout=rate, **options)
