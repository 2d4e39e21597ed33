"""The CPU quota of a container, read from made files of control groups."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from headway import _core

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="this machine: no control groups")

CGROUP = "sys/fs/cgroup"
GROUP = "proc/self/cgroup"


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({}, 0.0),
        ({GROUP: "0::/\n"}, 0.0),
        ({GROUP: "0::/\n", f"{CGROUP}/cpu.max": "150000 100000\n"}, 1.5),
        ({GROUP: "0::/\n", f"{CGROUP}/cpu.max": "max 100000\n"}, 0.0),
        ({GROUP: "0::/a/b\n", f"{CGROUP}/a/b/cpu.max": "300000 100000"}, 3.0),
        # A parent's quota holds for its children.
        (
            {
                GROUP: "0::/a/b\n",
                f"{CGROUP}/a/b/cpu.max": "max 100000",
                f"{CGROUP}/a/cpu.max": "50000 100000",
                f"{CGROUP}/cpu.max": "400000 100000",
            },
            0.5,
        ),
        # A container sees its own folder at the root, under a path that is the host's.
        ({GROUP: "0::/../../docker/x\n", f"{CGROUP}/cpu.max": "200000 100000"}, 2.0),
        (
            {
                GROUP: "3:memory:/m\n2:cpu,cpuacct:/docker/x\n",
                f"{CGROUP}/cpu,cpuacct/docker/x/cpu.cfs_quota_us": "250000\n",
                f"{CGROUP}/cpu,cpuacct/docker/x/cpu.cfs_period_us": "100000\n",
            },
            2.5,
        ),
        (
            {
                GROUP: "2:cpu:/x\n",
                f"{CGROUP}/cpu/x/cpu.cfs_quota_us": "-1\n",
                f"{CGROUP}/cpu/x/cpu.cfs_period_us": "100000\n",
            },
            0.0,
        ),
        ({GROUP: "no line of it\n:::\n", f"{CGROUP}/cpu.max": "garbage"}, 0.0),
    ],
)
def test_container_quota(tmp_path: Path, files: dict[str, str], wanted: float) -> None:
    """The smallest of the group and its parents; 0 where there is none."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert _core.container_quota(str(tmp_path)) == wanted


@pytest.mark.parametrize(
    ("quota", "most"), [("50000 100000", 1), ("100000 100000", 1), ("150000 100000", 2), ("max", 0)]
)
def test_a_quota_limits_the_default(tmp_path: Path, quota: str, most: int) -> None:
    """Rounded up to whole CPUs, and never more than the affinity mask allows."""
    for name, text in ((GROUP, "0::/\n"), (f"{CGROUP}/cpu.max", quota + "\n")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    allowed = len(os.sched_getaffinity(0))
    assert _core.usable_cpus(str(tmp_path)) == (min(most, allowed) if most else allowed)
