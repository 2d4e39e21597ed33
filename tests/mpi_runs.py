"""Programs under mpiexec, for the tests of headway.distributed: every run ends in bounded time.

A test file imports this module; where mpi4py or mpiexec is absent, its tests are skipped.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

import pytest
from helpers import clean_environment

HERE = Path(__file__).parent


def mpiexec() -> str | None:
    """The mpiexec of this environment, as the package mpich installs it, else any on the PATH."""
    own = Path(sysconfig.get_path("scripts")) / "mpiexec"
    return str(own) if own.exists() else shutil.which("mpiexec")


def missing() -> bool:
    """Does this machine lack mpi4py or mpiexec? Neither is imported here: that would start MPI."""
    return importlib.util.find_spec("mpi4py") is None or mpiexec() is None


#: Runs in the stage of the CI that installs mpi4py and an MPI from packages.
needs_mpi = pytest.mark.skipif(missing(), reason="another stage: mpi (it installs headway[mpi])")


class Ended(NamedTuple):
    """How a job ended."""

    code: int
    out: str
    err: str

    def lines(self, start: str) -> list[str]:
        """Lines of stderr that begin so."""
        return [line for line in self.err.splitlines() if line.startswith(start)]


def run_ranks(program: str, ranks: int, *arguments: str, timeout: float = 400.0) -> Ended:
    """Run a program of tests/ with this many ranks of one thread each, more than cores or not.

    The job has a session of its own, and all of it is killed when it does not end in time: that
    is a failure of the test.
    """
    runner = mpiexec()
    assert runner is not None
    settings = {"HEADWAY_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [runner, "-n", str(ranks), sys.executable, "-m", "mpi4py", str(HERE / program), *arguments],
        env=clean_environment(settings),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as job:
        try:
            out, err = job.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
            out, err = job.communicate()
            raise AssertionError(
                f"{program} with {ranks} ranks did not end in {timeout:g} s\n{out}\n{err}"
            ) from None
        except BaseException:
            os.killpg(job.pid, signal.SIGKILL)
            raise
    return Ended(job.returncode, out, err)


def assert_all_agree(program: str, ranks: int, *arguments: str, timeout: float = 400.0) -> Ended:
    """The program ends well on every rank."""
    ended = run_ranks(program, ranks, *arguments, timeout=timeout)
    assert ended.code == 0, f"exit code {ended.code}\n{ended.out}\n{ended.err}"
    return ended
