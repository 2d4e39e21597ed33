"""``headway cost``: what attention costs, as a table, as JSON or as a picture."""

import argparse
import json
from typing import Any

from ..cost_record import FIGURES, SIZES, Cost
from ..cost_table import GROWTH_NOTES, NAMES, NOTES, figures_table, lines_of_sizes, parts_table
from ..costs import STAGES, cost
from ..text_table import TextTable
from .common import FAILED, Command, Complaint, at_least
from .screen import complain, say, show

ALL = "all"


def _arguments(parser: argparse.ArgumentParser) -> None:
    size = at_least(1)
    for option, default, text in (
        ("--batch", 1, "sequences"),
        ("--tokens", 1024, "tokens of each"),
        ("--d-in", 768, "numbers per token of the input"),
        ("--d-out", 768, "width of all heads together"),
        ("--heads", 12, "query heads"),
    ):
        text = f"{text} (default: {default})"
        parser.add_argument(option, type=size, default=default, metavar="N", help=text)
    parser.add_argument(
        "--kv-heads", type=size, metavar="N", help="key and value heads (default: as --heads)"
    )
    parser.add_argument("--out-proj", action="store_true", help="with an output projection")
    parser.add_argument("--qkv-bias", action="store_true", help="with biases of Q, K and V")
    parser.add_argument(
        "--stage",
        choices=(*STAGES, ALL),
        default="efficient",
        help="the module: one head, heads one after another, or all heads at once (default); "
        "all: the three side by side, the first being one of the heads",
    )
    parser.add_argument("--dtype", choices=tuple(SIZES), default="float32", help="default: float32")
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    parser.add_argument("--png", metavar="FILE", help="draw it, too (extra plot)")


def _costs(arguments: argparse.Namespace) -> dict[str, Cost]:
    """The cost of the stage that is asked for, or of all, by the stage's name."""
    sizes: dict[str, Any] = {
        "batch": arguments.batch,
        "num_tokens": arguments.tokens,
        "d_in": arguments.d_in,
        "d_out": arguments.d_out,
        "num_heads": arguments.heads,
        "num_kv_heads": arguments.kv_heads,
        "out_proj": arguments.out_proj,
        "qkv_bias": arguments.qkv_bias,
        "dtype": arguments.dtype,
    }
    try:
        if arguments.stage != ALL:
            return {arguments.stage: cost(**sizes, stage=arguments.stage)}
        found = {stage: cost(**sizes, stage=stage) for stage in STAGES[1:]}
        width = found["efficient"].widest_head
        one = {"d_out": width, "num_heads": 1, "num_kv_heads": 1, "out_proj": False}
        return {"single": cost(**sizes | one, stage="single"), **found}
    except ValueError as error:
        raise Complaint(str(error)) from None


def _run(arguments: argparse.Namespace) -> int:
    if arguments.png and arguments.stage == ALL:
        raise Complaint("--png: expected one stage, got --stage all; name one of them")
    costs = _costs(arguments)
    if arguments.png:
        try:
            _draw(costs[arguments.stage], arguments.png)
        except OSError as error:
            told = error.strerror or error
            return complain(f"{arguments.png}: cannot be written ({told})", FAILED)
    if arguments.json:
        found = {stage: each.to_dict() for stage, each in costs.items()}
        say(json.dumps(found if arguments.stage == ALL else found[arguments.stage], indent=2))
    elif arguments.stage == ALL:
        _compare(costs)
    else:
        _show(costs[arguments.stage])
    return 0


def _show(one: Cost) -> None:
    say("\n".join([*lines_of_sizes(one), ""]))
    show(parts_table(one))
    say("")
    show(figures_table(one))
    say(f"\n{NOTES}\n\n{GROWTH_NOTES}")


def _compare(costs: dict[str, Cost]) -> None:
    rows = [
        [NAMES[figure], *(f"{getattr(each, figure):,}" for each in costs.values())]
        for figure in FIGURES
    ]
    for each in costs.values():
        say("\n".join(lines_of_sizes(each)))
    say("")
    show(TextTable(["figure", *costs], rows))
    say(f"\n{NOTES}")


def _draw(one: Cost, path: str) -> None:
    try:
        one.plot().savefig(path, format="png", dpi=120)
    except ImportError as error:
        raise Complaint(f"--png: {error}") from None


COMMAND = Command(
    name="cost",
    summary="tell weights, multiply-adds and bytes of a module, and how they grow",
    description="Tell the weights, multiply-adds and bytes of a causal attention module, and how "
    "each grows with tokens, width and heads.",
    examples=(
        "headway cost --tokens 4096 --heads 12 --out-proj",
        "headway cost --d-in 4096 --d-out 4096 --heads 32 --kv-heads 8 --dtype bfloat16",
        "headway cost --stage all --heads 2 --d-in 6 --d-out 6 --tokens 5",
        "headway cost --json",
        "headway cost --png cost.png",
    ),
    failure="a file not written",
    arguments=_arguments,
    run=_run,
)
