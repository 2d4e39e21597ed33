"""The section of RESULTS.md about attention over ranks: predicted beside measured."""

from __future__ import annotations

from typing import Any

import sections
from figures import markdown

from headway.distributed import RingPlan, plan

Run = dict[str, Any]
PASSES = ("forward", "backward")


def lines(data: dict[str, Any]) -> list[str]:
    """The section, between its comments."""
    head, runs = data["head"], data["runs"]
    first = runs[0]
    begin, end = sections.comments("ring")
    shape = f"(1, {first['heads']}, {first['kv_heads']}, {first['tokens']}, {first['head_dim']})"
    where = f"{head['machine']['cpu']}, {head['machine']['usable_cpus']} usable CPUs"
    return [
        begin,
        f"{where}, ISA {head['isa']}; headway {head['versions']['headway']}; commit "
        f"{head['commit']}, build {head['build']['compiler']}, {head['when']}.",
        "",
        f"Causal float32, shape {shape}, one thread for each rank. With more ranks than CPUs the",
        "CPU time still holds, the wall time does not and is left out. Predictions take two rates",
        "from the runs with one rank, forward and backward, and latency and bandwidth from",
        "messages of 8 bytes and of one block, which all ranks of a run send at once.",
        "",
        "### Critical path over ranks",
        "",
        *critical(runs),
        "",
        "### Wall time over ranks",
        "",
        *wall(runs, head["machine"]["usable_cpus"]),
        "",
        "### Traffic over ranks",
        "",
        *traffic(runs),
        "",
        "### A new token over ranks",
        "",
        *decode(runs, head["machine"]["usable_cpus"]),
        end,
    ]


def planned(run: Run, rates: dict[str, float], read: float | None = None) -> RingPlan:
    """What `headway plan` says of a run."""
    return plan(
        num_tokens=run["tokens"],
        num_heads=run["heads"],
        num_kv_heads=run["kv_heads"],
        head_dim=run["head_dim"],
        num_ranks=run["ranks"],
        sharding=run["sharding"],
        flop_rate=rates["forward"],
        backward_flop_rate=rates["backward"],
        bandwidth=run["bandwidth"] or 1e9,
        latency=run["latency"],
        memory_bandwidth=read,
    )


def critical_cpu(run: Run, which: str, join: bool = False) -> float:
    """CPU seconds of the slowest rank of each step, summed; of every step the best round."""
    rounds = [[rank["kernel_cpu"] for rank in ranks] for ranks in run[which]]
    if join:
        joins = [[rank["join_cpu"] for rank in ranks] for ranks in run[which]]
        rounds = [
            [[a + b for a, b in zip(*both, strict=True)] for both in zip(*one, strict=True)]
            for one in zip(rounds, joins, strict=True)
        ]
    best = [
        [min(times) for times in zip(*steps, strict=True)] for steps in zip(*rounds, strict=True)
    ]
    return float(sum(max(step) for step in zip(*best, strict=True)))


def rates_of(runs: list[Run]) -> dict[str, float]:
    """Operations per second of CPU time with one rank."""
    alone = [run for run in runs if run["ranks"] == 1]
    unit = planned(alone[0], dict.fromkeys(PASSES, 1.0))
    return {
        which: getattr(unit, which).flops / min(critical_cpu(run, which) for run in alone)
        for which in PASSES
    }


def critical(runs: list[Run]) -> list[str]:
    """CPU time of the kernel, of the slowest rank of each step: the plan, and an even share."""
    rates, body = rates_of(runs), []
    for which in PASSES:
        for run in runs:
            predicted = getattr(planned(run, rates), which).compute_seconds
            found = critical_cpu(run, which)
            alone = [critical_cpu(one, which) for one in runs if one["ranks"] == 1]
            total = min(alone) / run["ranks"]
            body.append(
                [
                    which,
                    run["sharding"],
                    f"{run['ranks']}",
                    f"{predicted:.3f}",
                    f"{found:.3f}",
                    f"{found / predicted:.3f}",
                    f"{found / total:.3f}",
                    f"{critical_cpu(run, which, join=True) - found:.3f}",
                ]
            )
    head = ("pass", "sharding", "ranks", "predicted s", "measured s", "ratio", "of total/W")
    return markdown((*head, "joining s"), body, 2)


def wall(runs: list[Run], cpus: int) -> list[str]:
    """The wall time of a call, and what of it was waiting for messages; the best round."""
    rates, body = rates_of(runs), []
    for which in PASSES:
        for run in (one for one in runs if 1 < one["ranks"] <= cpus):
            one = getattr(planned(run, rates), which)
            times, waits = [], []
            for ranks in run[which]:
                times.append(
                    max(rank["wall"][1] for rank in ranks) - min(rank["wall"][0] for rank in ranks)
                )
                waits.append(max(sum(s[2] - s[1] for s in rank["steps"]) for rank in ranks))
            best = times.index(min(times))
            body.append(
                [
                    which,
                    run["sharding"],
                    f"{run['ranks']}",
                    f"{one.seconds * 1e3:.0f}",
                    f"{times[best] * 1e3:.0f}",
                    f"{times[best] / one.seconds:.2f}",
                    f"{one.exposed_seconds * 1e3:.1f}",
                    f"{waits[best] * 1e3:.1f}",
                ]
            )
    head = ("pass", "sharding", "ranks", "predicted ms", "measured ms", "ratio")
    return markdown((*head, "exposed ms", "waited ms"), body, 2)


def traffic(runs: list[Run]) -> list[str]:
    """Bytes of the rank that sends most: the formula, and what a communicator counted."""
    rates, body = rates_of(runs), []
    for run in runs:
        found = planned(run, rates)
        for which in PASSES:
            counted = {max(rank["sent"] for rank in ranks) for ranks in run[which]}
            formula = getattr(found, which).sent_bytes
            body.append(_bytes(which, run, formula, counted))
        if run["decode"]:
            counted = {max(rank["sent"] for rank in run["decode"])}
            body.append(_bytes("one token", run, found.decode.sent_bytes, counted))
    return markdown(("pass", "sharding", "ranks", "formula", "counted", "equal"), body, 2)


def _bytes(which: str, run: Run, formula: int, counted: set[int]) -> list[str]:
    shown = " or ".join(f"{number:,}" for number in sorted(counted))
    equal = "yes" if counted == {formula} else "**no**"
    return [which, run["sharding"], f"{run['ranks']}", f"{formula:,}", shown, equal]


def decode(runs: list[Run], cpus: int) -> list[str]:
    """One query over a sharded cache: the rate of reading is that of the run with one rank."""
    rates, body = rates_of(runs), []
    found = [run for run in runs if run["decode"] and run["ranks"] <= cpus]
    alone = next((run for run in found if run["ranks"] == 1), None)
    if alone is None:
        return ["Not measured."]
    rate = planned(alone, rates).decode.read_bytes / alone["decode"][0]["wall"]
    for run in found:
        one = planned(run, {**rates, "forward": 1e15}, rate).decode
        time = max(rank["wall"] for rank in run["decode"])
        cells = [one.compute_seconds, one.communication_seconds, one.seconds, time]
        body.append([f"{run['ranks']}", *(f"{cell * 1e3:.3f}" for cell in cells)])
    head = ("ranks", "reading ms", "messages ms", "predicted ms", "measured ms")
    return markdown(head, body, 1)
