"""Masks of PyTorch's tensors, joined into the one that a call of the package takes."""

from typing import Any

from ._tensors import check_tensor


def joined(mask: Any, other: Any) -> Any:
    """One mask that says what two say: numbers are added, and what either hides is hidden."""
    import torch

    if mask is None or other is None:
        return other if mask is None else mask
    if mask.dtype is torch.bool:
        if other.dtype is torch.bool:
            return mask & other
        return torch.where(mask, other, other.new_full((), -torch.inf))
    return joined(other, mask) if other.dtype is torch.bool else mask + other


def same_sequence(starts_q: Any, starts_k: Any, query: Any, key: Any, causal: bool) -> Any:
    """(1, 1, Tq, Tk) bools: do query and key belong to one packed sequence?"""
    import torch

    lengths = {"cu_seq_lens_q": (starts_q, query), "cu_seq_lens_k": (starts_k, key)}
    members = []
    for name, (starts, x) in lengths.items():
        check_tensor(name, starts)
        tokens = x.shape[2]
        right = starts.ndim == 1 and len(starts) > 1 and x.shape[0] == 1
        if not right or starts[0] != 0 or starts[-1] != tokens or (starts.diff() < 0).any():
            raise ValueError(
                f"{name}: expected rising positions from 0 to {tokens} for a batch of one, got "
                f"{starts.tolist()} for a batch of {x.shape[0]}; pack all sequences into one row"
            )
        places = torch.arange(tokens, device=starts.device)
        members.append(torch.searchsorted(starts.to(torch.int64), places, right=True))
    if causal and not torch.equal(starts_q, starts_k):
        raise ValueError(
            "cu_seq_lens_k: expected that of the queries for a causal call without a mask, got "
            f"{starts_k.tolist()} beside {starts_q.tolist()}; pass a mask"
        )
    return (members[0][:, None] == members[1])[None, None]
