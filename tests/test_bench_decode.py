"""The benchmark's rows of decoding: their arithmetic, what is asked of whom, claims, the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench_files import data, module, record, rows, write

claims = module("claims")
copies = module("rivals.copies")
decode_tables = module("decode_tables")
figures = module("figures")
folding = module("rivals.folding")
inputs = module("inputs")
results = module("results")
rivals = module("rivals")
sections = module("sections")

ROWS = {row.id: row for row in rows.decode_rows()}
FLOATS = ("float32", "bfloat16", "float16")
CACHES = (*FLOATS, "int8", "fp8_e4m3")


def small(dtype: str, heads: int = 4, kv_heads: int = 2, cold: bool = False) -> Any:
    """A decode row at a size that a test can afford."""
    row = rows.attention("decode-small", (2, heads, kv_heads, 1, 37, 16), dtype, cold=cold)
    return replace(row, kind="decode")


@pytest.fixture
def few_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cold rows go round two caches, not round some hundred MiB of them."""
    monkeypatch.setattr(copies, "cache_bytes", lambda: 0)
    monkeypatch.setattr(copies, "LEAST", 1)


def right(row: Any, prepared: Any, made: Any) -> None:
    chosen, wanted = inputs.expected(row, made)
    for _ in range(3):  # goes round
        error = inputs.error_of(prepared.result(prepared.call()), chosen, wanted)
        assert error < inputs.TOLERANCES[row.dtype]


def test_the_rows_are_those_that_the_claims_speak_of() -> None:
    problems = {(4096, 32, 8, 1), (1024, 32, 8, 8), (16384, 8, 1, 1), (2048, 32, 32, 1)}
    for dtype in CACHES:
        for cold in (True, False):
            found = {
                (row.num_keys, row.num_heads, row.num_kv_heads, row.batch)
                for row in ROWS.values()
                if (row.dtype, row.cold) == (dtype, cold) and "growth" not in row.name
            }
            assert found == problems
    assert all(row.num_queries == 1 and row.head_dim == 128 for row in ROWS.values())
    lengths = sorted(row.num_keys for row in ROWS.values() if "growth" in row.name)
    assert lengths[::3] == [1024 * 2**n for n in range(7)]


def test_bytes_and_work_of_a_row() -> None:
    row = ROWS["decode-4096-gqa/bfloat16/cold"]
    assert row.kv_bytes == 2 * 8 * 4096 * 128 * 2
    assert row.flops == 4 * 32 * 4096 * 128
    assert replace(row, dtype="int8").kv_bytes == row.kv_bytes // 2
    assert replace(row, dtype="fp8_e4m3").kv_bytes == row.kv_bytes // 2


def test_cold_rows_go_round_at_least_192_mib(monkeypatch: pytest.MonkeyPatch) -> None:
    row = ROWS["decode-16384-mqa/bfloat16/cold"]
    for cache in (0, 32 * 2**20, 480 * 2**20):
        monkeypatch.setattr(copies, "cache_bytes", lambda size=cache: size)
        around = copies.copies_wanted(row, row.kv_bytes) * row.kv_bytes
        assert max(192 * 2**20, cache) <= around <= 700 * 2**20
    assert copies.copies_wanted(replace(row, cold=False), row.kv_bytes) == 1


@pytest.mark.usefixtures("few_copies")
def test_calls_go_round_the_copies() -> None:
    made: list[int] = []

    def make() -> Any:
        made.append(len(made))
        return lambda number=made[-1]: number

    call = copies.rotating(small("float32", cold=True), make)
    assert [call() for _ in range(5)] == [0, 1, 0, 1, 0]
    assert copies.rotating(small("float32"), make)() == 2
    assert copies.rotating(rows.attention("p", (1, 1, 1, 4, 4), "float32", cold=True), make)() == 3


def test_who_takes_part() -> None:
    def names(row: Any) -> set[str]:
        return {c.name for c in rivals.offered(row)}

    wanted = {"vllm", "torch", "torch-flex", "ort-gqa", "ort-attention", "openvino", "jax"}
    assert names(ROWS["decode-2048/float16/cold"]) == {"headway", "read", *wanted}
    assert "vllm" in names(ROWS["decode-2048/fp8_e4m3/cold"])
    assert names(ROWS["decode-2048/int8/warm"]) == {"headway", "headway-bfloat16", "read"}
    assert names(ROWS["decode-growth-1024/int8/cold"]) == {"headway", "read"}
    assert not rivals.CONTESTANTS["read"].rival


@pytest.mark.parametrize("dtype", ["int8", "fp8_e4m3"])
def test_inputs_of_quantised_rows_are_what_a_cache_stores(dtype: str) -> None:
    pytest.importorskip("ml_dtypes")
    made = inputs.make_inputs(small(dtype))
    assert {made[name].dtype.name for name in "qkv"} == {"float32"}
    for name in "kv":
        again = inputs.rounded(made[name], dtype)
        np.testing.assert_allclose(again, made[name], rtol=1e-6)
    whole = inputs.make_inputs(small("float32"))
    apart = np.abs(whole["k"] - made["k"])
    largest = np.abs(whole["k"]).max(axis=-1, keepdims=True)
    limit = largest / 254 if dtype == "int8" else np.abs(whole["k"]) / 16 + 2.0**-10
    assert (apart <= limit * 1.0001).all()
    assert apart.max() > 0


@pytest.mark.usefixtures("few_copies")
@pytest.mark.parametrize("cold", [True, False])
@pytest.mark.parametrize("dtype", CACHES)
def test_headway_s_own_caches_are_right(dtype: str, cold: bool) -> None:
    pytest.importorskip("ml_dtypes")
    own = module("rivals.own")
    row = small(dtype, cold=cold)
    made = inputs.make_inputs(row)
    prepared = own.PREPARE["headway"](row, made)
    right(row, prepared, made)
    assert prepared.facts["nbytes"] >= row.kv_bytes
    if dtype not in FLOATS:
        right(row, own.PREPARE["headway-bfloat16"](row, made), made)


def test_the_plain_read_takes_whole_blocks_only() -> None:
    own = module("rivals.own")
    row = replace(small("float32"), batch=1, num_keys=16384, num_kv_heads=4)
    made = inputs.make_inputs(row)
    prepared = own.PREPARE["read"](row, made)
    assert prepared.call() > 0
    right(row, prepared, made)
    with pytest.raises(rivals.Unsupported, match="whole blocks of 1 MiB"):
        own.PREPARE["read"](replace(row, num_keys=1000), made)


@pytest.mark.usefixtures("few_copies")
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("dtype", FLOATS)
def test_pytorch_s_calls_are_right(dtype: str, heads: tuple[int, int]) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("ml_dtypes")
    pytorch = module("rivals.pytorch")
    for cold in (True, False):
        row = small(dtype, *heads, cold=cold)
        made = inputs.make_inputs(row)
        right(row, pytorch.PREPARE["torch"](row, made), made)
        right(row, pytorch.sdpa(row, made), made)


@pytest.mark.usefixtures("few_copies")
@pytest.mark.filterwarnings("ignore")
def test_flex_attention_s_call_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    flex = module("rivals.flex")
    monkeypatch.setattr(flex.torch, "compile", lambda function, **_: function)
    for cold in (True, False):
        row = small("float32", cold=cold)
        made = inputs.make_inputs(row)
        right(row, flex.PREPARE["torch-flex"](row, made), made)


def test_folded_heads_say_the_same() -> None:
    plain = module("rivals.plain_numpy").attention
    row = small("float32", 6, 2)
    made = inputs.make_inputs(row)
    fewer, same = folding.folded(row, made)
    assert (fewer.num_heads, fewer.num_queries) == (2, 3)
    assert same["q"].shape == (2, 2, 3, 16)
    assert np.shares_memory(same["k"], made["k"])
    asked: list[int] = []

    def prepare(given: Any, arrays: Any) -> Any:
        asked.append(given.num_heads)
        found = plain(replace(given, num_queries=1, num_heads=6), made)
        if given.num_heads == 6:
            return replace(found, call=lambda: (sum(range(400_000)), found.call())[1])
        return replace(found, result=lambda out: found.result(out).reshape(2, 2, 3, 16))

    chosen = folding.quicker(prepare)(row, made)
    assert chosen.note == "folded heads"
    assert asked == [6, 2]
    right(row, chosen, made)
    folding.quicker(prepare)(replace(row, kind="attention"), made)
    assert asked == [6, 2, 6]


def decoded(name: str, times: dict[str, float | str], **facts: float) -> dict[str, Any]:
    made = record(ROWS[name], times, peak=1000.0)
    made["entries"]["headway"] |= facts
    return made


def test_the_bound_is_the_larger_one() -> None:
    name = "decode-4096-gqa/float32/cold"
    work = ROWS[name].flops / (0.7 * 1000e9)
    slow = decoded(name, {"headway": 0.002, "read": 0.001, "vllm": 0.004})
    assert figures.bounds_of(data(slow), slow) == {"memory": 0.001, "FLOPs": pytest.approx(work)}
    assert figures.share(data(slow), slow, slow["entries"]["headway"]) == pytest.approx(0.5)
    assert figures.share(data(slow), slow, slow["entries"]["vllm"]) == pytest.approx(0.25)
    quick = decoded(name, {"headway": 2 * work, "read": work / 2})
    assert figures.share(data(quick), quick, quick["entries"]["headway"]) == pytest.approx(0.5)
    alone = decoded(name, {"headway": 1.0})
    assert figures.bounds_of(data(alone), alone) == {}
    assert figures.share(data(alone), alone, alone["entries"]["headway"]) is None


def verdicts(*records: dict[str, Any]) -> dict[str, Any]:
    return {verdict.title: verdict for verdict in claims.judge(data(*records))}


def test_claims_about_bounds_and_rivals() -> None:
    found = verdicts(
        decoded("decode-4096-gqa/float32/cold", {"headway": 1.0, "read": 0.9, "vllm": 1.2}),
        decoded("decode-2048/float32/cold", {"headway": 1.0, "read": 0.8, "torch": 1.1}),
        decoded("decode-2048/float32/warm", {"headway": 1.0, "read": 0.1, "torch": 0.9}),
        decoded("decode-4096-gqa/float16/cold", {"headway": 1.0, "read": 0.9, "vllm": 1.7}),
        decoded("decode-2048/int8/cold", {"headway": 1.0, "read": 0.7, "headway-bfloat16": 0.9}),
        decoded("decode-2048/fp8_e4m3/cold", {"headway": 1.0, "read": 0.1, "vllm": 1.5}),
    )
    plain = found["decode, cold, bound over time"]
    assert plain.short() == [(pytest.approx(0.8), "decode-2048/float32/cold")]
    assert not found["decode, cold, int8, bound over time"].failed
    assert not found["decode, cold, against every rival"].failed
    assert len(found["decode, cold, against every rival"].found) == 4
    assert found["decode, warm, against every rival"].failed
    grouped = found["decode, cold, grouped heads, float32, against the best rival"]
    assert grouped.short() == [(pytest.approx(1.2), "decode-4096-gqa/float32/cold, vllm")]
    assert not found["decode, cold, grouped heads, 16 bits, against the best rival"].failed
    assert found["decode, cold, quantised caches against a bfloat16 one"].failed


def test_claims_about_growth_and_memory() -> None:
    def grown(length: int, seconds: float, nbytes: float, seen: float) -> dict[str, Any]:
        facts = {"nbytes": nbytes * length * 1024, "resident": seen * length * 1024}
        return decoded(f"decode-growth-{length}/float32/cold", {"headway": seconds}, **facts)

    found = verdicts(grown(8192, 1.0, 1, 1), grown(16384, 2.0, 1, 1.02), grown(32768, 6, 1.2, 1.2))
    time = found["decode, time per key at 2 L and 4 L over L"]
    assert (
        time.short()
        == [
            (pytest.approx(1.5), "decode-growth-32768/float32/cold over 8192"),
            (pytest.approx(1.5), "decode-growth-32768/float32/cold over 16384"),
        ]
        or len(time.short()) == 2
    )
    assert found["decode, memory seen over nbytes"].weakest[0] == pytest.approx(1.02)
    assert found["decode, nbytes over the bytes stored"].short() == [
        (pytest.approx(1.2), "decode-growth-32768/float32/cold")
    ]
    assert not found["decode, cold, bound over time"].found


def test_the_section_is_rewritten_and_kept(tmp_path: Path) -> None:
    out = tmp_path / "RESULTS.md"
    page = ["--out", str(out), "--no-picture"]
    prefill = rows.attention("prefill-1024", rows.ATTENTION["prefill-1024"], "float32")
    grid = write(tmp_path / "grid.json", record(prefill, {"headway": 1.0, "torch": 2.0}))
    cold = {"headway": 0.002, "read": 0.001, "vllm": 0.001, "jax": "too large"}
    beside = {"headway": 0.001, "read": 0.001, "headway-bfloat16": 0.0015}
    file = write(
        tmp_path / "decode.json",
        decoded("decode-4096-gqa/float32/cold", cold),
        decoded("decode-2048/int8/warm", beside),
        decoded("decode-growth-8192/float32/cold", {"headway": 0.001}, nbytes=2**23),
        decoded("decode-growth-16384/float32/cold", {"headway": 0.002}, nbytes=2**24),
    )
    assert results.main([grid, *page]) == 0
    before = out.read_text(encoding="utf-8").partition(decode_tables.BEGIN)[0]
    assert results.main([file, *page, "--decode"]) == 0
    text = out.read_text(encoding="utf-8")
    assert text.startswith(before)
    start = "| (1, 32, 8, 1 over 4096, 128) | cold | 1.00 (memory) | 33.6 | 2.00 (4.00) | 50% (50%)"
    assert f"{start} | 16.8 | **0.50** | vLLM | *1.00 (0.50)* |" in text
    assert "| int8 | (1, 32, 32, 1 over 2048, 128) | warm |" in text
    assert "| 1.50 (1.50) | - |" in text
    assert "| float32 | 16,384 | 2.00 (4.00) | 122.1 | 2.00 | 8.4 | - | 16.00 | - |" in text
    assert "* JAX: too large (decode-4096-gqa/float32/cold)" in text
    assert results.main([grid, *page]) == 0
    assert out.read_text(encoding="utf-8") == text
    with pytest.raises(SystemExit, match="no row of decoding"):
        results.main([grid, *page, "--decode"])
    assert sections.NOTHING in text  # of the options, which neither file has
