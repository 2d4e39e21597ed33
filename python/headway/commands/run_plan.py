"""``headway plan``: time, traffic and memory of attention over many ranks, predicted."""

import argparse
import json
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from ..cost_record import SIZES
from ..distributed import plan
from ..distributed._plan_record import RingPlan
from ..distributed._plan_text import NOTES, lines_of_sizes, tables
from ..distributed._sharding import SHARDINGS
from .common import Command, Complaint, at_least
from .screen import say, show

PREFIXES = {name: Decimal(10) ** power for name, power in zip("num", (-9, -6, -3), strict=True)}
PREFIXES |= {name: Decimal(1000) ** n for n, name in enumerate(("", "k", "M", "G", "T", "P"))}
PREFIXES |= {f"{name}i": Decimal(1024) ** n for n, name in enumerate("KMGT", 1)}

MOST = Decimal(10) ** 30
"""More than any size that a plan accepts, and few enough digits for a message."""
PATTERN = re.compile(r"(\d{1,60}\.?\d{0,60}(?:e[+-]?\d{1,3})?|\.\d{1,60})([A-Za-z]*)")


def _number(wanted: str, whole: bool = False, parts: bool = True) -> Callable[[str], Any]:
    """Reads a number with a prefix, such as 12.5G or 5u; a whole one without its fraction.

    Without `parts` a fraction is refused.
    """

    def read(text: str) -> float | int:
        found = PATTERN.fullmatch(text)
        if found is None or found[2] not in PREFIXES:
            raise argparse.ArgumentTypeError(f"expected {wanted}, got {text!r}")
        number = Decimal(found[1]) * PREFIXES[found[2]]
        if not whole:
            return float(number)
        if number > MOST or (number != int(number) and not parts):
            raise argparse.ArgumentTypeError(f"expected {wanted}, got {text!r}")
        return int(number)

    return read


def _arguments(parser: argparse.ArgumentParser) -> None:
    size = at_least(1)
    count = _number("a whole number, e.g. 4096, 128Ki or 10M", whole=True, parts=False)
    room = _number("a number of bytes, e.g. 16Gi", whole=True)
    for option, default, text in (
        ("--tokens", "128Ki", "tokens of a sequence, on all ranks together"),
        ("--batch", "1", "sequences"),
        ("--heads", "32", "query heads"),
    ):
        text = f"{text} (default: {default})"
        parser.add_argument(option, type=count, default=default, metavar="N", help=text)
    parser.add_argument(
        "--kv-heads", type=size, metavar="N", help="key and value heads (default: as --heads)"
    )
    parser.add_argument(
        "--head-dim", type=size, default=128, metavar="N", help="width of a head (default: 128)"
    )
    parser.add_argument(
        "--v-head-dim", type=size, metavar="N", help="width of a value (default: as --head-dim)"
    )
    parser.add_argument(
        "--dtype", choices=tuple(SIZES), default="bfloat16", help="default: bfloat16"
    )
    parser.add_argument("--ranks", type=size, default=8, metavar="N", help="default: 8")
    parser.add_argument(
        "--sharding",
        choices=SHARDINGS,
        default="zigzag",
        help="which rows a rank holds (default: zigzag)",
    )
    parser.add_argument("--full", action="store_true", help="not causal: every query sees all keys")
    parser.add_argument("--window", type=size, metavar="N", help="keys that a query sees")
    rates: tuple[tuple[str, str | None, str], ...] = (
        ("--flop-rate", "1T", "operations of a rank per second"),
        ("--backward-flop-rate", None, "those of the backward pass (default: as --flop-rate)"),
        ("--bandwidth", "12.5G", "bytes per second that a rank sends"),
        ("--latency", "5u", "seconds from a rank to the next"),
        ("--memory-bandwidth", None, "bytes per second that a rank reads, for decoding"),
    )
    rate = _number("a number, e.g. 1e12, 12.5G or 5u")
    for option, usual, text in rates:
        text = f"{text} (default: {usual})" if usual else text
        parser.add_argument(option, type=rate, default=usual, metavar="X", help=text)
    parser.add_argument(
        "--memory", type=room, metavar="X", help="bytes of a rank: tell the most tokens that fit"
    )
    parser.add_argument("--json", action="store_true", help="as one JSON object")


def _plan(arguments: argparse.Namespace) -> RingPlan:
    try:
        return plan(
            num_tokens=arguments.tokens,
            batch=arguments.batch,
            num_heads=arguments.heads,
            num_kv_heads=arguments.kv_heads,
            head_dim=arguments.head_dim,
            v_head_dim=arguments.v_head_dim,
            dtype=arguments.dtype,
            num_ranks=arguments.ranks,
            sharding=arguments.sharding,
            causal=not arguments.full,
            window=arguments.window,
            flop_rate=arguments.flop_rate,
            backward_flop_rate=arguments.backward_flop_rate,
            bandwidth=arguments.bandwidth,
            latency=arguments.latency,
            memory_bandwidth=arguments.memory_bandwidth,
            memory=arguments.memory,
        )
    except ValueError as error:
        raise Complaint(str(error)) from None


def _run(arguments: argparse.Namespace) -> None:
    found = _plan(arguments)
    if arguments.json:
        say(json.dumps(found.to_dict(), indent=2))
        return
    say("\n".join(lines_of_sizes(found)))
    for table in tables(found):
        say("")
        show(table)
    say(f"\n{NOTES}")


COMMAND = Command(
    name="plan",
    summary="predict time, traffic and memory of attention over many ranks",
    description="Predict the time, the traffic and the memory of attention over the ranks of a "
    "ring, forward, backward and for one new token. Nothing is run. Numbers may have a prefix: "
    "12.5G, 64Gi, 5u.",
    examples=(
        "headway plan --tokens 1M --ranks 64 --kv-heads 8",
        "headway plan --tokens 10M --ranks 1024 --flop-rate 2T --bandwidth 25G",
        "headway plan --tokens 64Ki --ranks 4 --sharding contiguous --dtype float32",
        "headway plan --memory 64Gi --memory-bandwidth 200G",
        "headway plan --window 4096 --json",
    ),
    failure="",
    arguments=_arguments,
    run=_run,
)
