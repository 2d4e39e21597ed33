"""What attention costs: of sizes alone, or of a module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .cost_record import SIZES, Cost
from .weights import checked_dtype, checked_head_counts, checked_size, merged_widths

if TYPE_CHECKING:
    from .module_base import AttentionModule

STAGES = ("single", "stacked", "efficient")


def cost(
    *,
    batch: int,
    num_tokens: int,
    d_in: int,
    d_out: int,
    num_heads: int,
    num_kv_heads: int | None = None,
    out_proj: bool = False,
    stage: str = "efficient",
    qkv_bias: bool = False,
    dtype: Any = "float32",
) -> Cost:
    """Weights, multiply-adds and bytes of causal attention on ``x (batch, num_tokens, d_in)``.

    With T tokens, H heads of ``D = d_out / H`` and ``d_kv = num_kv_heads * D``::

        weights            d_in * (d_out + 2 * d_kv)     + d_out * d_out for the output projection
        multiply-adds      batch * T * weights           of these products
                           batch * T * (T+1) / 2 * d_out   of Q @ K.T, and again of weights @ V
        dense              batch * T * T * d_out           of each, where masked products count
        scores             batch * H * T * T numbers
        KV cache           batch * T * 2 * d_kv numbers

    Parameters
    ----------
    batch, num_tokens, d_in : int
        Shape of the input.
    d_out : int
        Width of all heads together, a multiple of num_heads.
    num_heads : int
        Query heads.
    num_kv_heads : int, optional
        Key and value heads, a divisor of num_heads; default num_heads. Fewer of them with stage
        "efficient" only.
    out_proj : bool, default False
        Whether there is an output projection (d_out, d_out), with a bias, as in
        :meth:`MultiHeadAttention.init`.
    stage : {"efficient", "stacked", "single"}, default "efficient"
        Of :class:`MultiHeadAttention`, :class:`StackedMultiHeadAttention` or
        :class:`CausalAttention`; the last has one head and no output projection. Both multi-head
        stages have the same weights and multiply-adds; they differ in what they hold at once.
    qkv_bias : bool, default False
        Whether queries, keys and values have biases.
    dtype : dtype, default "float32"
        float32, float64, float16 or bfloat16, also by name: it decides the bytes.

    Returns
    -------
    Cost
        Exact whole numbers; ``print`` shows them as a table. The work of a query alone over a cache
        of T tokens is not among them.

    Raises
    ------
    TypeError
        If a size is no int, or the dtype none of the four.
    ValueError
        If a size is below 1, the heads do not fit, or the stage is unknown or has no such thing.

    Examples
    --------
    Heads of the same head_dim: two cost twice as much as one. The causal mask leaves about half of
    the pairs.

    >>> import headway
    >>> sizes = dict(batch=1, num_tokens=1024, d_in=768)
    >>> one = headway.cost(**sizes, d_out=64, num_heads=1, stage="single")
    >>> twelve = headway.cost(**sizes, d_out=768, num_heads=12)
    >>> twelve.num_parameters / one.num_parameters, twelve.multiply_adds / one.multiply_adds
    (12.0, 12.0)
    >>> print(twelve)  # doctest: +ELLIPSIS
    efficient: batch 1, 1,024 tokens, d_in 768, d_out 768, 12 heads of 64, float32
    <BLANKLINE>
    product            weights  multiply-adds          dense
    Q, K, V: x @ w   1,769,472  1,811,939,328  1,811,939,328
    scores: Q @ K.T          0    403,046,400    805,306,368
    Z: weights @ V           0    403,046,400    805,306,368
    total            1,769,472  2,618,032,128  3,422,552,064
    <BLANKLINE>
    figure                          now  x tokens  x width  x heads  x split
    weights                   1,769,472         1        4        2        1
    ...
    """
    heads, kv_heads = checked_head_counts(num_heads, num_kv_heads)
    width, d_kv, _ = merged_widths(d_out, heads, kv_heads)
    checked = {"batch": batch, "num_tokens": num_tokens, "d_in": d_in}
    for name, value in checked.items():
        checked[name] = checked_size(name, value)
    _check_stage(stage, heads, kv_heads, bool(out_proj))
    return Cost(
        stage=stage,
        **checked,
        d_out=width,
        num_heads=heads,
        num_kv_heads=kv_heads,
        d_kv=d_kv,
        widest_head=width // heads,
        num_biases=(width + 2 * d_kv) * bool(qkv_bias),
        out_width=width * bool(out_proj),
        out_bias=bool(out_proj),
        dtype=dtype if isinstance(dtype, str) and dtype in SIZES else checked_dtype(dtype).name,
    )


def _check_stage(stage: Any, heads: int, kv_heads: int, out_proj: bool) -> None:
    if not isinstance(stage, str) or stage not in STAGES:
        wanted = ", ".join(f'"{name}"' for name in STAGES)
        kind = ValueError if isinstance(stage, str) else TypeError
        raise kind(f"stage: expected one of {wanted}, got {stage!r}; pass one of these names")
    if stage == "single" and heads > 1:
        raise ValueError(
            f'num_heads: expected 1 with stage="single", got {heads}; pass stage="stacked"'
        )
    if stage == "single" and out_proj:
        raise ValueError(
            'out_proj: expected False with stage="single", got True; pass stage="efficient"'
        )
    if stage == "stacked" and kv_heads < heads:
        raise ValueError(
            f'num_kv_heads: expected {heads} with stage="stacked", where every head owns its keys '
            f'and values, got {kv_heads}; pass stage="efficient"'
        )


class ModuleCost:
    """Gives the modules their method ``cost``."""

    def cost(self, batch: int, num_tokens: int) -> Cost:
        """Weights, multiply-adds and bytes of a call with ``x (batch, num_tokens, d_in)``.

        Parameters
        ----------
        batch, num_tokens : int
            Shape of the input.

        Returns
        -------
        Cost
            That of :func:`headway.cost` for the sizes, weights, biases and dtype of this module.

        Raises
        ------
        TypeError, ValueError
            If an argument is no int of at least 1.

        Examples
        --------
        >>> import headway
        >>> module = headway.MultiHeadAttention.init(8, 8, num_heads=2, out_proj=True)
        >>> cost = module.cost(1, 16)
        >>> cost.num_parameters == module.num_parameters
        True
        >>> cost.multiply_adds, cost.dense_multiply_adds, cost.kv_cache_bytes
        (6272, 8192, 1024)
        """
        return _of_module(
            self, checked_size("batch", batch), checked_size("num_tokens", num_tokens)
        )


def _of_module(module: Any, batch: int, num_tokens: int) -> Cost:
    base: AttentionModule = module
    stage = {
        "CausalAttention": "single",
        "StackedMultiHeadAttention": "stacked",
        "MultiHeadAttention": "efficient",
    }[base._class_in_files]
    if stage == "stacked":
        d_kv, widest = base.d_out, max(head.head_dim for head in module)
    else:
        d_kv, widest = base.num_kv_heads * base.head_dim, base.head_dim
    w_out, b_out = (base._weights.get(name) for name in ("w_out", "b_out"))
    out = sum(array.size for array in (w_out, b_out) if array is not None)
    return Cost(
        stage=stage,
        batch=batch,
        num_tokens=num_tokens,
        d_in=base.d_in,
        d_out=base.d_out,
        num_heads=base.num_heads,
        num_kv_heads=base.num_kv_heads,
        d_kv=d_kv,
        widest_head=widest,
        num_biases=base.num_parameters - out - base.d_in * (base.d_out + 2 * d_kv),
        out_width=0 if w_out is None else w_out.shape[1],
        out_bias=b_out is not None,
        dtype=base.dtype.name,
    )
