"""What is claimed of decoding from caches; each number is a setting of `claims.py`."""

from __future__ import annotations

from collections.abc import Iterator

from figures import Data, Record, best_rival, bound_share, lead, rivals_of, row_of, timed
from rows import DTYPES, QUANTISED
from verdicts import Verdict, records

DEFAULTS: dict[str, float] = {
    "decode-bound": 0.85,
    "decode-bound-int8": 0.70,
    "decode-rivals": 1.0,
    "decode-grouped-float32": 1.25,
    "decode-grouped-16": 1.6,
    "decode-quantised": 1.0,
    "decode-growth": 1.1,
    "decode-memory": 1.05,
}
"""Bound over time, times as fast as a rival or as a bfloat16 cache; at most so many times
the time per key of a cache of a half or a quarter of the length, and of the memory."""


LEAST_SEEN = 2**24
"""Bytes of K and V from which on the memory of a process tells anything."""


def is_growth(record: Record) -> bool:
    """Is the row one of those of ever longer caches?"""
    return row_of(record).name.startswith("decode-growth-")


def decodes(data: Data, cold: bool) -> Iterator[tuple[str, Record]]:
    """Rows of the four problems in which headway was timed."""
    for name, record in records(data, "decode", cold=cold):
        if "headway" in timed(record) and not is_growth(record):
            yield name, record


def bounds(data: Data, settings: dict[str, float]) -> Iterator[Verdict]:
    """From memory, against the larger of both bounds."""
    plain = Verdict("decode, cold, bound over time", settings["decode-bound"])
    int8 = Verdict("decode, cold, int8, bound over time", settings["decode-bound-int8"])
    for name, record in decodes(data, True):
        dtype = row_of(record).dtype
        verdict = plain if dtype in DTYPES else int8
        if dtype != "fp8_e4m3":
            verdict.add(bound_share(data, record, timed(record)["headway"]), name)
    yield from (plain, int8)


def against_rivals(data: Data, settings: dict[str, float]) -> Iterator[Verdict]:
    for cold, where in ((True, "cold"), (False, "warm")):
        verdict = Verdict(f"decode, {where}, against every rival", settings["decode-rivals"])
        for name, record in decodes(data, cold):
            for who in rivals_of(record):
                verdict.add(lead(record, who), f"{name}, {who}")
        yield verdict
    for setting, dtypes in (("float32", ("float32",)), ("16", ("bfloat16", "float16"))):
        what = "float32" if setting == "float32" else "16 bits"
        title = f"decode, cold, grouped heads, {what}, against the best rival"
        verdict = Verdict(title, settings[f"decode-grouped-{setting}"])
        for name, record in decodes(data, True):
            row, rival = row_of(record), best_rival(record)
            if rival and row.num_kv_heads < row.num_heads and row.dtype in dtypes:
                verdict.add(lead(record, rival), f"{name}, {rival}")
        yield verdict


def quantised(data: Data, settings: dict[str, float]) -> Verdict:
    """Against a bfloat16 cache timed in the same row."""
    verdict = Verdict(
        "decode, cold, quantised caches against a bfloat16 one", settings["decode-quantised"]
    )
    for name, record in decodes(data, True):
        if row_of(record).dtype in QUANTISED and "headway-bfloat16" in timed(record):
            verdict.add(lead(record, "headway-bfloat16"), name)
    return verdict


def growing(data: Data) -> dict[str, dict[int, Record]]:
    """dtype -> length -> the row of ever longer caches."""
    found: dict[str, dict[int, Record]] = {}
    for _, record in records(data, "decode"):
        if is_growth(record) and "headway" in timed(record):
            row = row_of(record)
            found.setdefault(row.dtype, {})[row.num_keys] = record
    return found


def growth(data: Data, settings: dict[str, float]) -> Iterator[Verdict]:
    """Time per key at 2 L and 4 L over that at L; memory over what nbytes says, and that over K
    and V (with the scales of int8)."""
    time = Verdict(
        "decode, time per key at 2 L and 4 L over L", settings["decode-growth"], at_most=True
    )
    seen = Verdict("decode, memory seen over nbytes", settings["decode-memory"], at_most=True)
    said = Verdict("decode, nbytes over the bytes stored", settings["decode-memory"], at_most=True)
    for records_of in growing(data).values():
        for length, record in sorted(records_of.items()):
            row, entry = row_of(record), timed(record)["headway"]
            for times in (2, 4):
                shorter = records_of.get(length // times)
                if shorter:
                    ratio = entry["wall_min"] / timed(shorter)["headway"]["wall_min"] / times
                    time.add(ratio, f"{row.id} over {length // times}")
            if "resident" in entry and row.kv_bytes >= LEAST_SEEN:
                seen.add(entry["resident"] / entry["nbytes"], row.id)
            said.add(entry["nbytes"] / stored_bytes(record), row.id)
    yield from (time, seen, said)


def stored_bytes(record: Record) -> int:
    """K and V, and int8's two scales of four bytes per token and head."""
    row = row_of(record)
    scales = 8 * row.batch * row.num_kv_heads * row.num_keys if row.dtype == "int8" else 0
    return row.kv_bytes + scales


def judge(data: Data, settings: dict[str, float]) -> list[Verdict]:
    """Every claim about decoding, in the order of the report."""
    return [
        *bounds(data, settings),
        *against_rivals(data, settings),
        quantised(data, settings),
        *growth(data, settings),
    ]
