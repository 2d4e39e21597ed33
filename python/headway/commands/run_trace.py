"""``headway trace``: a text on its way through attention, with every object printed or drawn."""

import argparse
from collections.abc import Callable

from .. import demo_text, plotting
from ..modules import MultiHeadAttention
from .common import FAILED, Command, Complaint, at_least, load_generators, settings
from .screen import complain, say


def _arguments(parser: argparse.ArgumentParser) -> None:
    count = at_least(1, demo_text.MOST_TOKENS)
    text = parser.add_mutually_exclusive_group()
    text.add_argument(
        "text",
        metavar="TEXT",
        nargs="?",
        help="the text itself (default: a text about attention that comes with headway)",
    )
    text.add_argument("--file", metavar="FILE", help="a text file in UTF-8 instead")
    parser.add_argument(
        "--heads", type=count, default=2, metavar="N", help="number of heads (default: 2)"
    )
    parser.add_argument(
        "--head-dim", type=count, default=3, metavar="N", help="numbers per head (default: 3)"
    )
    parser.add_argument(
        "--tokens",
        type=count,
        metavar="N",
        help=f"take the first N tokens (default: all of TEXT, {demo_text.SHOWN} of a file; at "
        f"most {demo_text.MOST_TOKENS:,})",
    )
    parser.add_argument("--html", metavar="FILE", help="write a page for the browser, too")
    parser.add_argument("--png", metavar="FILE", help="write a picture, too (extra plot)")


def _run(arguments: argparse.Namespace) -> int:
    try:
        if arguments.text is None:
            text = demo_text.read_text(arguments.file)
        else:
            text = demo_text.tokenize("TEXT", arguments.text)
    except demo_text.TextError as error:
        raise Complaint(str(error)) from None
    settings()
    load_generators()
    whole = arguments.text is not None
    count = arguments.tokens or (demo_text.MOST_TOKENS if whole else demo_text.SHOWN)
    tokens = text.tokens[: min(count, demo_text.MOST_TOKENS)]
    x = demo_text.embed(tokens, sorted(set(text.tokens)))
    width = arguments.heads * arguments.head_dim
    module = MultiHeadAttention.init(x.shape[1], width, num_heads=arguments.heads)
    trace = module.trace(x, tokens=tokens)
    forms: dict[str, tuple[str | None, Callable[[str], object]]] = {
        "Page": (arguments.html, trace.to_html),
        "Picture": (arguments.png, lambda path: plotting.save_picture(trace, 0, path)),
    }
    told = [str(trace)]
    for form, (path, write) in forms.items():  # first, for the reader of the text may go away
        if path is None:
            continue
        try:
            write(path)
        except ImportError as error:
            raise Complaint(str(error)) from None
        except OSError as error:
            return complain(f"{path}: cannot be written ({error.strerror or error})", FAILED)
        told.append(f"{form}: {path}")
    say("\n".join(told))
    return 0 if trace.agrees else FAILED


COMMAND = Command(
    name="trace",
    summary="show every object that a text passes through",
    description="Walk a text through causal multi-head attention with random weights and print "
    "every object on the way: x, and for each head the weights, Q, K, V, scores, mask, attention "
    "weights and Z_n; then Z. They are computed in NumPy, and Z is compared with that of the "
    "fused kernel. A token is a word in lower case (letters, digits, _) or one other character. "
    "Color is for terminals, and not where NO_COLOR is set; COLUMNS sets the width.",
    examples=(
        'headway trace "the cat sat on the mat"',
        'headway trace "the cat sat on the mat" --heads 4 --html trace.html',
        "headway trace --file story.txt --tokens 200 --png trace.png",
    ),
    failure="a result is wrong, a file not written",
    arguments=_arguments,
    run=_run,
)
