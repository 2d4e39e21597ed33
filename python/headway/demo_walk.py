"""The demo, first part: one text through a two-head module, every object on the way printed."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from . import reference, trace_text
from ._version import __version__
from .arrays import Array
from .demo_text import D_IN, MOST_TOKENS, SHOWN, Text, embed
from .modules import MultiHeadAttention, StackedMultiHeadAttention
from .terminal import Terminal, fit

NUM_HEADS, HEAD_DIM = 2, 3
AGREE = 2e-5  # largest difference between float32 results, relative to the largest number
WIDTH = 79  # columns
LABEL = 10  # most columns for a token


class Step(NamedTuple):
    """A piece of the output, and whether what it reports is as it should be."""

    lines: list[str]
    passed: bool = True


def walk(text: Text, encoding: str) -> Iterator[Step]:
    """The steps from the text to Z, in both stages, with the comparison at the end."""
    tokens = text.tokens[:MOST_TOKENS]
    labels = [fit(token, LABEL, encoding) for token in tokens[:SHOWN]]
    vocabulary = sorted(set(text.tokens))
    yield _title(text, vocabulary, labels, encoding)

    x_whole = embed(tokens, vocabulary)
    x = x_whole[: len(labels)]
    stacked = StackedMultiHeadAttention.init(D_IN, NUM_HEADS * HEAD_DIM, num_heads=NUM_HEADS)
    merged = stacked.fuse()
    yield _modules(stacked, merged)
    trace = merged.trace(x, tokens=tokens[: len(labels)])
    terminal = Terminal(WIDTH, encoding=encoding)
    yield Step(trace_text.legend(terminal))
    yield _part(trace_text.input_lines(trace, terminal, 0))
    for n in range(1, NUM_HEADS + 1):
        yield _part(trace_text.head_lines(trace, n, terminal, 0))
    yield _part(trace_text.result_lines(trace, terminal, 0))
    yield _comparison(stacked, merged, {len(x): x, len(x_whole): x_whole})
    if len(x_whole) > 1:
        yield _causality(merged, x_whole)


# What is computed ---------------------------------------------------------------------------------


def _reference_z(stacked: StackedMultiHeadAttention, x: Array) -> Array:
    """Z in plain NumPy and float64, head by head."""
    wide = x.astype(np.float64)
    results = []
    for head in stacked:
        q, k, v = (wide @ w.astype(np.float64) for w in (head.w_query, head.w_key, head.w_value))
        results.append(reference.attention(q, k, v))
    return np.concatenate(results, axis=-1)


# What is shown ------------------------------------------------------------------------------------


def _title(text: Text, vocabulary: list[str], labels: list[str], encoding: str) -> Step:
    distinct = f", {len(vocabulary):,} of them distinct" if len(text.tokens) > 1 else ""
    first = f"The first {len(labels)} are" if len(labels) > 1 else "It is"
    return Step(
        [
            f"headway {__version__}: causal multi-head attention, step by step",
            "",
            "The text: " + fit(text.name, 69, encoding).rstrip(),
            f"{_count(text.num_characters, 'character')}, {_count(len(text.tokens), 'token')}"
            f"{distinct}.",
            "A token is a word in lower case (letters, digits, _) or one other character.",
            f"{first} shown in full: {' '.join(' '.join(labels).split())}",
            "x has for each a random row for the token plus another one for its position.",
        ]
    )


def _modules(stacked: StackedMultiHeadAttention, merged: MultiHeadAttention) -> Step:
    return Step(
        [
            "Two stages with the same random weights:",
            f"1  StackedMultiHeadAttention  {len(stacked)} heads, run one after another; each owns",
            f"                              w_query, w_key, w_value of {stacked[0].w_query.shape}",
            "2  MultiHeadAttention         all heads at once; the same weights side by side,",
            f"                              w_query, w_key, w_value of {merged.w_query.shape}",
            f"Numbers in the weights: {stacked.num_parameters}. No head shares one with another.",
        ]
    )


def _part(lines: Iterator[str]) -> Step:
    """A part of the trace, without the empty line above its title."""
    return Step(list(lines)[1:])


def _comparison(
    stacked: StackedMultiHeadAttention, merged: MultiHeadAttention, inputs: dict[int, Array]
) -> Step:
    """The largest differences, over the tokens shown and over the whole text."""
    columns = []
    passed = True
    for x in inputs.values():
        one, two, plain = stacked(x), merged(x), _reference_z(stacked, x)
        differences = [
            float(np.abs(a - b).max()) for a, b in ((one, two), (one, plain), (two, plain))
        ]
        largest = float(np.abs(plain).max())
        passed = passed and max(differences) <= AGREE * largest
        columns.append([*differences, largest])
    heads = [_count(n, "token") for n in inputs]
    names = [
        "stage 1 and stage 2",
        "stage 1 and NumPy",
        "stage 2 and NumPy",
        "(largest number in Z)",
    ]
    lines = [
        f"  {name:<24}" + "".join(f"{column[row]:>16.1e}" for column in columns)
        for row, name in enumerate(names)
    ]
    verdict = "All three agree" if passed else "THEY DO NOT AGREE"
    return Step(
        [
            "Stage 1 = stage 2 = reference (NumPy in float64)? The largest differences:",
            "",
            " " * 26 + "".join(f"{head:>16}" for head in heads),
            *lines,
            "",
            f"{verdict} (allowed: {AGREE:.0e} of the largest number).",
        ],
        passed,
    )


def _causality(merged: MultiHeadAttention, x: Array) -> Step:
    """Spoil the last token and look at the rows before it."""
    spoilt = x.copy()
    spoilt[-1] = np.nan
    same = merged(spoilt)[:-1].tobytes() == merged(x)[:-1].tobytes()
    verdict = "the same to the bit" if same else "CHANGED"
    return Step([f"NaN for the last of {len(x):,} tokens: all rows before it are {verdict}."], same)


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'s' * (n != 1)}"
