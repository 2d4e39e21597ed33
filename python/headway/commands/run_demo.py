"""``headway demo``: a text on its way through a two-head module, and a layer of real size."""

import argparse

from .. import demo_layer, demo_text, demo_walk
from .common import FAILED, Command, Complaint, load_generators, settings
from .screen import encoding, say


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "text",
        metavar="TEXT_FILE",
        nargs="?",
        help="a text file in UTF-8 (default: a text about attention that comes with headway)",
    )


def _run(arguments: argparse.Namespace) -> int:
    try:
        text = demo_text.read_text(arguments.text)
    except demo_text.TextError as error:
        raise Complaint(str(error)) from None
    settings()
    load_generators()
    passed = True
    for step in demo_walk.walk(text, encoding()):
        passed = passed and step.passed
        say("\n".join([*step.lines, ""]))
    step = demo_layer.real_size()
    say("\n".join(step.lines))
    return 0 if passed and step.passed else FAILED


COMMAND = Command(
    name="demo",
    summary="walk a text through a two-head module, then time a layer of real size",
    description="Walk a text through a two-head attention module and print every object on "
    "the way; compare both stages with plain NumPy; then time a layer of real size.",
    examples=("headway demo", "headway demo story.txt"),
    failure="a result is wrong",
    arguments=_arguments,
    run=_run,
)
