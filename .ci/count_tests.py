"""Print `passed failed skipped` over the pytest reports (tests-*.xml) of a folder.

A test that ran in two reports counts once, as in the later one.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path


def outcome(case: ET.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "skipped" if case.find("skipped") is not None else "passed"


def main(folder: str) -> int:
    last: dict[tuple[str, str], str] = {}
    modules: dict[str, str] = {}
    for report in sorted(Path(folder).glob("tests-*.xml")):
        for case in ET.parse(report).iter("testcase"):
            owner, name = case.get("classname", ""), case.get("name", "")
            if owner:
                last[owner, name] = outcome(case)
            else:  # a whole file that could not be imported
                modules[name] = outcome(case)
    run = {owner for owner, _ in last}
    kept = [verdict for name, verdict in modules.items() if name not in run]
    count = Counter(last.values()) + Counter(kept)
    print(count["passed"], count["failed"], count["skipped"])
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
