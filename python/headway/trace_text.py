"""A trace as text: a walk through its steps for a terminal of any width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .matrix_tables import Panel, tables
from .terminal import Terminal
from .trace_build import ALLOWED
from .trace_steps import Step, shape_text

if TYPE_CHECKING:
    from .trace_record import Trace

MOST_HEADS = 4  # heads that are shown; of more, one fewer and a line about the others

GROUPS = (
    ("w_query", "w_key", "w_value"),
    ("b_query", "b_key", "b_value"),
    ("Q", "K", "V"),
    ("scores",),
    ("scaled", "capped", "biased", "mask"),
    ("sink",),
    ("weights", "sink_weights", "dropped_weights", "Z_n"),
)
"""Kinds of steps whose tables stand side by side, where there is room."""


def walk(trace: Trace, terminal: Terminal, batch: int) -> Iterator[str]:
    """The lines of the walk through one batch entry."""
    yield from (terminal.strong(line) for line in terminal.wrap(f"Trace of {trace.subject}"))
    yield from terminal.wrap(facts(trace, batch))
    if trace.options:
        yield from terminal.wrap(f"Options: {trace.options}")
    yield from legend(terminal)
    shown, left_out = heads_shown(trace)
    yield from input_lines(trace, terminal, batch)
    for n in shown:
        yield from head_lines(trace, n, terminal, batch)
    if left_out:
        yield ""
        yield terminal.rule(f"Heads {left_out[0]} to {left_out[-1]}")
        name = f'trace["weights_{left_out[0]}"].array'
        yield from terminal.wrap(f"The same steps with numbers of their own, as in {name}.")
    yield from result_lines(trace, terminal, batch)
    yield ""
    yield from verdict(trace, terminal)


def legend(terminal: Terminal) -> list[str]:
    """What a dot means."""
    return terminal.wrap(f"{terminal.hidden} is a cell that is hidden from its query, and no zero.")


def input_lines(trace: Trace, terminal: Terminal, batch: int) -> Iterator[str]:
    """x, where there is one."""
    groups = [[trace["x"]]] if "x" in trace else []
    return section("Input", groups, trace, terminal, batch)


def head_lines(trace: Trace, n: int, terminal: Terminal, batch: int) -> Iterator[str]:
    """The steps of head n."""
    return section(f"Head {n}", grouped(trace.of_head(n)), trace, terminal, batch)


def result_lines(trace: Trace, terminal: Terminal, batch: int) -> Iterator[str]:
    """Z, and what comes after it."""
    groups = [[step] for step in trace if step.head is None and step.name != "x"]
    title = "All heads" if trace.num_heads > 1 else "Result"
    return section(title, groups, trace, terminal, batch)


def facts(trace: Trace, batch: int) -> str:
    """Sizes, dtype, batch entry."""
    queries, keys = len(trace.labels.queries[batch]), len(trace.labels.keys[batch])
    tokens = (
        counted(keys, "token")
        if queries == keys
        else (f"{'1 query' if queries == 1 else f'{queries:,} queries'} and {counted(keys, 'key')}")
    )
    entries = trace.num_batches
    entry = f"; batch entry {batch + 1} of {entries} is shown" if entries > 1 else ""
    return f"{counted(trace.num_heads, 'head')}, {tokens}, {trace.dtype}{entry}."


def heads_shown(trace: Trace) -> tuple[list[int], list[int]]:
    """The heads that are shown, and those that are not."""
    every = list(range(1, trace.num_heads + 1))
    count = len(every) if len(every) <= MOST_HEADS else MOST_HEADS - 1
    return every[:count], every[count:]


def grouped(steps: Sequence[Step]) -> list[list[Step]]:
    """The steps of a head in the groups that are shown side by side."""
    groups = ([step for step in steps if step.kind in kinds] for kinds in GROUPS)
    return [group for group in groups if group]


def section(
    title: str, groups: Sequence[Sequence[Step]], trace: Trace, terminal: Terminal, batch: int
) -> Iterator[str]:
    """A title and the groups of steps under it."""
    for n, group in enumerate(groups):
        yield ""
        if n == 0:
            yield terminal.rule(title)
        yield from describe(group, trace, terminal)
        yield ""
        yield from tables([panel(step, trace, batch) for step in group], terminal)


def describe(steps: Sequence[Step], trace: Trace, terminal: Terminal) -> Iterator[str]:
    """Name, shape and formula of each step; below it its sentence, if head 1 has not said it."""
    for step in steps:
        made = f" = {step.formula}" if step.formula else ""
        for line in terminal.wrap(f"{step.name} {shape_text(step.shape)}{made}"):
            yield terminal.strong(line)
        first = f"{step.name.rpartition('_')[0]}_1"
        if step.head in (None, 1) or trace[first].about != step.about:
            yield from terminal.wrap(step.about, indent="    ")


def panel(step: Step, trace: Trace, batch: int) -> Panel:
    """The table of a step, with the tokens as names of its rows and columns."""
    labels = trace.labels
    names = {"queries": labels.queries[batch], "tokens": labels.keys[batch]}
    names["keys"] = labels.keys[batch]
    hidden = None
    if step.kind in ("weights", "mask"):
        hidden = ~trace[f"mask_{step.head}"].matrix(batch)
    return Panel(
        step.name,
        step.matrix(batch),
        hidden,
        names.get(step.row_axis),
        names.get(step.column_axis) if step.row_axis else None,
    )


def verdict(trace: Trace, terminal: Terminal) -> list[str]:
    """How far the last step is from the fused kernel's result."""
    last = trace.steps[-1].name
    lines = terminal.wrap(
        f"{last} here, in NumPy, and the fused kernel's ({trace.isa}): the largest difference is "
        f"{trace.difference:.1e}, the largest number {trace.largest:.2g}."
    )
    words = "They agree" if trace.agrees else "THEY DO NOT AGREE"
    text = f"{words} (allowed: {ALLOWED[trace.dtype]:.0e} of the largest number)."
    return [*lines, *(terminal.strong(line) for line in terminal.wrap(text))]


def counted(n: int, noun: str) -> str:
    """A number and what it counts."""
    return f"{n:,} {noun}{'s' * (n != 1)}"
