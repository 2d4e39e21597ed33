"""``headway check``: does this installation compute what it should?"""

import argparse
import json
import time
from typing import Any

from .. import runtime
from ..self_test import Check, check
from ..self_test_cases import problems
from ..self_test_inputs import DTYPES
from ..text_table import TextTable
from ..weights import checked_dtype
from .common import FAILED, Command, Complaint, load_generators, settings
from .screen import progress, say, show


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--isa", metavar="NAME", help="this instruction set alone (default: all that the CPU has)"
    )
    parser.add_argument("--dtype", choices=DTYPES, help="this dtype alone (default: all four)")
    parser.add_argument(
        "--json", action="store_true", help="as one JSON object, each check by name"
    )


def _isas(wanted: str | None) -> list[str]:
    available = runtime.available_isas()
    if wanted is not None and wanted not in available:
        names = ", ".join(available)
        raise Complaint(f"--isa: expected one of {names}, got {wanted!r}; name one of these")
    return available if wanted is None else [wanted]


def _absent(dtypes: list[str]) -> dict[str, str]:
    """The dtypes that NumPy does not know here, and why."""
    found = {}
    for dtype in dtypes:
        try:
            checked_dtype(dtype)
        except ImportError as error:
            found[dtype] = str(error)
    return found


def _run(arguments: argparse.Namespace) -> int:
    about = settings()
    isas = _isas(arguments.isa)
    dtypes = [arguments.dtype] if arguments.dtype else list(DTYPES)
    absent = _absent(dtypes)
    if arguments.dtype in absent:
        raise Complaint(f"--dtype {arguments.dtype}: {absent[arguments.dtype]}")
    dtypes = [dtype for dtype in dtypes if dtype not in absent]
    threads = 1, max(2, about["num_threads"])
    load_generators()
    if not arguments.json:
        say(
            f"headway {about['version']} on {about['machine']}: every result against the reference "
            f"in\nNumPy, with 1 and {threads[1]} threads, which are to give the same bits.\n"
        )
    start = time.monotonic()
    checks: list[Check] = []
    with progress(len(isas) * len(dtypes)) as bar:
        for dtype in dtypes:
            cases = list(problems(dtype))
            for isa in isas:
                bar.begin(f"{isa} {dtype}")
                checks += check(isa, dtype, cases, threads)
                bar.step()
    seconds = time.monotonic() - start
    if arguments.json:
        say(json.dumps(_record(about, checks, absent, seconds), indent=2))
    else:
        _tell(checks, absent, seconds)
    return FAILED if any(each.trouble for each in checks) else 0


def _record(
    about: dict[str, Any], checks: list[Check], absent: dict[str, str], seconds: float
) -> dict[str, Any]:
    return {
        "passed": not any(each.trouble for each in checks),
        "seconds": round(seconds, 2),
        "not_checked": absent,
        "info": about,
        "checks": [
            # JSON knows no infinity: a check that failed has no share
            {**each._asdict(), "share": None if each.trouble else each.share}
            for each in checks
        ],
    }


def _tell(checks: list[Check], absent: dict[str, str], seconds: float) -> None:
    groups: dict[tuple[str, str], list[Check]] = {}
    for each in checks:
        groups.setdefault((each.isa, each.dtype), []).append(each)
    rows = []
    for (isa, dtype), group in groups.items():
        failed = sum(each.trouble is not None for each in group)
        worst = max((each.share for each in group if each.trouble is None), default=0.0)
        verdict = "FAILED" if failed else "ok"
        share = f"{worst:.0%}" if worst >= 0.01 else "< 1%"
        rows.append([f"{isa} {dtype}", str(len(group)), str(failed), share, verdict])
    header = ["instruction set, dtype", "checks", "failed", "of allowed error", "verdict"]
    show(TextTable(header, rows))
    say("")
    for dtype, why in absent.items():
        say(f"not checked: {dtype}: {why}")
    failures = [each for each in checks if each.trouble]
    for each in failures:
        say(f"FAILED {each.line}")
    verdict = f"{len(failures)} of {len(checks)} checks FAILED" if failures else "All checks passed"
    say(f"{verdict}: {len(checks):,} in {seconds:.1f} s.")


COMMAND = Command(
    name="check",
    summary="test this installation: every instruction set and dtype against the reference",
    description="Test this installation: small problems of every kind on every instruction set "
    "that this CPU has, in every dtype, with one and with all threads, against the reference in "
    "NumPy. It takes some seconds.",
    examples=(
        "headway check",
        "headway check --isa scalar --dtype float64",
        "headway check --json",
    ),
    failure="a check failed",
    arguments=_arguments,
    run=_run,
)
