"""Time headway against NumPy and, where installed, PyTorch: python bench/bench.py --help."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import machine


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the short list of cases, 3 rounds")
    parser.add_argument("--cases", nargs="+", metavar="NAME", help="only these (see --list)")
    parser.add_argument("--only", nargs="+", metavar="WHO", help="of headway, numpy, torch")
    parser.add_argument("--threads", nargs="+", type=int, help="default: as many as headway uses")
    parser.add_argument("--rounds", type=int, help="default 7")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument("--list", action="store_true", help="print the cases' names, run none")
    args = parser.parse_args(arguments)
    for option in ("rounds", "threads"):
        given = getattr(args, option)
        smallest = min(given) if isinstance(given, list) else given
        if smallest is not None and smallest < 1:
            parser.error(f"--{option}: expected at least 1, got {smallest}")
    return args


def chosen(wanted: Sequence[str] | None, known: Sequence[str], option: str) -> list[str]:
    """The wanted names in the known order, all where none is wanted; SystemExit at a stranger."""
    for name in wanted or ():
        if name not in known:
            raise SystemExit(f"bench: {option} {name}: unknown; known here: {', '.join(known)}")
    return [name for name in known if not wanted or name in wanted]


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse(arguments)
    # NumPy loads its BLAS here, not before the settings of the environment are as they should be.
    import suite
    from rivals import installed
    from shapes import CASES

    import headway

    if args.list:
        print("\n".join(case.name for case in CASES))
        return 0
    names = chosen(args.cases, [case.name for case in CASES], "--cases")
    cases = [c for c in CASES if c.name in names and (c.quick or args.cases or not args.quick)]
    rivals = installed()
    who = chosen(args.only, [rival.name for rival in rivals], "--only")
    data = suite.run(
        cases,
        args.threads or [headway.get_num_threads()],
        [rival for rival in rivals if rival.name in who],
        args.rounds or (3 if args.quick else 7),
        quiet=args.quiet,
    )
    if args.json:
        args.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    print(suite.report(data))
    return 0


if __name__ == "__main__":
    machine.without_blas_overrides()
    raise SystemExit(main())
