"""Attention made visible: every object on the way, by name, and the kernel's result beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .arrays import Align, ArrayInput, Integers, Numbers, Window, empty_result
from .calls import check_attention
from .float_mode import UsualFloatMode
from .functional import attention
from .options import Options
from .trace_build import call_steps, module_steps
from .trace_labels import make_labels
from .trace_record import Trace
from .trace_steps import Step, shape_text

if TYPE_CHECKING:
    from .module_base import AttentionModule

__all__ = ["Step", "Trace", "trace"]

Tokens = Sequence[str] | Sequence[Sequence[str]]


def trace(
    q: ArrayInput,
    k: ArrayInput,
    v: ArrayInput,
    *,
    causal: bool = True,
    align: Align = "end",
    scale: float | None = None,
    mask: ArrayInput | None = None,
    window: Window | None = None,
    softcap: float | None = None,
    alibi_slopes: Numbers | None = None,
    sinks: Numbers | None = None,
    kv_lengths: Integers | None = None,
    layout: str = "BHTD",
    dropout: float = 0.0,
    seed: int | None = None,
    tokens: Tokens | None = None,
    query_tokens: Tokens | None = None,
) -> Trace:
    """Every object on the way from q, k and v to the result of :func:`attention`.

    Each step is computed in plain NumPy, from its formula, in the accumulation type and with whole
    (Tq, Tk) matrices. The last one is compared with what the fused kernel computes.

    Parameters
    ----------
    q, k, v, causal, align, scale, mask, window, softcap, alibi_slopes, sinks, kv_lengths, layout
        As in :func:`attention`.
    dropout, seed
        As in :func:`attention`.
    tokens : sequence of Tk str, or B of them, optional
        What the keys are called. Default their numbers, from 0.
    query_tokens : sequence of Tq str, or B of them, optional
        What the queries are called. Default the name of the key at the query's position.

    Returns
    -------
    Trace
        The steps, each with array, formula and a sentence; ``print`` it, or see ``plot``,
        ``to_html`` and ``to_text``.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As in :func:`attention`; also if there are not as many names as keys or queries.

    Notes
    -----
    Memory: for each head, of each pair of query and key 3 to 6 numbers in the accumulation type and
    one bool. This is for looking at small calls; :func:`attention` stores no such matrix.

    Results differ from the kernel's by the rounding of other orders of summation; of 16-bit inputs,
    by the rounding of the result to 16 bits, too.

    Sources: as in :func:`attention`; the formulas are those of ``headway.reference``.

    Examples
    --------
    >>> import numpy as np
    >>> import headway
    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 1, 2, 4, 8))  # (batch, heads, tokens, head_dim)
    >>> trace = headway.trace(q, k, v, window=2, tokens="the cat sat down".split())
    >>> trace["scaled_2"]
    Step(scaled_2 (1, 4, 4) = scores_2 / sqrt(8))
    >>> trace["mask_2"].formula
    'p - 1 <= j and j <= p'
    >>> trace["weights_2"].array[0].round(2)
    array([[1.  , 0.  , 0.  , 0.  ],
           [0.36, 0.64, 0.  , 0.  ],
           [0.  , 0.4 , 0.6 , 0.  ],
           [0.  , 0.  , 0.42, 0.58]])
    >>> np.allclose(trace["Z"].array, headway.attention(q, k, v, window=2))
    True
    """
    options: dict[str, Any] = {
        "causal": causal,
        "align": align,
        "scale": scale,
        "mask": mask,
        "window": window,
        "softcap": softcap,
        "alibi_slopes": alibi_slopes,
        "sinks": sinks,
        "kv_lengths": kv_lengths,
        "layout": layout,
        "dropout": dropout,
        "seed": seed,
    }
    given = mask, window, softcap, alibi_slopes, sinks, kv_lengths
    call = check_attention(q, k, v, causal, align, scale, layout, given, dropout=dropout, seed=seed)
    tq, tk = call.q.shape[2], call.k.shape[2]
    empty_result((*call.q.shape[:3], tk), call.wide)  # the scores fit in memory, or an error
    labels = make_labels(tokens, query_tokens, tq, tk, call.offsets)
    with UsualFloatMode():
        return Trace(
            call_steps(call, layout),
            attention(q, k, v, **options),
            "attention(q, k, v)",
            _options_text(options),
            call.kind,
            labels,
        )


def trace_module(
    module: AttentionModule,
    x: ArrayInput,
    tokens: Tokens | None,
    training: bool,
    seed: int | None,
) -> Trace:
    """Every object on the way from x to the result of a module."""
    checked = module._input(x)
    num_tokens = checked.shape[-2]
    entries = len(checked) if checked.ndim == 3 else 1
    empty_result((entries, module.num_heads, num_tokens, num_tokens), "float32")
    labels = make_labels(tokens, None, num_tokens, num_tokens, [0] * entries)
    rate = module._rate(training, seed)
    options = Options(dropout=rate, seed=seed or 0)
    drawn: dict[str, Any] = {"training": training, "seed": seed} if rate else {}
    with UsualFloatMode():
        return Trace(
            module_steps(module, checked, options),
            module(checked, **drawn),
            repr(module),
            _options_text(drawn),
            module.dtype.name,
            labels,
        )


def _options_text(options: dict[str, Any]) -> str:
    """The options that are not as by default; arrays by their shape, where they have axes."""
    usual = {"causal": True, "align": "end", "layout": "BHTD", "dropout": 0.0}
    parts = []
    for name, value in options.items():
        default = usual.get(name)
        shape = getattr(value, "shape", ())
        if shape:
            parts.append(f"{name} {shape_text(shape)}")
        elif value is not default and (default is None or value != default):
            parts.append(f"{name}={value!r}")
    return ", ".join(parts)
