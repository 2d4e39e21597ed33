"""What the library claims to reach, judged on a result file; each number is a setting."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import backward_claims
import decode_claims
from figures import (
    Data,
    Record,
    best_rival,
    best_share,
    geometric_mean,
    lead,
    option_cost,
    rivals_of,
    row_of,
    timed,
)
from verdicts import Verdict, records

DEFAULTS: dict[str, float] = {
    "float32": 1.03,
    "float32-mean": 1.15,
    "torch-short": 1.8,
    "torch-long": 1.4,
    "bfloat16-short": 1.8,
    "bfloat16": 1.35,
    "float16": 1.12,
    "share-float32": 0.84,
    "share-float32-512": 0.80,
    "share-float32-128": 0.72,
    "share-avx2": 0.78,
    "share-bfloat16": 0.78,
    "share-float64": 0.75,
    "two-threads": 1.9,
    "study": 0.95,
    "growth": 0.95,
    "chunk-16": 0.70,
    "chunk-4": 0.45,
    "tiny": 1.0,
    "module-float32": 1.25,
    "module-bfloat16": 1.3,
    "module-parts": 1.05,
    "projection-share": 0.95,
    "projection": 1.0,
    "stages": 1.0,
    "memory-mib": 64.0,
    "option": 1.10,
    "option-softcap": 1.25,
    "option-float-mask": 1.20,
    "option-all": 1.60,
    "option-rivals": 1.0,
    "window-128": 12.0,
    "packed": 1.3,
    **decode_claims.DEFAULTS,
    **backward_claims.DEFAULTS,
}
"""Times as fast as a rival, shares of a peak, or (module-parts, memory-mib, options over the plain
call per allowed pair, packed sequences over the longest one) at most so much."""


def prefills_and_chunks(data: Data, dtype: str) -> Iterator[tuple[str, Record]]:
    """Attention beside rivals; the smallest row is judged by its overhead alone."""
    for name, record in records(data, "attention", dtype=dtype, contestants=()):
        if row_of(record).name != "tiny" and "headway" in timed(record):
            yield name, record


def against_rivals(data: Data, settings: dict[str, float]) -> Iterator[Verdict]:
    for dtype in ("float32", "bfloat16", "float16"):
        plain = Verdict(f"{dtype} against the best rival", settings[dtype])
        short = Verdict("bfloat16 up to T = 1,024, D = 64", settings["bfloat16-short"])
        leads = []
        for name, record in prefills_and_chunks(data, dtype):
            rival = best_rival(record)
            if rival is None:
                continue
            row, value = row_of(record), lead(record, rival)
            leads.append(value)
            small = dtype == "bfloat16" and row.num_keys <= 1024 and row.head_dim == 64
            (short if small else plain).add(value, f"{name}, {rival}")
        yield plain
        if dtype == "bfloat16":
            yield short
        if dtype == "float32":
            mean = Verdict(
                "float32 against the best rival, geometric mean", settings["float32-mean"]
            )
            mean.add(geometric_mean(leads) if leads else None, f"{len(leads)} rows")
            yield mean
    limits = {"torch-short": (0, 512), "torch-long": (513, 1 << 30)}
    for setting, (least, most) in limits.items():
        title = "float32 against PyTorch " + ("up to T = 512" if most == 512 else "beyond")
        verdict = Verdict(title, settings[setting])
        for name, record in prefills_and_chunks(data, "float32"):
            if least <= row_of(record).num_keys <= most and "torch" in timed(record):
                verdict.add(lead(record, "torch"), name)
        yield verdict
    tiny = Verdict("call overhead, (1, 1, 8, 16) against every rival", settings["tiny"])
    for name, record in records(data, "attention", name="tiny"):
        rival = best_rival(record)
        if rival and "headway" in timed(record):
            tiny.add(lead(record, rival), f"{name}, {rival}")
    yield tiny


def shares(data: Data, settings: dict[str, float]) -> Iterator[Verdict]:
    """Of one thread, from the rows that headway has for itself."""
    wanted: list[tuple[str, str, str | None, Callable[[int], bool]]] = [
        ("share-float32", "float32", "avx512", lambda t: t >= 1024),
        ("share-float32-512", "float32", "avx512", lambda t: t == 512),
        ("share-float32-128", "float32", "avx512", lambda t: t == 128),
        ("share-avx2", "float32", "avx2", lambda t: t >= 1024),
        ("share-bfloat16", "bfloat16", "avx512bf16", lambda t: t >= 1024),
        ("share-float64", "float64", None, lambda t: t >= 1024),
    ]
    for setting, dtype, isa, lengths in wanted:
        verdict = Verdict(f"share of the peak, {setting.removeprefix('share-')}", settings[setting])
        for name, record in records(data, "attention", dtype=dtype, isa=isa):
            row, entry = row_of(record), timed(record).get("headway@1")
            if entry and row.num_queries == row.num_keys and lengths(row.num_keys):
                verdict.add(best_share(data, record, entry), name)
        yield verdict
    two = Verdict("two threads against one", settings["two-threads"])
    study = Verdict("against the study's program", settings["study"])
    for name, record in records(data, "attention"):
        entries = timed(record)
        if {"headway@1", "headway@2"} <= set(entries):
            two.add(lead(record, "headway@1", "headway@2"), name)
        own = "headway@1" if "headway@1" in entries else "headway"
        if {"study", own} <= set(entries) and row_of(record).name != "tiny":
            study.add(lead(record, "study", own), name)
    yield from (two, study)
    for setting in ("chunk-16", "chunk-4"):
        verdict = Verdict(f"share of the peak, float32 {setting}", settings[setting])
        for name, record in records(data, "attention", name=setting, dtype="float32"):
            if "headway" in timed(record):
                verdict.add(best_share(data, record, timed(record)["headway"]), name)
        yield verdict


def growth(data: Data, settings: dict[str, float]) -> Verdict:
    """GFLOP/s of the long rows as shares of the 4,096 tokens' rate."""
    verdict = Verdict("rate at T = 16,384 and 131,072 against T = 4,096", settings["growth"])
    rate = {
        name: timed(record)["headway"]["gflops"]
        for name, record in data["rows"].items()
        if "headway" in timed(record)
    }
    for dtype in ("float32", "bfloat16"):
        base = rate.get(f"prefill-4096/{dtype}/BHTD")
        for tokens in (16384, 131072):
            name = f"prefill-{tokens}/{dtype}/BHTD"
            if base and name in rate:
                verdict.add(rate[name] / base, name)
    return verdict


def modules(data: Data, settings: dict[str, float]) -> Iterator[Verdict]:
    for dtype in ("float32", "bfloat16"):
        verdict = Verdict(f"module, {dtype}, against every rival", settings[f"module-{dtype}"])
        parts = Verdict(f"module, {dtype}, over its parts", settings["module-parts"], at_most=True)
        for name, record in records(data, "module", dtype=dtype):
            entries = timed(record)
            for rival in rivals_of(record) if "headway" in entries else ():
                verdict.add(lead(record, rival), f"{name}, {rival}")
            alone = [entries.get(f"headway-{part}") for part in ("products", "attention")]
            if "headway" in entries and all(alone):
                together = sum(part["wall_min"] for part in alone if part)
                parts.add(entries["headway"]["wall_min"] / together, name)
        yield from (verdict, parts)
    share = Verdict("Projection, 1,024 rows, share of the peak", settings["projection-share"])
    projection = Verdict("Projection against BLAS and PyTorch", settings["projection"])
    for name, record in records(data, "projection"):
        row, own = row_of(record), timed(record).get("headway")
        if own is None:
            continue
        if row.num_queries == 1024 and not row.cold and row.dtype != "float16":
            share.add(best_share(data, record, own), name)
        for rival in rivals_of(record):
            projection.add(lead(record, rival), f"{name}, {rival}")
    yield from (share, projection)
    stages = Verdict("stage 2 against stage 1", settings["stages"])
    for name, record in records(data, "stages"):
        if {"stage-1", "stage-2"} <= set(timed(record)):
            stages.add(lead(record, "stage-1", "stage-2"), name)
    yield stages


def options(data: Data, settings: dict[str, float]) -> Iterator[Verdict]:
    """Costs over the plain call beside them, and every rival that has the option."""
    single = {"softcap": "option-softcap", "float-mask": "option-float-mask", "all": "option-all"}
    costs = {
        setting: Verdict(
            f"cost per pair over the plain call, {what}", settings[setting], at_most=True
        )
        for setting, what in (
            ("option", "each option"),
            ("option-softcap", "soft cap"),
            ("option-float-mask", "dense float mask"),
            ("option-all", "five options together"),
        )
    }
    rivals = Verdict("options against every rival", settings["option-rivals"])
    narrow = Verdict("window 128 at T = 8,192 against the causal call", settings["window-128"])
    packed = Verdict("packed 1 x 1000 + 99 x 1 over 1000", settings["packed"], at_most=True)
    for kind in ("options", "packed"):
        for name, record in records(data, kind):
            entries, option = timed(record), row_of(record).option
            for rival in rivals_of(record) if "headway" in entries else ():
                rivals.add(lead(record, rival), f"{name}, {rival}")
            if not {"headway", "headway-plain"} <= set(entries):
                continue
            if kind == "packed":
                packed.add(lead(record, "headway", "headway-plain"), name)
            elif option == "window-128":
                narrow.add(lead(record, "headway-plain"), name)
            elif option != "plain":
                costs[single.get(option, "option")].add(option_cost(record), name)
    yield from (*costs.values(), rivals, narrow, packed)


def judge(data: Data, settings: dict[str, float] | None = None) -> list[Verdict]:
    """Every claim, in the order of the report."""
    values = DEFAULTS | (settings or {})
    memory = Verdict("extra memory of a call, MiB", values["memory-mib"], at_most=True)
    for name, record in data.get("memory", {}).items():
        memory.add(record["mib"], name)
    return [
        *against_rivals(data, values),
        *shares(data, values),
        growth(data, values),
        *modules(data, values),
        *options(data, values),
        *decode_claims.judge(data, values),
        *backward_claims.judge(data, values),
        memory,
    ]
