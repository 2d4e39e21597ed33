"""Call everything that is public with random arguments, good and bad, again and again.

    python tests/fuzz_calls.py --calls 1000000 --seed 0

Every call either raises TypeError, ValueError or MemoryError, or returns results of the shapes and
dtypes that it must, finite where the input is; every n-th result is compared with the reference.
Good arguments must not raise. The program watches its memory and its pace: it ends with code 1 at a
wrong result, an exception of another kind, a call that hangs, memory that grows, or the end of the
computing process, and names the number of the call, which ``--first NUMBER --calls 1`` repeats.
"""

from __future__ import annotations

import argparse
import faulthandler
import mmap
import os
import struct
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable

import fuzz_histories
import fuzz_targets
import numpy as np
from fuzz_dice import Dice
from fuzz_targets import Call

import headway

#: How often each comes, of all; the last two cost most.
FUNCTIONS: list[tuple[float, Callable[[Dice], Call]]] = [
    (0.37, fuzz_targets.attention),
    (0.11, fuzz_targets.matrices),
    (0.11, fuzz_targets.backward),
    (0.12, fuzz_targets.packed),
    (0.05, fuzz_targets.merging),
    (0.06, fuzz_targets.rotary),
    (0.04, fuzz_targets.numbers),
    (0.002, fuzz_targets.tracing),
]
HISTORIES: list[tuple[float, Callable[[Dice], int]]] = [
    (0.05, fuzz_histories.kv_cache),
    (0.05, fuzz_histories.paged_cache),
    (0.02, fuzz_histories.projection),
    (0.01, fuzz_histories.module),
]
HANG = 900  # seconds for a thousand calls, on a machine that others use, too
BLOCK = 1000
MOST_GROWTH = 24 * 2**20  # bytes, after the first tenth of the calls


def check(call: Call, dice: Dice, compare: bool) -> None:
    """Run a call with good arguments and check its results."""
    found = call.run()
    if call.wanted is None:
        return
    assert len(found) == len(call.wanted), f"{len(found)} results, wanted {len(call.wanted)}"
    unbounded = call.unbounded or (False,) * len(found)
    for x, (shape, dtype), free in zip(found, call.wanted, unbounded, strict=False):
        assert x.shape == shape, f"shape {x.shape}, wanted {shape}"
        assert x.dtype == dtype, f"dtype {x.dtype}, wanted {dtype}"
        if not dice.odd and not np.isfinite(x).all():
            assert not np.isnan(x).any(), "a NaN from finite numbers"
            assert free, "an infinity from finite numbers"
    if compare and fuzz_targets.may_compare(call, dice):
        for n, (x, wanted) in enumerate(zip(found, call.expected(), strict=True)):
            close(np.asarray(x), wanted, call.allowed[n], call.size, n)


def close(x: np.ndarray, wanted: np.ndarray, allowed: float, size: float, n: int) -> None:
    """Fail unless the error is within what is allowed, relative to the scale."""
    wide, wanted = x.astype(np.float64), wanted.astype(np.float64)
    assert wide.shape == wanted.shape
    finite = np.isfinite(wanted)
    assert np.array_equal(wide[~finite], wanted[~finite]), f"result {n}: infinities elsewhere"
    if finite.any():
        scale = max(np.abs(wanted[finite]).max(), size)
        found = np.abs(wide[finite] - wanted[finite]).max() / scale
        assert found <= allowed, (
            f"result {n}: error {found:.2e} of the scale, allowed {allowed:.1e}"
        )


def spoil(call: Call, dice: Dice) -> None:
    """Change one or two of the arguments for the worse, or leave one out."""
    for _ in range(dice.one((1, 1, 1, 2))):
        names = list(call.options)
        if names and dice.chance(0.4):
            name = dice.one(names)
            call.options[name] = dice.spoilt(call.options[name])
        elif call.args and dice.chance(0.8):
            place = dice.random.randrange(len(call.args))
            call.args[place] = dice.spoilt(call.args[place])
        else:
            known = ("mask", "window", "scale", "sinks", "out", "align", "layout", "positions", "x")
            call.options[dice.one(known)] = dice.junk()


def one_call(number: int, dice: Dice, compare_each: int, outcomes: Counter[str]) -> int:
    """Make the call of this number; return how many calls it was."""
    dice.restart(number)
    kinds: list[tuple[float, Callable[[Dice], Call | int]]] = [*FUNCTIONS, *HISTORIES]
    make = dice.random.choices([kind for _, kind in kinds], [share for share, _ in kinds])[0]
    made = make(dice)
    if isinstance(made, int):
        outcomes[make.__name__] += made
        return made
    if dice.chance(0.7):
        check(made, dice, number % compare_each == 0)
        outcomes[make.__name__] += 1
        return 1
    spoil(made, dice)
    refusal = fuzz_histories.refusal_of(made.run)
    outcomes[type(refusal).__name__ if refusal else "bad, but taken"] += 1
    return 1


def resident() -> int:
    """Bytes of memory that the process has now."""
    with open("/proc/self/statm") as pages:
        return int(pages.read().split()[1]) * mmap.PAGESIZE


def compute(first: int, calls: int, seed: int, compare_each: int, place: mmap.mmap) -> int:
    """Make the calls in this process; the number of the present one stands in shared memory."""
    dice, outcomes = Dice(seed), Counter[str]()
    warnings.simplefilter("error")
    done, number, warm, start = 0, first, None, time.perf_counter()
    while done < calls:
        if (number - first) % BLOCK == 0:
            faulthandler.dump_traceback_later(HANG, exit=True)
            headway.set_num_threads((1, 1, 1, 1, 1, 1, 2, 3)[number // BLOCK % 8])
            assert dice.unchanged(), f"an input was written to before call {number}"
            if warm is None and done >= calls // 10:
                warm = resident()
        place[:8] = struct.pack("q", number)
        try:
            done += one_call(number, dice, compare_each, outcomes)
        except Exception:
            traceback.print_exc()
            print(f"call {number} with seed {seed} failed")
            return 1
        number += 1
    faulthandler.cancel_dump_traceback_later()
    taken = time.perf_counter() - start
    assert dice.unchanged(), "an input was written to"
    grown = resident() - (warm or 0)
    print(
        f"{done} calls, {taken:.0f} s, {1e6 * taken / done:.0f} microseconds each; "
        f"memory grew by {grown / 2**20:.1f} MiB after the first tenth, to {resident() / 2**20:.0f}"
    )
    print(", ".join(f"{name} {count}" for name, count in outcomes.most_common()))
    if calls >= 10 * BLOCK and grown > MOST_GROWTH:
        print("that is a leak")
        return 1
    return 0


def main() -> int:
    """Make the calls in a child and say where it ended, if it did not end well."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first call")
    parser.add_argument("--compare-each", type=int, default=20, metavar="N")
    asked = parser.parse_args()
    place = mmap.mmap(-1, 8)
    faulthandler.enable()
    child = os.fork()
    if child == 0:
        code = 2
        try:
            code = compute(asked.first, asked.calls, asked.seed, asked.compare_each, place)
            sys.stdout.flush()
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status not in (0, 1):
        number = struct.unpack("q", place[:8])[0]
        print(f"the process ended with {status} at call {number} with seed {asked.seed}")
    return min(abs(status), 1)


if __name__ == "__main__":
    sys.exit(main())
