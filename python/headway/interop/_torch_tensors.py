"""Tensors as they come in: what is accepted, and as operands of four axes."""

import functools
import importlib.util
from typing import Any, NamedTuple

import torch
from torch import Tensor

KINDS = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
}
_FLOATS = "float32, float64, float16 or bfloat16"


def name_of(dtype: Any) -> str:
    """The dtype's name without its module: "float32"."""
    return str(dtype).removeprefix("torch.")


def wide_dtype(dtype: Any) -> Any:
    """The accumulation dtype: float64 for float64, else float32."""
    return torch.float64 if dtype is torch.float64 else torch.float32


@functools.cache
def has_bfloat16() -> bool:
    """Is the package there whose dtype NumPy knows by this name?"""
    return importlib.util.find_spec("ml_dtypes") is not None


def new_result(query: Tensor, width: int) -> Tensor:
    """A new (..., Tq, width) tensor in the query's order of axes where it has that width, too."""
    if width == query.shape[-1]:
        return torch.empty_like(query)
    return query.new_empty((*query.shape[:-1], width))


# Checks -------------------------------------------------------------------------------------------


def check_dense(name: str, x: Any) -> None:
    """``x`` is a tensor in the memory of the CPU, element by element."""
    if not isinstance(x, Tensor):
        raise TypeError(
            f"{name}: expected a torch.Tensor, got {type(x).__name__}; "
            f"convert with torch.as_tensor({name})"
        )
    if x.is_nested:
        raise TypeError(
            f"{name}: expected a dense tensor, got a nested one; "
            f"convert with {name}.to_padded_tensor(0.0) and pass kv_lengths"
        )
    if x.layout is not torch.strided:
        raise TypeError(
            f"{name}: expected a dense tensor, got layout {name_of(x.layout)}; "
            f"convert with {name}.to_dense()"
        )
    if x.device.type != "cpu":
        raise TypeError(
            f"{name}: expected a tensor on the CPU, got one on {x.device}; "
            + ("give it values" if x.is_meta else f"move it with {name}.cpu()")
        )


def check_operand(name: str, x: Any, query: Any) -> None:
    """``x`` is a dense tensor of a dtype that headway computes with: that of the query."""
    check_dense(name, x)
    if x.dtype not in KINDS:
        fix = f"{name}.real" if x.is_complex() else f"{name}.to(torch.float32)"
        raise TypeError(f"{name}: expected {_FLOATS}, got {name_of(x.dtype)}; convert with {fix}")
    if x.dtype is not query.dtype:
        raise TypeError(
            f"{name}: expected {name_of(query.dtype)} like query, got {name_of(x.dtype)}; "
            f"convert with {name}.to(query.dtype)"
        )
    if x.dim() < 2:
        raise ValueError(
            f"{name}: expected 2 or more axes, (..., tokens, head_dim), got shape "
            f"{tuple(x.shape)}; add axes, e.g. {name}[None, :]"
        )


def check_mask(mask: Any) -> None:
    """``mask`` is a dense tensor of bools or of a float dtype."""
    check_dense("attn_mask", mask)
    if mask.dtype is not torch.bool and mask.dtype not in KINDS:
        if mask.is_complex():
            fix = "attn_mask.real"
        else:
            fix = "attn_mask.bool(), True where the query may attend"
        raise TypeError(
            f"attn_mask: expected bool, {_FLOATS}, got {name_of(mask.dtype)}; convert with {fix}"
        )


# Four axes ----------------------------------------------------------------------------------------


class Operands(NamedTuple):
    """(B, H, Tq, D), (B, Hkv, Tk, D), (B, Hkv, Tk, Dv) and a mask that broadcasts to the scores."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    rank: int  # axes of the inputs
    batch: tuple[int, ...]  # their batch axes

    def restored(self, result: Tensor) -> Tensor:
        """A (B, H, ...) result with the batch axes of the inputs."""
        if self.rank == 4:
            return result
        if self.rank < 4:
            return result[0] if self.rank == 3 else result[0, 0]
        return result.reshape(*self.batch, *result.shape[1:])


def four_axes(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, grouped: bool
) -> Operands:
    """Operands of any rank of two or more, as PyTorch's function takes them.

    Axes before the last two are broadcast against each other, as views; without `grouped` the axis
    of the heads, too. With `grouped` a query head reads the key head of its group.

    Raises
    ------
    ValueError
        If the shapes do not fit each other.
    """
    rank = max(query.dim(), key.dim(), value.dim())
    query, key, value = (_with_rank(x, max(rank, 3)) for x in (query, key, value))
    _check_widths(query, key, value)
    batch = _broadcast([x.shape[:-3] for x in (query, key, value)])
    heads = _heads(query, key, value, grouped)
    one_key_head = key.shape[-3] == value.shape[-3] == 1
    kv_heads = key.shape[-3] if grouped or one_key_head else heads
    query, key, value = (
        _expanded(x, batch, count)
        for x, count in ((query, heads), (key, kv_heads), (value, kv_heads))
    )
    if mask is not None:
        scores = (*batch, heads, query.shape[-2], key.shape[-2])[-rank:]
        mask = _mask_with_four_axes(mask, scores)
    if rank != 4:
        query, key, value = (_one_batch_axis(x) for x in (query, key, value))
    return Operands(query, key, value, mask, rank, batch)


def _one_batch_axis(x: Tensor) -> Tensor:
    batch = 1
    for n in x.shape[:-3]:
        batch *= n
    return x.reshape(batch, *x.shape[-3:])


def _with_rank(x: Tensor, rank: int) -> Tensor:
    return x[(None,) * (rank - x.dim())] if x.dim() < rank else x


def _check_widths(query: Tensor, key: Tensor, value: Tensor) -> None:
    if query.shape[-1] == 0:
        raise ValueError(
            f"query: expected a head_dim (last axis) of at least 1, got 0 in shape "
            f"{tuple(query.shape)}; drop empty heads before the call"
        )
    if key.shape[-1] != query.shape[-1]:
        raise ValueError(
            f"key: expected head_dim {query.shape[-1]} like query, got {key.shape[-1]} in shape "
            f"{tuple(key.shape)}; make the last axis of query and key equally long"
        )
    if value.shape[-2] != key.shape[-2]:
        raise ValueError(
            f"value: expected {key.shape[-2]} tokens like key, got {value.shape[-2]} in shape "
            f"{tuple(value.shape)}; pass one value for each key"
        )


def _broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    common: list[int] = []
    for sizes in zip(*shapes, strict=True):
        others = [n for n in sizes if n != 1]
        if any(n != others[0] for n in others):
            raise ValueError(
                f"key, value: expected batch axes that broadcast with those of query, got "
                f"{tuple(map(tuple, shapes))} for query, key and value; "
                "make each axis 1 or equally long"
            )
        common.append(others[0] if others else 1)
    return tuple(common)


def _heads(query: Tensor, key: Tensor, value: Tensor, grouped: bool) -> int:
    heads, key_heads, value_heads = (int(x.shape[-3]) for x in (query, key, value))
    if not grouped:
        others = [n for n in (heads, key_heads, value_heads) if n != 1]
        if any(n != others[0] for n in others):
            raise ValueError(
                f"key, value: expected {heads} heads like query, or 1, got {key_heads} and "
                f"{value_heads}; pass enable_gqa=True for groups of query heads"
            )
        return others[0] if others else 1
    if key_heads != value_heads:
        raise ValueError(
            f"value: expected {key_heads} heads like key, got {value_heads}; "
            "pass one value head for each key head"
        )
    if (heads and not key_heads) or (key_heads and heads % key_heads):
        raise ValueError(
            f"key: expected a number of heads that divides the {heads} heads of query, got "
            f"{key_heads}; pass one key head for each group of query heads"
        )
    return heads


def _expanded(x: Tensor, batch: tuple[int, ...], heads: int) -> Tensor:
    shape = (*batch, heads, *x.shape[-2:])
    return x if x.shape == shape else x.expand(shape)


def _mask_with_four_axes(mask: Tensor, scores: tuple[int, ...]) -> Tensor:
    fits = mask.dim() <= len(scores) and all(
        n in (1, wanted) for n, wanted in zip(mask.shape[::-1], scores[::-1], strict=False)
    )
    if not fits:
        raise ValueError(
            f"attn_mask: expected a shape that broadcasts to {scores}, (..., heads, queries, "
            f"keys), got {tuple(mask.shape)}; put axes of length 1 where it is the same for all"
        )
    mask = _with_rank(mask, max(len(scores), 4))
    if len(scores) > 4:
        if any(n != 1 for n in mask.shape[:-3]):
            mask = mask.expand(*scores[:-3], *mask.shape[-3:])
        mask = _one_batch_axis(mask)
    return mask
