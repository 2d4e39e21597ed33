"""The contestants: their names, which module prepares them, what they offer.

Nothing here imports a contestant's library; that is done by the worker process of its family.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from inputs import Array, Inputs
from row import QUANTISED, Row

from headway.timing.worker import Unsupported as Unsupported

HALVES = ("float32", "bfloat16", "float16")
MAX_SCORE_BYTES = 4 * 2**30
"""Contestants that store all scores are not asked to store more than this."""


@dataclass
class Prepared:
    """A call that does all the work and nothing else, and how to read what it returns."""

    call: Callable[[], Any]
    result: Callable[[Any], Array]
    note: str = ""
    keep: list[Any] = field(default_factory=list)
    facts: dict[str, float] = field(default_factory=dict)
    """Of a cache: "nbytes" as it says itself, and "resident", the memory it was seen to take."""
    timed: Callable[[float], tuple[list[float], int]] | None = None
    """Of a program with a clock of its own: seconds it may take -> best and median, calls."""


Prepare = Callable[[Row, Inputs], Prepared]


@dataclass(frozen=True)
class Contestant:
    """One way to compute rows of some kinds; contestants of one family share a process."""

    name: str
    title: str
    family: str
    kinds: tuple[str, ...] = ("attention",)
    dtypes: tuple[str, ...] = HALVES
    rival: bool = True
    threads: int | None = None
    """Threads where they are not those of the run."""
    rest: float = 0.05
    """Seconds until its threads have come to rest after a call."""
    compiles: bool = False
    """Whether the first call compiles, and says nothing about the next one."""

    @property
    def process(self) -> str:
        """Name of its worker process."""
        return self.family if self.threads is None else f"{self.family}@{self.threads}"


ATTENTION, MODULE, PROJECTION = "attention", "module", "projection"
OPTIONS, PACKED, DECODE = "options", "packed", "decode"
BACKWARD, TRAIN = "backward", "train"
NUMPY_REST = 0.15  # its BLAS's threads wait for more work for about 0.1 s

CONTESTANTS: dict[str, Contestant] = {
    contestant.name: contestant
    for contestant in (
        Contestant(
            "headway",
            "headway",
            "headway",
            (ATTENTION, MODULE, PROJECTION, OPTIONS, PACKED, DECODE, BACKWARD, TRAIN),
            (*HALVES, "float64", *QUANTISED),
            rival=False,
        ),
        Contestant("headway-bfloat16", "bfloat16 cache", "headway", (), QUANTISED, rival=False),
        Contestant("read", "plain read", "headway", (DECODE,), (*HALVES, *QUANTISED), rival=False),
        Contestant("headway-plain", "plain", "headway", (OPTIONS, PACKED), rival=False),
        Contestant(
            "vllm", "vLLM", "vllm", (ATTENTION, OPTIONS, PACKED, DECODE), (*HALVES, "fp8_e4m3")
        ),
        Contestant("zentorch", "zentorch", "zentorch"),
        Contestant("torch", "PyTorch SDPA", "torch", (ATTENTION, OPTIONS, DECODE)),
        Contestant(
            "torch-flex",
            "flex_attention",
            "torch-flex",
            (ATTENTION, OPTIONS, DECODE),
            compiles=True,
        ),
        Contestant("ort-mha", "ORT MHA", "ort-mha"),
        Contestant("ort-gqa", "ORT GQA", "ort-gqa", (ATTENTION, OPTIONS, DECODE)),
        Contestant("ort-attention", "ORT Attention", "ort-attention", (ATTENTION, DECODE)),
        Contestant("openvino", "OpenVINO", "openvino", (ATTENTION, DECODE)),
        Contestant("jax", "JAX", "jax", (ATTENTION, DECODE), compiles=True),
        Contestant("numpy", "NumPy", "numpy", (ATTENTION, PROJECTION), rest=NUMPY_REST),
        Contestant("torch-module", "PyTorch Linear + SDPA", "torch", (MODULE,)),
        Contestant("torch-mha", "torch.nn.MultiheadAttention", "torch", (MODULE,)),
        Contestant("ort-module", "ORT fused Attention", "ort-module", (MODULE,)),
        Contestant(
            "numpy-products",
            "NumPy's products, headway's attention",
            "numpy-products",
            (MODULE,),
            rest=NUMPY_REST,
        ),
        Contestant("torch-linear", "PyTorch Linear", "torch", (PROJECTION,)),
        Contestant("headway-products", "products alone", "headway", (MODULE,), rival=False),
        Contestant("headway-attention", "attention alone", "headway", (MODULE,), rival=False),
        Contestant("stage-2", "MultiHeadAttention", "headway", ("stages",), rival=False),
        Contestant("stage-1", "StackedMultiHeadAttention", "headway", ("stages",), rival=False),
        Contestant(
            "headway@1",
            "headway, 1 thread",
            "headway",
            (),
            (*HALVES, "float64"),
            rival=False,
            threads=1,
        ),
        Contestant(
            "headway@2",
            "headway, 2 threads",
            "headway",
            (),
            (*HALVES, "float64"),
            rival=False,
            threads=2,
        ),
        Contestant("torch-backward", "PyTorch SDPA", "torch-training", (BACKWARD,)),
        Contestant("torch-backward@1", "PyTorch SDPA, 1 thread", "torch-training", (), threads=1),
        Contestant("headway-assign", "weights assigned, too", "headway", (TRAIN,), rival=False),
        Contestant("torch-train", "PyTorch Linear + SDPA", "torch-training", (TRAIN,)),
        Contestant("study", "study", "study", rival=False),
    )
}

MODULES = {
    "headway": "rivals.own",
    "vllm": "rivals.vllm_cpu",
    "zentorch": "rivals.zen",
    "torch": "rivals.pytorch",
    "torch-flex": "rivals.flex",
    "torch-training": "rivals.pytorch_training",
    "ort-mha": "rivals.onnx_runtime",
    "ort-gqa": "rivals.onnx_runtime",
    "ort-attention": "rivals.onnx_runtime",
    "ort-module": "rivals.onnx_runtime",
    "openvino": "rivals.open_vino",
    "jax": "rivals.jax_nn",
    "numpy": "rivals.plain_numpy",
    "numpy-products": "rivals.mixed",
    "study": "rivals.study",
}
"""Family -> module with PREPARE (contestant name -> Prepare), ``versions()`` and ``threads()``."""


def offered(row: Row) -> list[Contestant]:
    """Who takes part in a row, headway first; the study only where it is asked for by name."""
    if row.contestants:
        return [CONTESTANTS[name] for name in row.contestants]
    return [c for c in CONTESTANTS.values() if row.kind in c.kinds and c.name != "study"]


def refuse_large_scores(row: Row) -> None:
    """Raise where a contestant that stores the scores would need too much memory."""
    if row.score_bytes > MAX_SCORE_BYTES:
        raise Unsupported(f"stores the scores: {row.score_bytes / 2**30:.1f} GiB")


def fastest(candidates: list[tuple[str, Callable[[], Any]]]) -> tuple[str, Callable[[], Any]]:
    """The quickest of several ways to the same result, by the best of three calls.

    Ways that raise are left out, unless all do.
    """
    import time

    if len(candidates) == 1:
        return candidates[0]
    best: tuple[float, str, Callable[[], Any]] | None = None
    failure: Exception | None = None
    for name, call in candidates:
        times: list[float] = []
        try:
            while len(times) < 3 and sum(times) < 2:
                start = time.perf_counter()
                call()
                times.append(time.perf_counter() - start)
        except Exception as error:
            failure = error
            continue
        if best is None or min(times) < best[0]:
            best = (min(times), name, call)
    if best is None:
        raise failure or Unsupported("nothing to try")
    return best[1], best[2]
