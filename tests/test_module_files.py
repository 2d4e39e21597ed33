"""Modules in safetensors files, pickled and copied."""

from __future__ import annotations

import copy
import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import DTYPES, Array, assert_same_bits
from module_helpers import CLASSES, Module, assert_same_module, build

from headway import CausalAttention, MultiHeadAttention, StackedMultiHeadAttention

# Files --------------------------------------------------------------------------------------------


@pytest.fixture
def safetensors() -> Any:
    return pytest.importorskip("safetensors.numpy")


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "biases"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cls", CLASSES)
def test_save_and_load(
    cls: type[Module], dtype: str, plain: bool, tmp_path: Path, safetensors: Any
) -> None:
    module = build(cls, dtype, plain=plain)
    path = tmp_path / "module.safetensors"
    module.save(path)
    assert_same_module(cls.load(path), module)
    assert_same_module(cls.load(str(path)), module)
    assert os.listdir(tmp_path) == [path.name]


def test_the_file_holds_the_state_dict_and_the_numbers_of_heads(
    tmp_path: Path, safetensors: Any
) -> None:
    module = build(MultiHeadAttention)
    path = tmp_path / "m.safetensors"
    module.save(path)
    tensors = safetensors.load_file(path)
    assert sorted(tensors) == sorted(module.state_dict())
    for name, array in module.state_dict().items():
        assert_same_bits(tensors[name], array)
    assert header(path)["__metadata__"] == {
        "class": "MultiHeadAttention",
        "format_version": "1",
        "num_heads": "4",
        "num_kv_heads": "2",
    }


def header(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    found: dict[str, Any] = json.loads(content[8 : 8 + size])
    return found


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, safetensors: Any
) -> None:
    path = tmp_path / "m.safetensors"
    old, new = build(CausalAttention), build(MultiHeadAttention)
    old.save(path)
    before = path.read_bytes()

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, step, fail)
        with pytest.raises(OSError, match="No space left"):
            new.save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name]
    new.save(path)
    assert_same_module(MultiHeadAttention.load(path), new)


def test_save_keeps_to_links_and_to_the_umask(tmp_path: Path, safetensors: Any) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    target, link = folder / "real.safetensors", tmp_path / "link.safetensors"
    target.write_bytes(b"old")
    link.symlink_to(target)
    module = build(CausalAttention)
    module.save(link)
    assert link.is_symlink()
    assert_same_module(CausalAttention.load(target), module)
    plain = tmp_path / "plain"
    plain.touch()
    assert target.stat().st_mode == plain.stat().st_mode
    with pytest.raises(FileNotFoundError):
        module.save(tmp_path / "missing" / "m.safetensors")
    with pytest.raises(OSError, match=r".*"):
        module.save(folder)


def test_load_refuses_what_is_not_its_own(tmp_path: Path, safetensors: Any) -> None:
    path = tmp_path / "m.safetensors"
    with pytest.raises(FileNotFoundError):
        CausalAttention.load(path)

    build(StackedMultiHeadAttention).save(path)
    with pytest.raises(ValueError, match=r"load it with headway\.StackedMultiHeadAttention\.load"):
        MultiHeadAttention.load(path)

    def not_loaded(text: str) -> None:
        with pytest.raises(ValueError, match=f"path: expected {text}") as caught:
            CausalAttention.load(path)
        assert str(path) in str(caught.value)

    for content in (b"", b"not a safetensors file at all", path.read_bytes()[:-4]):
        path.write_bytes(content)
        not_loaded("a safetensors file")
    state = build(CausalAttention).state_dict()
    head = {"class": "CausalAttention", "format_version": "1"}
    safetensors.save_file(state, path)
    not_loaded("a file written by CausalAttention.save")
    safetensors.save_file(state, path, {**head, "format_version": "2"})
    not_loaded("format version 1")
    safetensors.save_file(state | {"more": np.ones(1)}, path, head)
    not_loaded("a sound CausalAttention")
    safetensors.save_file(state | {"W_key.weight": np.ones((8, 6), np.int32)}, path, head)
    not_loaded("float32, float64, float16 or bfloat16")
    safetensors.save_file(state, path, {**head, "class": "MultiHeadAttention"})
    with pytest.raises(ValueError, match="a sound MultiHeadAttention"):
        MultiHeadAttention.load(path)


def test_without_the_extra_one_line_tells_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    path = tmp_path / "m.safetensors"
    for call in (lambda: build(CausalAttention).save(path), lambda: CausalAttention.load(path)):
        with pytest.raises(ImportError) as caught:
            call()
        assert str(caught.value) == (
            "save and load need the package safetensors: pip install 'headway[io]'"
        )
    assert not path.exists()


def test_bfloat16_without_ml_dtypes_tells_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, safetensors: Any
) -> None:
    path = tmp_path / "m.safetensors"
    build(CausalAttention, "bfloat16").save(path)
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ImportError) as caught:
        CausalAttention.load(path)
    assert str(caught.value) == (
        "bfloat16 arrays need the package ml_dtypes: pip install 'headway[bfloat16]'"
    )


# Pickling and copies ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cls", CLASSES)
def test_pickling_and_copies(cls: type[Module], dtype: str) -> None:
    module = build(cls, dtype)
    pickled = [pickle.loads(pickle.dumps(module, protocol)) for protocol in (2, 5)]
    for twin in (*pickled, copy.copy(module), copy.deepcopy(module)):
        assert_same_module(twin, module)
        first, own = next(iter(all_weights(twin))), next(iter(all_weights(module)))
        assert not first.flags.writeable
        assert not np.shares_memory(first, own)
        head = twin[0] if isinstance(twin, StackedMultiHeadAttention) else twin
        head.w_query = np.zeros_like(head.w_query)
    assert next(iter(all_weights(module))).any()


def all_weights(module: Module) -> list[Array]:
    heads = list(module) if isinstance(module, StackedMultiHeadAttention) else [module]
    return [w for head in heads for w in (head.w_query, head.w_key, head.w_value)]
