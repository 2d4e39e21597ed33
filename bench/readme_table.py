"""Write the speed table of README.md from a result file: python bench/readme_table.py A.json."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from compare import by_case, load

BEGIN, END = "<!-- speed:begin -->", "<!-- speed:end -->"


def speed_table(data: dict[str, Any]) -> str:
    """Markdown: machine and versions in one line, then best milliseconds per case."""
    shown = [name for name in ("headway", "torch", "numpy") if name in data["versions"]]
    titles = {"headway": "headway", "torch": "PyTorch", "numpy": "NumPy"}
    versions = ", ".join(f"{titles[name]} {data['versions'][name]}" for name in shown)
    head = ["shape (B, H, Hkv, Tq, Tk, D)", "dtype", "threads"]
    head += [*(titles[name] for name in shown), "GFLOP/s", "of peak"]
    where = data["machine"]
    lines = [
        f"{where['cpu']}, {where['usable_cpus']} CPUs, ISA {data['isa']}; {versions}.",
        "Milliseconds, best (median) of interleaved rounds; the last two columns are headway's.",
        "",
        "| " + " | ".join(head) + " |",
        "|---|---|" + "--:|" * (len(head) - 2),
    ]
    for (_, threads), entries in by_case(data).items():
        own = entries["headway"]
        sizes = ("batch", "num_heads", "num_kv_heads", "num_queries", "num_keys", "head_dim")
        cells = [", ".join(str(own["shape"][name]) for name in sizes), own["dtype"], str(threads)]
        cells += [milliseconds(entries.get(name)) for name in shown]
        share = own["fraction_of_peak"]
        cells += [f"{own['gflops_best']:.0f}", "-" if share is None else f"{share:.0%}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def milliseconds(entry: dict[str, Any] | None) -> str:
    if entry is None:
        return "-"
    best, median = (entry[key] * 1e3 for key in ("wall_min", "wall_median"))
    digits = 0 if best >= 100 else 1 if best >= 10 else 2 if best >= 1 else 3
    return f"{best:.{digits}f} ({median:.{digits}f})"


def rewrite(text: str, table: str) -> str:
    """`text` with everything between the two comments replaced by `table`."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"readme_table: expected {BEGIN} and {END} in this order")
    return f"{before}{begin}\n{table}\n{end}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, metavar="A.json")
    parser.add_argument("--readme", type=Path, default=Path(__file__).parents[1] / "README.md")
    args = parser.parse_args()
    text = args.readme.read_text(encoding="utf-8")
    args.readme.write_text(rewrite(text, speed_table(load(args.results))), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
