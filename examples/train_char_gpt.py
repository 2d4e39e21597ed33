"""Train a small GPT on the sources of Python's standard library, in NumPy and headway alone.

    pip install '.[examples]'
    python examples/train_char_gpt.py
    python examples/train_char_gpt.py --resume --sample 2000
    python examples/train_char_gpt.py --data FILE --out FOLDER

The folder gets checkpoint.safetensors, every so many steps, and loss.png at the end; then the model
writes a text of its own. Ctrl-C saves and ends; --resume goes on to the same bits.
"""

from __future__ import annotations

import argparse
import math
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import terminal
from char_gpt_options import DEFAULTS, parse
from terminal import Complaint

if TYPE_CHECKING:
    from char_gpt_run import Run
    from char_gpt_text import Text

PACKAGES = ("headway", "matplotlib", "safetensors", "tqdm")
CHECKPOINT, PICTURE = "checkpoint.safetensors", "loss.png"


class Interruption:
    """While it is open, Ctrl-C and a plain kill are only noted; a second one ends the program."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __enter__(self) -> Interruption:
        self.came: int | None = None
        self.before = {number: signal.signal(number, self.note) for number in self.SIGNALS}
        return self

    def note(self, number: int, frame: FrameType | None) -> None:
        self.came = number
        self.__exit__()

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)


# A run --------------------------------------------------------------------------------------------


def require(names: Sequence[str]) -> None:
    """A complaint where packages are missing."""
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise Complaint(f"missing: {', '.join(missing)}; pip install '.[examples]'")


def open_text(data: str, context: int) -> Text:
    """The text of that file, or of the standard library."""
    from char_gpt_text import one_file, standard_library

    try:
        text = one_file(Path(data)) if data else standard_library()
    except OSError as error:
        raise Complaint(f"the text cannot be read: {error}") from None
    shortest = min(len(text.training), len(text.validation))
    if shortest <= context:
        raise Complaint(
            f"--data: expected parts of more than {context} bytes for training and validation, got "
            f"one of {shortest}; take a longer text or a smaller --context"
        )
    return text


def begin(options: argparse.Namespace) -> Run:
    """A new run."""
    from char_gpt_run import Run, Settings

    checkpoint = options.out / CHECKPOINT
    if checkpoint.exists():
        raise Complaint(
            f"{checkpoint} is there; --resume goes on with it, another --out begins anew"
        )
    given = {name: getattr(options, name) for name in DEFAULTS}
    settings = Settings(**{n: DEFAULTS[n] if v is None else v for n, v in given.items()})
    if settings.width % settings.heads:
        raise Complaint(
            f"--width: expected a multiple of --heads {settings.heads}, got {settings.width}"
        )
    run = Run(settings, open_text(settings.data, settings.context))
    save(run, options.out)
    return run


def resume(options: argparse.Namespace) -> Run:
    """The run of the checkpoint in the folder."""
    from char_gpt_run import Run, Settings, read

    path = options.out / CHECKPOINT
    if not path.is_file():
        raise Complaint(f"--resume: there is no {path}; leave it out to begin a run")
    try:
        about, tensors = read(path)
        settings = Settings(**about["settings"])
        for name, value in asdict(settings).items():
            given = getattr(options, name)
            if given not in (None, value):
                option = "--" + name.replace("_", "-")
                text = "the standard library" if value == "" else value
                raise Complaint(
                    f"{option}: the run in {path} has {text}, got "
                    f"{given}; leave {option} out, or begin a run in another --out"
                )
        run = Run(settings, open_text(settings.data, settings.context))
        if run.text.digest != about["text"]:
            raise Complaint("--resume: the text is not the one that this run began with")
        run.restore(about, tensors)
    except Complaint:
        raise
    except Exception as error:  # safetensors has errors of its own, and any number may be wrong
        raise Complaint(f"{path} cannot be read: {' '.join(str(error).split())}") from None
    return run


def save(run: Run, folder: Path) -> None:
    """Write the checkpoint."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        run.save(folder / CHECKPOINT)
    except OSError as error:
        raise Complaint(f"--out: the checkpoint cannot be written: {error}") from None


def train(run: Run, options: argparse.Namespace) -> int | None:
    """Do the steps that are left; the signal that came meanwhile, if one did."""
    from tqdm import tqdm

    steps, tokens = run.settings.steps, run.settings.batch * run.settings.context
    start, first = time.perf_counter(), run.step
    with (
        Interruption() as interruption,
        tqdm(total=steps, initial=first, unit="step", disable=None, dynamic_ncols=True) as bar,
    ):
        while run.step < steps:
            loss = run.advance()
            if not math.isfinite(loss):
                raise Complaint(
                    f"the loss of step {run.step} is {loss}; begin anew with a smaller "
                    f"--learning-rate than {run.settings.learning_rate:g}"
                )
            speed = (run.step - first) * tokens / (time.perf_counter() - start)
            bar.set_postfix_str(f"loss {loss:.3f}, {speed:,.0f} tokens/s", refresh=False)
            bar.update()
            last = run.step == steps
            if last or run.step % run.settings.validate_every == 0:
                report = f"step {run.step}: training {loss:.3f}, validation {run.validate():.3f}"
                bar.write(f"{report}, {speed:,.0f} tokens/s")
            if last or run.step % options.save_every == 0 or interruption.came:
                save(run, options.out)
            if interruption.came:
                break
    return interruption.came


def write_sample(run: Run, options: argparse.Namespace) -> None:
    """Let the model write, byte by byte."""
    import codecs

    import numpy as np
    from char_gpt_text import sample

    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    generator = np.random.default_rng(run.settings.seed)
    prompt = options.prompt.encode()
    print(options.prompt, end="")
    for byte in sample(run.model, prompt, options.sample, options.temperature, generator):
        print(decoder.decode(byte), end="", flush=True)
    print(decoder.decode(b"", final=True), flush=True)


def work(options: argparse.Namespace) -> int:
    """Train, draw, sample."""
    require(PACKAGES)
    import headway

    try:
        headway.isa()  # complains where the environment names one that is not there
    except ValueError as error:
        raise Complaint(str(error)) from None
    if options.threads is not None:
        try:
            headway.set_num_threads(options.threads)
        except ValueError as error:
            raise Complaint(f"--threads: {str(error).partition(': ')[2]}") from None
    from char_gpt_plot import draw

    run = resume(options) if options.resume else begin(options)
    came = train(run, options)
    if came is not None:
        print(
            f"train_char_gpt: stopped; step {run.step} of {run.settings.steps} is saved in "
            f"{options.out / CHECKPOINT}, --resume goes on from there",
            file=sys.stderr,
        )
        return 128 + came
    try:
        draw(options.out / PICTURE, run.losses, run.validation)
    except OSError as error:
        raise Complaint(f"--out: the picture cannot be written: {error}") from None
    if options.sample:
        write_sample(run, options)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; the exit code: 0, 2 for wrong use, 128 + the signal that stopped it."""
    options = parse(arguments)
    return terminal.run("train_char_gpt", lambda: work(options))


if __name__ == "__main__":
    raise SystemExit(main())
