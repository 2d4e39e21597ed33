"""Who takes part, and the program of its process."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from ..comparison import relative_error
from ..timing import worker
from ..timing.worker import Message
from .rows import Array, Row, inputs


class Peer(NamedTuple):
    """A library that computes the rows."""

    title: str
    module: str
    """Of this package: ``versions()``, ``threads()`` and ``prepare(row, arrays)``."""
    bare: bool = True
    """Whether its process holds no headway."""
    rest: float = 0.05
    """Seconds until its threads have come to rest after a call."""


PEERS = {
    "headway": Peer("headway", "own", bare=False),
    "numpy": Peer("NumPy", "plain_numpy", rest=0.15),  # its BLAS's threads wait for more work
    "torch": Peer("PyTorch", "pytorch"),
    "onnxruntime": Peer("ONNX Runtime", "onnx_runtime"),
}


class Prepared(NamedTuple):
    """A call that does all the work and nothing else, and how to read what it returns."""

    call: Callable[[], Any]
    result: Callable[[Any], Array]


class Contestant(worker.Worker):
    """One peer, and the calls that are prepared."""

    def __init__(self, peer: str) -> None:
        super().__init__()
        self.module: Any = import_module(f".{PEERS[peer].module}", __package__)

    def hello(self, _: Message) -> Message:
        """Versions and threads; of headway the instruction set, too."""
        said: Message = {"versions": self.module.versions(), "threads": self.module.threads()}
        if hasattr(self.module, "isa"):
            said["isa"] = self.module.isa()
        return said

    def prepare(self, message: Message) -> Message:
        """Make a contestant's call, and compare what it returns with the reference."""
        row = Row(*message["row"])
        made: Prepared = self.module.prepare(row, inputs(row))
        before = time.perf_counter()
        result = made.call()
        first = time.perf_counter() - before
        with np.load(message["reference"]) as reference:
            error = relative_error(made.result(result), reference["wanted"])
        self.prepared[message["contestant"]] = made
        return {"error": error, "first": first}


def main(peer: str) -> None:
    """Serve as the process of a peer."""
    worker.main(lambda: Contestant(peer))
