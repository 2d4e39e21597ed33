"""PyTorch's tensors as NumPy arrays, and back: the same memory."""

from typing import Any

from ..arrays import Array
from ..storage import bfloat16
from ..views import attend_at

_KINDS = ("float32", "float64", "float16", "bfloat16")


def torch_for(user: str, extra: str) -> Any:
    """The package torch; one line says what to install where it is absent."""
    try:
        import torch
    except ImportError:
        raise ImportError(
            f"{user} needs the package torch: pip install 'headway[{extra}]'"
        ) from None
    return torch


def are_plain(*tensors: Any) -> bool:
    """Are all of them dense tensors on the CPU, of four axes and one float dtype?

    The everyday call in few steps; what is not plain needs a closer look.
    """
    import torch

    dtype = tensors[0].dtype if type(tensors[0]) is torch.Tensor else None
    if dtype not in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        return False
    return all(
        type(x) is torch.Tensor
        and x.dtype is dtype
        and x.is_cpu
        and x.dim() == 4
        and x.layout is torch.strided
        and not x.is_nested
        for x in tensors
    )


def check_tensor(name: str, x: Any, axes: int | None = None) -> None:
    """``x`` is a dense tensor on the CPU, with so many axes."""
    import torch

    if not isinstance(x, torch.Tensor):
        raise TypeError(
            f"{name}: expected a torch.Tensor, got {type(x).__name__}; "
            f"convert with torch.as_tensor({name})"
        )
    if x.is_nested or x.layout is not torch.strided:
        kind = "a nested one" if x.is_nested else f"layout {x.layout}"
        raise TypeError(
            f"{name}: expected a dense tensor, got {kind}; convert to torch.strided first"
        )
    if x.device.type != "cpu":
        raise TypeError(
            f"{name}: expected a tensor on the CPU, got one on {x.device}; "
            f"move it with {name}.cpu(), the model with model.cpu()"
        )
    if axes is not None and x.ndim != axes:
        raise ValueError(
            f"{name}: expected {axes} axes, (batch, heads, tokens, head_dim), got shape "
            f"{tuple(x.shape)}; reshape it"
        )


def check_float(name: str, x: Any) -> None:
    """The dtype of ``x`` is one of the four that attention is computed in."""
    kind = str(x.dtype).removeprefix("torch.")
    if kind not in _KINDS:
        fix = "real" if x.is_complex() else "float()"
        raise TypeError(
            f"{name}: expected float32, float64, float16 or bfloat16, got {kind}; "
            f"convert with {name}.{fix}"
        )


def check_mask(name: str, x: Any, shape: tuple[int, int, int, int], bools: bool = True) -> None:
    """``x`` is a tensor of floats, or bools where these may be, that broadcasts to the scores."""
    import torch

    check_tensor(name, x)
    if not (bools and x.dtype is torch.bool):
        if not (x.dtype.is_floating_point or x.is_complex()) and bools:
            raise TypeError(
                f"{name}: expected bool or a float dtype, got {x.dtype}; "
                f"convert with {name}.bool(), True where the query may attend"
            )
        check_float(name, x)
    fits = x.ndim <= 4 and all(
        n in (1, wanted) for n, wanted in zip(x.shape[::-1], shape[::-1], strict=False)
    )
    if not fits:
        raise ValueError(
            f"{name}: expected a shape that broadcasts to {shape}, (batch, heads, queries, keys), "
            f"got {tuple(x.shape)}; put axes of length 1 where it is the same for all"
        )


def attend_at_once(
    query: Any,
    key: Any,
    value: Any,
    out: Any,
    strides: tuple[int, ...],
    lse: Any,
    kind: str,
    causal: bool,
    scale: float | None,
) -> bool:
    """Fill `out`, which has these strides as (B, H, Tq, Dv), and `lse` where there is one.

    The everyday call on tensors of one dtype, by their addresses, with query 0 at key 0. False
    where nothing was done: not on the CPU, not readable where they lie, or not of fitting sizes.
    """
    if not (query.is_cpu and key.is_cpu and value.is_cpu):
        return False
    if query.is_neg() or key.is_neg() or value.is_neg():
        return False
    return attend_at(
        (query.data_ptr(), query.shape, query.stride()),
        (key.data_ptr(), key.shape, key.stride()),
        (value.data_ptr(), value.shape, value.stride()),
        (out.data_ptr(), strides),
        None if lse is None else (lse.data_ptr(), lse.stride()),
        kind,
        causal,
        scale,
    )


def array_of(x: Any) -> Array:
    """The memory of a tensor as an array; bfloat16 by way of 16-bit integers."""
    import torch

    if x.requires_grad:
        x = x.detach()
    if x.is_neg():
        x = x.resolve_neg()
    if x.dtype is torch.bfloat16:
        bits: Array = x.view(torch.int16).numpy()
        return bits.view(bfloat16())
    array: Array = x.numpy()
    return array


def tensor_of(x: Array) -> Any:
    """The memory of an array as a tensor."""
    import torch

    if x.dtype.kind == "V":  # no type of NumPy's own: bfloat16
        return torch.from_numpy(x.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(x)
