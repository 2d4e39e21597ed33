"""PyTorch's tensors as NumPy arrays, and back: the same memory."""

from typing import Any

from ..arrays import Array
from ..storage import bfloat16

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


def array_of(x: Any) -> Array:
    """The memory of a tensor as an array; bfloat16 by way of 16-bit integers."""
    import torch

    x = x.detach().resolve_neg()
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
