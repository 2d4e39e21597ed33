"""headway as an attention implementation of Hugging Face transformers.

::

    from headway.interop.transformers import register
    register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="headway")

It needs the packages torch and transformers (``pip install 'headway[transformers]'``), which are
imported when :func:`register` is called.
"""

from __future__ import annotations

from typing import Any

from ._differentiable import Settings, attend, weights_of
from ._masks import joined, same_sequence
from ._tensors import check_float, check_mask, check_tensor, torch_for

__all__ = ["attention_forward", "register"]

#: What a model hands on to its attention, and what changes no context vector. The positions of
#: packed sequences are in the mask.
_HARMLESS = {
    "cache",
    "cache_position",
    "deterministic",
    "encoder_hidden_states",
    "layer_idx",
    "logits_to_keep",
    "max_length_k",
    "max_length_q",
    "num_items_in_batch",
    "output_hidden_states",
    "output_router_logits",
    "past_key_value",
    "past_key_values",
    "position_embeddings",
    "position_ids",
    "return_dict",
    "seq_idx",
    "use_cache",
}


def register(name: str = "headway") -> None:
    """Offer headway's attention to every model of transformers, under a name.

    Both the attention function and the mask function of that name are registered: without the
    latter a model would hand over no mask, and padding and windows would be lost.

    Parameters
    ----------
    name : str, default "headway"
        What ``attn_implementation=`` and ``model.set_attn_implementation`` select it by.

    Raises
    ------
    ImportError
        If torch or transformers is absent, or transformers has no place for a mask function.
    TypeError, ValueError
        If the name is not a string, has a meaning of its own in transformers, or belongs to
        another function.

    Notes
    -----
    Models then run on the CPU in float32, float64, float16 and bfloat16, with grouped heads,
    padding on either side, dynamic, static and sliding caches, soft caps, sinks (``s_aux``),
    position biases, packed sequences, dropout, returned weights and gradients. See
    :func:`attention_forward` for what decides a call.

    Examples
    --------
    >>> from headway.interop.transformers import register
    >>> register()
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> config = LlamaConfig(vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
    ...     num_attention_heads=2, num_key_value_heads=1, attn_implementation="headway")
    >>> model = LlamaForCausalLM(config)
    >>> model.config._attn_implementation
    'headway'
    """
    if not isinstance(name, str):
        raise TypeError(f"name: expected a string, got {type(name).__name__}; pass e.g. 'headway'")
    taken = name in ("", "eager") or any(part in name for part in ("/", "|", ":", "flash", "flex"))
    if taken:
        raise ValueError(
            f"name: expected one without a meaning in transformers, got {name!r}; "
            "pass e.g. 'headway'"
        )
    user = "interop.transformers.register"
    torch = torch_for(user, "transformers")
    try:
        from transformers import AttentionInterface
        from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
    except ImportError:
        raise ImportError(
            f"{user} needs the package transformers, 5.0 or later: "
            "pip install 'headway[transformers]'"
        ) from None
    functions = AttentionInterface()
    known = functions[name] if name in functions.valid_keys() else None
    if known is not None and getattr(known, "function", None) is not attention_forward:
        raise ValueError(
            f"name: expected one that no other attention has, got {name!r}; pass e.g. 'headway'"
        )
    if known is None:
        AttentionInterface.register(name, _outside_of_graphs(torch))
    AttentionMaskInterface.register(name, sdpa_mask)


def _outside_of_graphs(torch: Any) -> Any:
    """:func:`attention_forward` for PyTorch's compiler: a call that breaks the graph."""

    def headway_attention(*args: Any, **kwargs: Any) -> Any:
        return attention_forward(*args, **kwargs)

    disabled = torch.compiler.disable(headway_attention)
    disabled.function = attention_forward
    return disabled


def attention_forward(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    *,
    softcap: float | None = None,
    s_aux: Any = None,
    position_bias: Any = None,
    sliding_window: int | None = None,
    cu_seq_lens_q: Any = None,
    cu_seq_lens_k: Any = None,
    output_attentions: bool | None = False,
    **kwargs: Any,
) -> tuple[Any, Any]:
    """The attention function of transformers, as its models call it.

    Parameters
    ----------
    module : torch.nn.Module
        The calling module; its `is_causal` counts where the argument is not given.
    query : torch.Tensor, (B, H, Tq, D)
        Queries on the CPU; float32, float64, float16 or bfloat16.
    key, value : torch.Tensor, (B, Hkv, Tk, D) and (B, Hkv, Tk, Dv)
        Keys and values, H a multiple of Hkv.
    attention_mask : torch.Tensor or None
        bool (True: may attend) or float (added); it broadcasts to (B, H, Tq, Tk) and says all about
        causality, padding and windows. None: query i sees the keys 0 to i if there is more than
        one query and the call is causal; else every query sees every key.
    dropout : float, default 0.0
        Probability with which a weight is dropped; the seed is drawn from PyTorch's generator.
    scaling : float, optional
        Factor on ``query . key``. Default ``1 / sqrt(D)``.
    is_causal : bool, optional
        Whether a call without a mask is causal. Default: ``module.is_causal``, True if it has none.
    softcap : float, optional
        Makes a score ``softcap * tanh(score / softcap)``, before bias and mask.
    s_aux : torch.Tensor, (H,), optional
        Sinks: one score more for each head in the sum of the softmax.
    position_bias : torch.Tensor, optional
        Broadcasts to (B, H, Tq, Tk); added to the scores.
    sliding_window : int, optional
        For a check only, since the window is inside the mask.
    cu_seq_lens_q, cu_seq_lens_k : torch.Tensor, (n + 1,), optional
        Where each packed sequence begins in a batch of one; a query sees the keys of its own.
    output_attentions : bool, default False
        Return the weights, too.
    **kwargs
        What models hand on beside. A name that is not known to leave the result as it is has to be
        None or False.

    Returns
    -------
    out : torch.Tensor, (B, Tq, H, Dv)
        Context vectors, contiguous, in the dtype of the query.
    weights : torch.Tensor or None, (B, H, Tq, Tk)
        Attention weights before dropout, where they are asked for.

    Raises
    ------
    TypeError
        If a tensor is of the wrong kind or dtype, or for an unknown keyword.
    ValueError
        If shapes do not fit, or a window is not inside the mask.

    Notes
    -----
    Gradients reach query, key, value, sinks, and a mask or bias of floats. Without a mask nothing
    of size Tq * Tk is stored. A row that may attend to nothing is 0.

    Examples
    --------
    >>> import torch
    >>> from headway.interop.transformers import attention_forward
    >>> q = k = torch.zeros(1, 1, 3, 4)
    >>> v = torch.arange(3.0).reshape(1, 1, 3, 1)
    >>> out, _ = attention_forward(torch.nn.Module(), q, k, v, None)
    >>> out.flatten()
    tensor([0.0000, 0.5000, 1.0000])
    """
    for name, given in kwargs.items():
        if name not in _HARMLESS and given is not None and given is not False:
            raise TypeError(
                f"{name}: expected no keyword that may change the result, got one that this "
                'attention does not know; choose attn_implementation="eager" or "sdpa" for it'
            )
    query, key, value = _operands(query, key, value)
    tq, tk = query.shape[2], key.shape[2]
    causal = attention_mask is None and tq > 1
    if causal:
        causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    if attention_mask is None and sliding_window is not None and tk > sliding_window:
        raise ValueError(
            f"sliding_window: expected a mask that holds the window of {sliding_window}, got None "
            f"for {tk} keys; register attention and mask function together, with "
            "headway.interop.transformers.register"
        )
    mask, shape = attention_mask, (query.shape[0], query.shape[1], tq, tk)
    if mask is not None:
        check_mask("attention_mask", mask, shape)
    if cu_seq_lens_q is not None or cu_seq_lens_k is not None:
        mask = joined(same_sequence(cu_seq_lens_q, cu_seq_lens_k, query, key, causal), mask)
    if position_bias is not None:
        check_mask("position_bias", position_bias, shape, bools=False)
        mask = joined(mask, position_bias)
    if s_aux is not None:
        check_tensor("s_aux", s_aux)
        check_float("s_aux", s_aux)
    settings = Settings(causal, scaling, softcap, float(dropout), _seed() if dropout else None)
    out = attend(query, key, value, mask, s_aux, settings)
    if not (output_attentions or _weights_are_collected()):
        return out, None
    return out, weights_of(query, key, mask, s_aux, settings)


def _weights_are_collected() -> bool:
    """Has the model been asked for weights, and not handed the keyword on, as GPT-2 does?"""
    try:
        from transformers.utils.output_capturing import _active_collector

        collected = _active_collector.get() or ()
    except (ImportError, AttributeError, LookupError):  # another version: the keyword alone counts
        return False
    return any("attentions" in name for name in collected)


def _operands(query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
    """Queries, keys and values of one batch size; one entry serves for all.

    Under autocast they get its dtype, as in PyTorch's own function.
    """
    import torch

    operands = query, key, value
    for name, x in zip(("query", "key", "value"), operands, strict=True):
        check_tensor(name, x, 4)
        check_float(name, x)
    if torch.is_autocast_enabled("cpu"):
        narrow = torch.get_autocast_dtype("cpu")
        operands = query, key, value = tuple(
            x if x.dtype is torch.float64 else x.to(narrow) for x in operands
        )
    for name, x in (("key", key), ("value", value)):
        if x.dtype is not query.dtype:
            raise TypeError(
                f"{name}: expected {query.dtype} like query, got {x.dtype}; "
                f"convert with {name}.to(query.dtype)"
            )
    batch = max(x.shape[0] for x in operands)
    if any(x.shape[0] == 1 < batch for x in operands):
        query, key, value = (
            x.expand(batch, -1, -1, -1) if x.shape[0] == 1 else x for x in operands
        )
    return query, key, value


def _seed() -> int:
    """A seed from PyTorch's generator, so that torch.manual_seed decides what is dropped."""
    import torch

    return int(torch.randint(2**62, ()))
