"""A plan as text: what it is of, its figures, and the steps of its passes."""

from __future__ import annotations

from textwrap import wrap

from ..text_table import TextTable
from ._plan_record import Pass, RingPlan

PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
SMALL = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
NOTES = """\
exposed        what communication adds to the time
efficiency     even shares without communication, as a part of the time
hidden from    tokens of a rank from which communication hides behind compute
one token      decoding: a query of each sequence over the sharded cache
pairs          (query, key) that the rank with most sees, each head and sequence"""


def lines_of_sizes(plan: RingPlan) -> list[str]:
    """What the plan is of, wrapped."""
    heads = f"{plan.num_heads} head{'s' * (plan.num_heads > 1)} of {plan.head_dim}"
    if plan.v_head_dim != plan.head_dim:
        heads += f" (values {plan.v_head_dim})"
    if plan.num_kv_heads < plan.num_heads:
        heads += f", {plan.num_kv_heads} for keys and values"
    left, right = plan.window
    window = "" if (left, right) in ((-1, 0), (-1, -1)) else f", window ({left}, {right})"
    sizes = (
        f"{plan.num_ranks:,} rank{'s' * (plan.num_ranks > 1)}, {plan.sharding}"
        f"{', causal' * plan.causal}{window}: batch {plan.batch}, {plan.num_tokens:,} tokens, "
        f"{heads}, {plan.dtype}"
    )
    rate = f"{scaled(plan.flop_rate)}FLOP/s"
    if plan.backward_flop_rate != plan.flop_rate:
        rate += f" (backward {scaled(plan.backward_flop_rate)}FLOP/s)"
    rates = f"a rank: {rate}, sends {scaled(plan.bandwidth)}B/s after {seconds(plan.latency)}"
    if plan.memory_bandwidth is not None:
        rates += f", reads {scaled(plan.memory_bandwidth)}B/s"
    if plan.memory is not None:
        rates += f", holds {scaled(plan.memory)}B"
    return [*wrap(sizes, 80), *wrap(rates, 80)]


def scaled(number: float) -> str:
    """Three digits and the prefix of a unit: "12.5 G"; from 1e21 on a power of ten."""
    if number >= 1e21:
        return f"{number:.3g} "
    for unit, prefix in PREFIXES:
        if abs(number) >= unit * 0.9995 or unit == 1.0:
            return f"{_digits(number / unit)} {prefix}"
    raise AssertionError


def seconds(time: float) -> str:
    """Three digits and a unit: "1.25 ms"; from 1e12 s on a power of ten."""
    if time >= 1e12:
        return f"{time:.3g} s"
    if time >= 999.5:
        return f"{time:,.0f} s"
    for unit, name in SMALL:
        if time >= unit * 0.9995 or name == "us":
            digits = f"{time / unit:#.3g}".rstrip(".")
            return f"{digits if time else 0} {name}"
    raise AssertionError


def _digits(number: float) -> str:
    return f"{number:.0f}" if number >= 99.95 or not number else f"{number:.3g}"


def figures_table(plan: RingPlan) -> TextTable:
    """A row for each figure, a column for each of forward, backward and one new token."""
    passes, decode = (plan.forward, plan.backward), plan.decode
    each = (*passes, decode)
    rows = [
        ["time", *(seconds(one.seconds) for one in each)],
        ["  compute", *(seconds(one.compute_seconds) for one in each)],
        ["  communication", *(seconds(one.communication_seconds) for one in each)],
        ["  exposed", *(seconds(one.seconds - one.compute_seconds) for one in each)],
        ["efficiency", *(f"{one.efficiency:.1%}" for one in passes), "-"],
        ["operations of all ranks", *(scaled(one.flops) for one in passes), "-"],
        ["a rank sends, bytes", *(scaled(one.sent_bytes) for one in each)],
        ["a rank holds, bytes", *(scaled(one.memory_bytes) for one in each)],
        ["hidden from, tokens", *(_tokens(one.hidden_tokens) for one in passes), "-"],
    ]
    if plan.largest is not None:
        rows.append(["most tokens that fit", *(f"{tokens:,}" for tokens in plan.largest)])
    rows = [[cell.rstrip() for cell in row] for row in rows]
    return TextTable(["figure", "forward", "backward", "one token"], rows)


def _tokens(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def steps_table(name: str, one: Pass) -> TextTable:
    """The steps of a pass, equal neighbours in one row."""
    rows = [
        [
            f"{step.first}" if step.first == step.last else f"{step.first} to {step.last}",
            f"{step.pairs:,}",
            scaled(step.sent_bytes).rstrip(),
            seconds(step.compute_seconds),
            seconds(step.communication_seconds),
            seconds(step.seconds),
        ]
        for step in one.steps
    ]
    head = [f"{name}, step", "pairs", "sends", "compute", "communication", "time"]
    if len(rows) > 16:
        rows = [*rows[:8], ["..."] + [""] * 5, *rows[-7:]]
    return TextTable(head, rows)


def tables(plan: RingPlan) -> list[TextTable]:
    """All tables in order."""
    forward = steps_table("forward", plan.forward)
    return [figures_table(plan), forward, steps_table("backward", plan.backward)]


def text(plan: RingPlan) -> str:
    """All of it, in lines of about 80 characters."""
    blocks = [lines_of_sizes(plan), *(table.lines() for table in tables(plan)), [NOTES]]
    return "\n\n".join("\n".join(block) for block in blocks)
