"""Time headway and its rivals on the whole grid: python bench/grid.py --help.

Everyone works in a process of its own, is checked first, and is timed in turns. The result file
is written after every row; the same command again goes on where the last one stopped.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import machine


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", default=Path(__file__).with_name("grid.json")
    )
    parser.add_argument("--quick", action="store_true", help="a few rows, 3 rounds")
    parser.add_argument("--rows", nargs="+", metavar="GLOB", help="only these, e.g. 'chunk-*/*'")
    parser.add_argument("--only", nargs="+", metavar="WHO", help="only these contestants")
    parser.add_argument(
        "--threads", type=int, help="of everyone; default: the usable CPUs, at most 2"
    )
    parser.add_argument("--rounds", type=int, help="default 5; 3 from 16,384 tokens on")
    parser.add_argument("--study", type=Path, metavar="PROGRAM", help="see bench/README.md")
    parser.add_argument("--again", action="store_true", help="measure rows that are there already")
    parser.add_argument("--fresh", action="store_true", help="start the result file anew")
    parser.add_argument("--no-memory", action="store_true", help="leave the memory rows out")
    parser.add_argument("--quiet", action="store_true", help="no progress bar, no table")
    parser.add_argument("--list", action="store_true", help="print rows and contestants, run none")
    args = parser.parse_args(arguments)
    for option, most in (("threads", machine.usable_cpus()), ("rounds", 1000)):
        given = getattr(args, option)
        if given is not None and not 1 <= given <= most:
            parser.error(f"--{option}: expected 1 to {most}, got {given}")
    if args.study and args.study.is_dir():
        args.study = args.study / "study"
    if args.study and not args.study.is_file():
        parser.error(f"--study: {args.study}: no such program")
    if not args.list and not args.json.resolve().parent.is_dir():
        parser.error(f"--json: {args.json.parent}: no such folder")
    return args


def stop(text: str) -> SystemExit:
    return SystemExit(f"grid: {text}")


def chosen_rows(args: argparse.Namespace) -> list[Any]:
    """Rows that the options name, in the order of the grid."""
    from rows import all_rows

    rows = [row for row in all_rows() if row.quick or args.rows or not args.quick]
    for pattern in args.rows or ():
        if not any(fnmatchcase(row.id, pattern) for row in rows):
            raise stop(f"--rows {pattern}: names no row; see --list")
    if args.rows:
        rows = [row for row in rows if any(fnmatchcase(row.id, p) for p in args.rows)]
    return rows


def taking_part(row: Any, args: argparse.Namespace) -> list[Any]:
    """The contestants of a row: those that offer it, of those that are wanted."""
    from rivals import CONTESTANTS, offered

    found = offered(row)
    squares = row.kind == "attention" and row.num_queries == row.num_keys
    if args.study and squares and row.layout == "BHTD" and row.dtype != "float64":
        found.append(CONTESTANTS["study"])
        if row.contestants:  # beside one thread
            from dataclasses import replace

            found[-1] = replace(found[-1], threads=1)
    return [c for c in found if not args.only or c.name in args.only]


def header(processes: Any, versions: dict[str, str]) -> dict[str, Any]:
    """What the figures were measured on; needs headway's own worker."""
    if processes.get("headway", "headway") is None:
        hello = processes.hellos["headway"]
        raise stop(f"headway cannot run: {hello.get('unsupported') or hello['failed']}")
    hello = processes.hellos["headway"]
    head = machine.describe(versions | hello["versions"])
    return {
        **head,
        "isa": hello["isa"],
        "build": hello["build"],
        "threads": {"run": processes.threads, "headway": hello["threads"]},
        "blas": [],
    }


def note_contestants(head: dict[str, Any], processes: Any) -> None:
    """Versions and threads of the workers that have started so far."""
    for name, hello in processes.hellos.items():
        if "versions" in hello:
            head["versions"] |= hello["versions"]
            head["threads"][name] = hello["threads"]
        for blas in hello.get("blas", ()):
            if blas not in head["blas"]:
                head["blas"].append(blas)


def cost(row: Any, contestants: Sequence[Any]) -> float:
    """A row's share of the progress bar: about the seconds it takes."""
    return 1 + len(contestants) * (1.5 + min(float(row.flops) / 5e10, 60.0))


def measure_rows(plan: list[tuple[Any, list[Any]]], args: Any, store: Any, measurer: Any) -> None:
    """Measure what is not there yet."""
    from tqdm import tqdm

    form = "{l_bar}{bar}| {elapsed} elapsed, {remaining} left"
    total = sum(cost(*each) for each in plan)
    with tqdm(total=total, bar_format=form, disable=args.quiet, file=sys.stderr) as bar:
        for row, contestants in plan:
            bar.set_description(row.id)
            record = measurer.row(row, contestants)
            note_contestants(store.data["head"], measurer.processes)
            store.add("rows", row.id, {**record, **machine.moment()})
            bar.update(min(cost(row, contestants), total - bar.n))


def measure_memory(args: Any, store: Any, threads: int) -> None:
    import memory

    for dtype, tokens, options in memory.ROWS[: 1 if args.quick else None]:
        name = f"{dtype}/{tokens}" + ("/options" if options else "")
        if name not in store.data["memory"] or args.again:
            found = memory.in_a_process(tokens, dtype, threads=threads, options=options)
            what = {"tokens": tokens, "dtype": dtype, "options": options}
            store.add("memory", name, {"mib": found, **what})


def measure_bandwidth(store: Any, measurer: Any) -> None:
    from rivals import CONTESTANTS

    if "bandwidth" not in store.data:
        said = measurer.ask(CONTESTANTS["headway"], "bandwidth", 60, length=1.0, bytes=2**30)
        store.data["bandwidth"] = said.get("gbytes")


def show(args: argparse.Namespace) -> int:
    for row in chosen_rows(args):
        print(f"{row.id}: {', '.join(c.name for c in taking_part(row, args))}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse(arguments)
    try:
        import numpy
        import tqdm  # noqa: F401
    except ImportError as error:
        raise stop(f"{error.name} is missing; pip install 'headway[bench]'") from None
    from rivals import CONTESTANTS

    for name in args.only or ():
        if name not in CONTESTANTS:
            raise stop(f"--only {name}: unknown; known: {', '.join(CONTESTANTS)}")
    if args.list:
        return show(args)

    from compare import table
    from measure import Measurer
    from processes import Processes
    from store import BadFile, Store

    rows = chosen_rows(args)
    extra = {"BENCH_STUDY": str(args.study.resolve())} if args.study else {}
    threads = args.threads or min(machine.usable_cpus(), 2)
    with tempfile.TemporaryDirectory(prefix="headway-bench-") as folder:
        extra["TORCHINDUCTOR_CACHE_DIR"] = f"{folder}/inductor"
        processes = Processes(threads, Path(folder), extra)
        try:
            head = header(processes, {"reference's numpy": numpy.__version__})
            try:
                store = Store(args.json, head, args.fresh)
            except BadFile as bad:
                raise stop(f"{bad}; --fresh overwrites it") from None
            if store.left_over:
                print(
                    f"grid: {store.left_over} records of another build, machine or number of "
                    "threads are measured anew or dropped",
                    file=sys.stderr,
                )
            plan = [(row, taking_part(row, args)) for row in rows]
            plan = [
                (row, who)
                for row, who in plan
                if who and (args.again or not store.done(row.id, [c.name for c in who]))
            ]
            measurer = Measurer(processes, Path(folder), args.rounds or (3 if args.quick else None))
            measure_bandwidth(store, measurer)
            measure_rows(plan, args, store, measurer)
            if not args.no_memory and not args.rows and not args.only:
                measure_memory(args, store, threads)
        except KeyboardInterrupt:
            raise stop("stopped; the same command goes on from here") from None
        finally:
            processes.close()
    if not args.quiet:
        print(table(store.data, {row.id for row in rows}))
    return 0


if __name__ == "__main__":
    machine.without_blas_overrides()
    raise SystemExit(main())
