"""PyTorch's scaled_dot_product_attention on headway."""

from collections.abc import Sequence
from typing import Any, Literal, overload

import torch
from torch import Tensor

from ..checks import check_flag, check_layout, check_scale
from ..options import check_softcap, check_window
from ._torch_autograd import EagerAttention, TransformedAttention, refuse_forward_mode
from ._torch_ops import (
    attend,
    attend_operator,
    attend_plain,
    is_eager,
    is_transformed,
)
from ._torch_options import chance_and_seed, integers, numbers, window_of
from ._torch_tensors import check_dense, check_mask, check_operand, four_axes

_START, _BHTD = "start", "BHTD"  # the very objects that the defaults are


@overload
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = ...,
    dropout_p: float = ...,
    is_causal: bool = ...,
    scale: float | None = ...,
    enable_gqa: bool = ...,
    *,
    align: str | int | Sequence[int] | Tensor = ...,
    window: int | Sequence[int] | None = ...,
    softcap: float | None = ...,
    alibi_slopes: Sequence[float] | Tensor | None = ...,
    sinks: Sequence[float] | Tensor | None = ...,
    kv_lengths: Sequence[int] | Tensor | None = ...,
    layout: str = ...,
    seed: int | None = ...,
    return_lse: Literal[False] = ...,
) -> Tensor: ...


@overload
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = ...,
    dropout_p: float = ...,
    is_causal: bool = ...,
    scale: float | None = ...,
    enable_gqa: bool = ...,
    *,
    align: str | int | Sequence[int] | Tensor = ...,
    window: int | Sequence[int] | None = ...,
    softcap: float | None = ...,
    alibi_slopes: Sequence[float] | Tensor | None = ...,
    sinks: Sequence[float] | Tensor | None = ...,
    kv_lengths: Sequence[int] | Tensor | None = ...,
    layout: str = ...,
    seed: int | None = ...,
    return_lse: Literal[True],
) -> tuple[Tensor, Tensor]: ...


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    align: str | int | Sequence[int] | Tensor = _START,
    window: int | Sequence[int] | None = None,
    softcap: float | None = None,
    alibi_slopes: Sequence[float] | Tensor | None = None,
    sinks: Sequence[float] | Tensor | None = None,
    kv_lengths: Sequence[int] | Tensor | None = None,
    layout: str = _BHTD,
    seed: int | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """``torch.nn.functional.scaled_dot_product_attention`` on headway, and headway's options.

    Called like PyTorch's function it computes the same. Tensors are read where they lie, and the
    result is written into a tensor of PyTorch's. Autograd, ``torch.compile`` and ``torch.export``
    work through the operator ``headway::scaled_dot_product_attention``.

    Parameters
    ----------
    query : Tensor, (..., H, Tq, D)
        Dense, on the CPU, of two or more axes; float32, float64, float16 or bfloat16 (which needs
        the package ``ml_dtypes``).
    key : Tensor, (..., Hkv, Tk, D)
        In the dtype of query. Axes before the last two are broadcast as PyTorch does.
    value : Tensor, (..., Hkv, Tk, Dv)
        The same. Dv may differ from D.
    attn_mask : Tensor that broadcasts to (..., H, Tq, Tk), optional
        bool: True where the query may attend to the key. A float dtype: added to the scores. It is
        read through its strides and may be combined with `is_causal`.
    dropout_p : float, default 0.0
        Probability that a weight is dropped, from 0 to 1. As with PyTorch's function it applies
        whenever it is given, in evaluation, too.
    is_causal : bool, default False
        Query i sees the keys up to the position i; another `align` moves query 0.
    scale : float, optional
        Factor on the scores, any finite number. Default ``1 / sqrt(D)``.
    enable_gqa : bool, default False
        Let H be a multiple of Hkv: query head h reads key head ``h // (H // Hkv)``.
    align : {"start", "end"}, int, or (B,) ints, default "start"
        The key position at which query 0 stands, as in :func:`headway.attention`, where the
        default is "end". B counts all axes before the heads together.
    window, softcap, alibi_slopes, sinks, kv_lengths
        As in :func:`headway.attention`; where that takes an array, a tensor is taken here.
    layout : {"BHTD", "BTHD"}, default "BHTD"
        "BTHD": tokens stand before heads in query, key, value and the result.
    seed : int, 0 to 2**64 - 1, optional
        Decides what `dropout_p` drops. Default: drawn from PyTorch's generator of the CPU, so that
        ``torch.manual_seed`` decides.
    return_lse : bool, default False
        Return the log-sum-exp of each row, too.

    Returns
    -------
    out : Tensor, (..., H, Tq, Dv)
        In the dtype of query, and where Dv is D in the order of its axes in memory. A query that
        sees no key has the result 0.
    lse : Tensor, (..., H, Tq)
        Only with `return_lse`: float64 for float64, else float32. Differentiable.

    Raises
    ------
    TypeError
        If a tensor is nested, sparse, complex, of another dtype, or not on the CPU; or an option of
        the wrong kind.
    ValueError
        If a shape or a range is wrong; or if `alibi_slopes` asks for a gradient: there is none.
    ImportError
        For bfloat16 without ``ml_dtypes``.

    Notes
    -----
    Gradients go to query, key, value, a float `attn_mask` and `sinks`. Under ``torch.autocast`` of
    the CPU, float32 tensors are computed in its dtype, as by PyTorch's function.

    What PyTorch draws for its dropout is not drawn here: the same probability, other places.

    Memory, and the source of every formula: :func:`headway.attention` and
    :func:`headway.attention_backward`.

    Examples
    --------
    >>> import torch
    >>> from headway.interop.torch import scaled_dot_product_attention
    >>> query = torch.zeros(1, 2, 3, 4, requires_grad=True)
    >>> key, value = torch.ones(1, 2, 3, 4), torch.arange(6.0).reshape(1, 2, 3, 1)
    >>> out = scaled_dot_product_attention(query, key, value, is_causal=True)
    >>> out[0, :, :, 0].detach()
    tensor([[0.0000, 0.5000, 1.0000],
            [3.0000, 3.5000, 4.0000]])
    >>> scaled_dot_product_attention(query, key, value, window=(0, 0))[0, :, :, 0].detach()
    tensor([[0., 1., 2.],
            [3., 4., 5.]])
    """
    eager = is_eager()
    if torch.is_autocast_enabled("cpu"):
        query, key, value, attn_mask = map(_autocast, (query, key, value, attn_mask))
    if (
        eager
        and attn_mask is None
        and dropout_p == 0
        and align is _START
        and window is None
        and softcap is None
        and alibi_slopes is None
        and sinks is None
        and kv_lengths is None
        and layout is _BHTD
        and seed is None
        and return_lse is False
    ):
        plain = attend_plain(query, key, value, is_causal, scale, enable_gqa)
        if plain is not None:
            return plain
    operands = query, key, value, attn_mask
    if eager and torch.overrides.has_torch_function(operands):
        options = {
            "attn_mask": attn_mask,
            "dropout_p": dropout_p,
            "is_causal": is_causal,
            "scale": scale,
            "enable_gqa": enable_gqa,
            "align": align,
            "window": window,
            "softcap": softcap,
            "alibi_slopes": alibi_slopes,
            "sinks": sinks,
            "kv_lengths": kv_lengths,
            "layout": layout,
            "seed": seed,
            "return_lse": return_lse,
        }
        result: Tensor | tuple[Tensor, Tensor] = torch.overrides.handle_torch_function(
            scaled_dot_product_attention, operands, query, key, value, **options
        )
        return result

    for name, flag in (
        ("is_causal", is_causal),
        ("enable_gqa", enable_gqa),
        ("return_lse", return_lse),
    ):
        check_flag(name, flag)
    check_layout(layout)
    check_dense("query", query)
    for name, x in (("query", query), ("key", key), ("value", value)):
        check_operand(name, x, query)
    if attn_mask is not None:
        check_mask(attn_mask)
    if eager:  # a graph's constants are checked when it runs
        scale = None if scale is None else check_scale(scale)
        softcap = check_softcap(softcap)
        check_window(window, is_causal)
    tokens_first = layout == "BTHD"
    if tokens_first:
        query, key, value = (x.transpose(-3, -2) if x.dim() > 2 else x for x in operands[:3])
    chance, seed_tensor = chance_and_seed(dropout_p, seed)
    if chance == 1:  # as PyTorch: every weight is dropped
        value, chance, seed_tensor = value * 0, 0.0, None
    four = four_axes(query, key, value, attn_mask, enable_gqa)
    run = _way(eager, query, key, value, attn_mask, sinks)
    out, lse = run(
        four.query,
        four.key,
        four.value,
        four.mask,
        numbers("alibi_slopes", alibi_slopes),
        numbers("sinks", sinks),
        integers("kv_lengths", kv_lengths),
        None if isinstance(align, str) else integers("align", align),
        seed_tensor,
        chance,
        is_causal,
        align if isinstance(align, str) else _START,
        scale,
        window_of(window),
        softcap or 0.0,
    )
    out = four.restored(out)
    if tokens_first and out.dim() > 2:
        out = out.transpose(-3, -2)
    return (out, four.restored(lse)) if return_lse else out


def _way(eager: bool, *operands: Any) -> Any:
    """What computes a call: the kernel itself, its eager autograd, or PyTorch's dispatcher."""
    if torch.compiler.is_compiling():
        return attend_operator
    tensors = [x for x in operands if isinstance(x, Tensor)]
    if not eager:
        refuse_forward_mode(tensors)
        return TransformedAttention.apply if is_transformed() else attend_operator
    if any(type(x) is not Tensor and type(x) is not torch.nn.Parameter for x in tensors):
        return attend_operator
    recorded = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    return EagerAttention.apply if recorded else attend


def _autocast(x: Any) -> Any:
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.dtype is torch.float64:
        return x
    return x.to(torch.get_autocast_dtype("cpu")) if x.device.type == "cpu" else x
