"""Under mpiexec: every mismatch raises the same text on every rank, and then all go on."""

from __future__ import annotations

import sys

import numpy as np
from mpi4py import MPI

from headway.distributed._agreement import Same, Text, agree

comm = MPI.COMM_WORLD
last = comm.size - 1


def raised(
    same: dict[str, Same], rows: int = 0, failure: Exception | None = None, call: str = "it"
) -> str:
    try:
        got = agree(comm, call, same, rows, failure)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return str(got)


def check(got: str, wanted: str) -> None:
    """The text is as wanted here, and so on every rank."""
    if got != wanted:
        print(f"rank {comm.rank}: got {got!r}, wanted {wanted!r}", file=sys.stderr)
        sys.exit(3)


others = f"ranks {', '.join(map(str, range(last)))}" if last > 1 else "rank 0"
odd = comm.rank == last
fine = {"scale": Same(0.5), "slopes": Same(np.ones(3)), "q": Same(Text("float32"))}

check(raised(fine, 10 + comm.rank), str([10 + rank for rank in range(comm.size)]))
check(
    raised({**fine, "q": Same(Text("float64" if odd else "float32"), TypeError, "convert it")}),
    f"TypeError: q: expected the same on every rank, got float32 on {others}, "
    f"float64 on rank {last}; convert it",
)
check(
    raised({**fine, "window": Same(None if odd else (3, 0))}),
    f"ValueError: window: expected the same on every rank, got (3, 0) on {others}, "
    f"None on rank {last}; pass the same on every rank",
)
check(
    raised({**fine, "sinks": Same(np.array([1.0, odd]))}),
    f"ValueError: sinks: expected the same on every rank, got [1.0, 0.0] on {others}, "
    f"[1.0, 1.0] on rank {last}; pass the same on every rank",
)
check(
    raised(fine, 0, ValueError("k: it is wrong") if odd else None),
    f"ValueError: rank {last}: k: it is wrong",
)
check(raised(fine, 1, OSError("none")), "RuntimeError: rank 0: none")
check(
    raised({} if odd else fine, call="that" if odd else "this"),
    f"ValueError: call: expected the same on every rank, got this on {others}, "
    f"that on rank {last}; make the same call on every rank",
)
check(raised(fine, 1), str([1] * comm.size))
numbers = {"axis": Same(np.int64(-2) if odd else -2), "name": Same(np.str_("x") if odd else "x")}
check(raised(numbers), str([0] * comm.size))  # NumPy's numbers are numbers
