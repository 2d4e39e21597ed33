"""What is claimed of the backward pass and of training; each number is a setting of `claims.py`."""

from __future__ import annotations

from collections.abc import Iterator

from figures import Data, Record, lead, peak_of, row_of, share, timed
from verdicts import Verdict, records

DEFAULTS: dict[str, float] = {
    "backward-float32": 1.8,
    "backward-float32-d128": 1.6,
    "backward-bfloat16": 2.2,
    "backward-bfloat16-d128": 2.0,
    "backward-share": 0.80,
    "backward-memory-growth": 4.0,
    "backward-memory-mib": 64.0,
    "train-step": 1.0,
}
"""Times as fast as PyTorch, forward and backward; share of the peak, backward alone; at most so
many times the extra memory of a quarter of the tokens, and so many MiB."""

RIVAL, MODULE_RIVAL = "torch-backward", "torch-train"


def is_plain(record: Record) -> bool:
    """Is the row neither one with an option nor the long one?"""
    return row_of(record).option == "plain" and not row_of(record).long


def against_pytorch(data: Data, settings: dict[str, float]) -> Iterator[Verdict]:
    """Forward and backward by all threads of the run, by the size of a head."""
    for dtype in ("float32", "bfloat16"):
        for wide, suffix, what in ((False, "", "D = 64"), (True, "-d128", "D = 128")):
            title = f"forward and backward, {dtype}, {what}, against PyTorch"
            verdict = Verdict(title, settings[f"backward-{dtype}{suffix}"])
            for name, record in records(data, "backward", dtype=dtype, part="both"):
                both = {"headway", RIVAL} <= set(timed(record))
                if both and is_plain(record) and (row_of(record).head_dim > 64) == wide:
                    verdict.add(lead(record, RIVAL), name)
            yield verdict


def cpu_share(data: Data, record: Record, entry: Data) -> float | None:
    """Share of the peak by the CPU time of the best turn, as if all threads had it evenly."""
    peak = peak_of(data, row_of(record), entry["threads"])
    if peak is None or not entry["cpu_min"]:
        return None
    return float(record["flops"] * entry["threads"] / entry["cpu_min"] / 1e9 / peak)


def reached(data: Data, record: Record, entry: Data) -> float | None:
    """Share of the peak by the best wall time, or by CPU time where that is larger."""
    both = (share(data, record, entry), cpu_share(data, record, entry))
    return max((each for each in both if each is not None), default=None)


def shares(data: Data, settings: dict[str, float]) -> Verdict:
    """The backward pass alone, one thread and two."""
    verdict = Verdict("backward alone, float32, share of the peak", settings["backward-share"])
    for name, record in records(data, "backward", dtype="float32", part="backward"):
        for who, entry in timed(record).items():
            if who.startswith("headway"):
                verdict.add(reached(data, record, entry), f"{name}, {who}")
    return verdict


def memory(data: Data, settings: dict[str, float]) -> Iterator[Verdict]:
    """Of the long rows: memory beyond inputs and gradients, and that over a quarter's."""
    growth, most = settings["backward-memory-growth"], settings["backward-memory-mib"]
    over = Verdict("backward, extra memory at T over T / 4", growth, at_most=True)
    extra = Verdict("backward, extra memory, MiB", most, at_most=True)
    for name, record in records(data, "backward"):
        entry = timed(record).get("headway", {})
        if "extra" in entry:
            over.add(entry["extra"] / entry["extra-quarter"], name)
            extra.add(entry["extra"] / 2**20, name)
    yield from (over, extra)


def training(data: Data, settings: dict[str, float]) -> Verdict:
    """A step of the module against the same one made of PyTorch's Linear and SDPA."""
    verdict = Verdict("training step of a module against PyTorch", settings["train-step"])
    for name, record in records(data, "train"):
        if {"headway", MODULE_RIVAL} <= set(timed(record)):
            verdict.add(lead(record, MODULE_RIVAL), name)
    return verdict


def judge(data: Data, settings: dict[str, float]) -> list[Verdict]:
    """Every claim about gradients, in the order of the report."""
    return [
        *against_pytorch(data, settings),
        shares(data, settings),
        *memory(data, settings),
        training(data, settings),
    ]
