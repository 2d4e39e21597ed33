"""The C++ extension. Arrays are (B, H, T, D) views that `headway.calls` has passed.

`options` is a `headway.options.Options`, or None; packed sequences are one batch entry, cut at the
(n + 1,) int64 offsets `queries` and `keys`.
"""

from typing import Any

import numpy as np

_Array = np.ndarray[Any, Any]

def attention(
    q: _Array,
    k: _Array,
    v: _Array,
    out: _Array,
    lse: _Array | None,
    kind: str,
    out_kind: str,
    scale: float | None,
    causal: bool,
    offsets: list[int],
    options: object,
    /,
) -> None: ...
def new_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> _Array: ...
def attention_plain(
    q: object,
    k: object,
    v: object,
    causal: object,
    tokens_first: bool,
    mask: object = None,
    window: object = None,
    softcap: object = None,
    alibi_slopes: object = None,
    sinks: object = None,
    /,
) -> _Array | None: ...
def attend_plain(
    q: object,
    parts: tuple[str, _Array, _Array, _Array | None, _Array | None],
    table: _Array,
    lengths: list[int],
    causal: object,
    tokens_first: bool,
    mask: object,
    window: object,
    softcap: object,
    alibi_slopes: object,
    sinks: object,
    /,
) -> _Array | None: ...
def attention_at(
    q: tuple[int, tuple[int, ...], tuple[int, ...]],
    k: tuple[int, tuple[int, ...], tuple[int, ...]],
    v: tuple[int, tuple[int, ...], tuple[int, ...]],
    out: tuple[int, tuple[int, ...]],
    lse: tuple[int, tuple[int, ...]] | None,
    kind: str,
    causal: bool,
    scale: float | None,
    /,
) -> bool: ...
def attention_weights(
    q: _Array,
    k: _Array,
    out: _Array,
    kind: str,
    scale: float | None,
    causal: bool,
    offsets: list[int],
    options: object,
    /,
) -> None: ...
def attention_scores(
    q: _Array,
    k: _Array,
    out: _Array,
    kind: str,
    scale: float | None,
    causal: bool,
    offsets: list[int],
    options: object,
    stage: str,
    /,
) -> None: ...
def attention_varlen(
    q: _Array,
    k: _Array,
    v: _Array,
    out: _Array,
    lse: _Array | None,
    kind: str,
    out_kind: str,
    scale: float | None,
    causal: bool,
    offsets: list[int],
    options: object,
    queries: _Array,
    keys: _Array,
    /,
) -> None: ...
def attention_backward(
    grad_out: _Array,
    q: _Array,
    k: _Array,
    v: _Array,
    out: _Array,
    lse: _Array,
    grad_lse: _Array | None,
    dq: _Array,
    dk: _Array,
    dv: _Array,
    dsinks: _Array | None,
    kind: str,
    out_kind: str,
    scale: float | None,
    causal: bool,
    offsets: list[int],
    options: object,
    /,
) -> None: ...
def attention_varlen_backward(
    grad_out: _Array,
    q: _Array,
    k: _Array,
    v: _Array,
    out: _Array,
    lse: _Array,
    grad_lse: _Array | None,
    dq: _Array,
    dk: _Array,
    dv: _Array,
    dsinks: _Array | None,
    kind: str,
    out_kind: str,
    scale: float | None,
    causal: bool,
    offsets: list[int],
    options: object,
    queries: _Array,
    keys: _Array,
    /,
) -> None: ...
def attention_score_gradients(
    grad_out: _Array,
    q: _Array,
    k: _Array,
    v: _Array,
    out: _Array,
    lse: _Array,
    grad_lse: _Array | None,
    grad_scores: _Array,
    kind: str,
    out_kind: str,
    scale: float | None,
    causal: bool,
    offsets: list[int],
    options: object,
    /,
) -> None: ...
def rotary_embedding(
    x: _Array,
    out: _Array,
    kind: str,
    out_kind: str,
    positions: _Array | None,
    first_position: int,
    frequencies: _Array,
    factor: float,
    interleaved: bool,
    /,
) -> None: ...
def attention_cached(
    q: _Array,
    out: _Array,
    lse: _Array | None,
    kind: str,
    out_kind: str,
    scale: float | None,
    causal: bool,
    offsets: list[int],
    options: object,
    keys: _Array,
    values: _Array,
    cache_kind: str,
    key_scales: _Array | None,
    value_scales: _Array | None,
    table: _Array,
    num_keys: int,
    /,
) -> None: ...
def allocate(nbytes: int, /) -> _Array: ...
def quantize(x: _Array, kind: str, out: _Array, scales: _Array | None) -> None: ...

class Projection:
    def __init__(self, weight: _Array, bias: _Array | None, kind: str) -> None: ...
    def multiply(self, x: _Array, out: _Array, out_kind: str) -> None: ...

def weight_gradient(
    x: _Array, grad: _Array, weight: _Array, bias: _Array | None, kind: str
) -> None: ...
def isa() -> str: ...
def set_isa(name: str, /) -> None: ...
def available_isas() -> list[str]: ...
def compiled_isas() -> list[str]: ...
def set_num_threads(n: int, /) -> None: ...
def get_num_threads() -> int: ...
def enter_usual_float_mode() -> int: ...
def leave_usual_float_mode(callers: int, /) -> None: ...
def container_quota(root: str, /) -> float: ...
def usable_cpus(root: str, /) -> int: ...
def threads_source() -> str: ...
def release_memory() -> None: ...
def build_info() -> dict[str, str]: ...
def peak(seconds: float, threads: int, kind: str) -> float | None: ...
def read_bandwidth(seconds: float, threads: int, words: _Array) -> float: ...
