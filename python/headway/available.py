"""How much memory a process can still have: what is free, and what its container allows."""

from __future__ import annotations

import os
from collections.abc import Iterator

ALWAYS_THERE = 2**30
"""Bytes below which nobody asks."""

_ENDLESS = 2**63


def available_bytes(root: str = "/") -> int:
    """Bytes that this process can still use without being ended for it; 2**63 if unknown.

    The least of the memory that Linux calls available, with the swap space that is free, and of
    what the limits of this process's control groups (versions 1 and 2) and their parents leave.
    Files are read below ``root``.
    """
    least = _ENDLESS
    sizes = _sizes(os.path.join(root, "proc/meminfo"))
    if "MemAvailable" in sizes:
        least = 1024 * (sizes["MemAvailable"] + sizes.get("SwapFree", 0))
    for folder, limit_file, used_file in _groups(root):
        limit, used = _number(folder, limit_file), _number(folder, used_file)
        if limit is not None and used is not None:
            least = min(least, max(limit - used + _reclaimable(folder), 0))
    return least


def _groups(root: str) -> Iterator[tuple[str, str, str]]:
    """(folder, file of the limit, file of what is used) of each control group of this process."""
    for line in _lines(os.path.join(root, "proc/self/cgroup")):
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            base, names = "sys/fs/cgroup", ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            base = "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        parts = [part for part in path.split("/") if part]
        for count in range(len(parts), -1, -1):
            yield os.path.join(root, base, *parts[:count]), *names


def _reclaimable(folder: str) -> int:
    """Bytes of files that the system keeps for a control group and gives up on demand."""
    found = _sizes(os.path.join(folder, "memory.stat"))
    return found.get("inactive_file", found.get("total_inactive_file", 0))


def _sizes(path: str) -> dict[str, int]:
    """The numbers of a file with a name and a number in each line."""
    found = {}
    for line in _lines(path):
        words = line.replace(":", " ").split()
        if len(words) >= 2 and words[1].isdigit():
            found[words[0]] = int(words[1])
    return found


def _number(folder: str, name: str) -> int | None:
    """The number in a file; None where there is none, or no limit."""
    text = " ".join(_lines(os.path.join(folder, name))).strip()
    return int(text) if text.isdigit() else None


def _lines(path: str) -> list[str]:
    try:
        with open(path) as file:
            return file.read().splitlines()
    except (OSError, UnicodeDecodeError):
        return []
