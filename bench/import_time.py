"""What `import headway` costs beyond `import numpy`: best and median over fresh processes."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

PROGRAM = """
import numpy, time
start = time.perf_counter()
import headway
print((time.perf_counter() - start) * 1e3)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=15)
    parser.add_argument("--limit", type=float, default=30.0, help="ms; from there on exit code 1")
    args = parser.parse_args()
    command = [sys.executable, "-c", PROGRAM]
    times = [
        float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        for _ in range(args.processes + 1)
    ][1:]
    best, middle = min(times), statistics.median(times)
    print(f"import headway, beyond numpy: best {best:.1f} ms, median {middle:.1f} ms")
    return 0 if best < args.limit else 1


if __name__ == "__main__":
    raise SystemExit(main())
