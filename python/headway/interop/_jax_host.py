"""What JAX's callbacks run on the host: calls of one example, or of many that were mapped over."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..arrays import Array
from ..calls import check_attention
from ..functional import attention
from ..gradients import attention_backward

Arrays = dict[str, Any]  # q, k, v and what else is given, by name; None: not given

_MASK, _SINKS, _LENGTHS, _STARTS, _SEED = "mask", "sinks", "lengths", "starts", "seed"


class Settings(NamedTuple):
    """Options of a call that are known when it is traced; hashable."""

    rank: int  # of q in one example
    causal: bool
    align: str | int | None  # None: an array of positions is given
    scale: float | None
    window: int | tuple[int, ...] | None
    softcap: float | None
    slopes: tuple[Any, ...] | None  # (H,) or (B, H), as nested tuples
    layout: str
    dropout: float = 0.0
    seed: int | None = None  # None: an array is given, or none at all

    def options(self, arrays: Arrays) -> dict[str, Any]:
        """The keywords of a call with these arrays."""
        seed = arrays.get(_SEED)
        return {
            "causal": self.causal,
            "align": arrays.get(_STARTS) if self.align is None else self.align,
            "scale": self.scale,
            "window": self.window,
            "softcap": self.softcap,
            "alibi_slopes": self.slopes,
            "layout": self.layout,
            "mask": arrays.get(_MASK),
            "sinks": arrays.get(_SINKS),
            "kv_lengths": arrays.get(_LENGTHS),
            "dropout": self.dropout,
            "seed": self.seed if seed is None else int(seed),
        }


def check(settings: Settings, shapes: Arrays) -> None:
    """Every check that needs no values; of ``shapes``, shape and dtype of each are read."""
    empty = {
        name: None if x is None else np.broadcast_to(np.zeros((), x.dtype), x.shape)
        for name, x in shapes.items()
    }
    options = settings.options(empty)
    names = (_MASK, "window", "softcap", "alibi_slopes", _SINKS, "kv_lengths")
    check_attention(
        empty["q"],
        empty["k"],
        empty["v"],
        settings.causal,
        options["align"],
        settings.scale,
        settings.layout,
        tuple(options[name] for name in names),
        dropout=settings.dropout,
        seed=options["seed"],
    )


def forward(settings: Settings, arrays: Arrays) -> tuple[Array, Array]:
    """The contexts and their log-sum-exps."""

    def task(options: dict[str, Any], given: Arrays) -> tuple[Array, ...]:
        result: tuple[Array, ...] = attention(
            given["q"], given["k"], given["v"], return_lse=True, **options
        )
        return result

    out, lse = _each(settings, arrays, task, foldable=True)
    return out, lse


def backward(
    settings: Settings, mask_grad: bool, sinks_grad: bool, arrays: Arrays
) -> tuple[Array, ...]:
    """Gradients by q, k and v, then by the sinks and the mask where they are wanted."""

    def task(options: dict[str, Any], given: Arrays) -> tuple[Array, ...]:
        names = ("grad_out", "q", "k", "v", "out", "lse")
        return attention_backward(
            *(given[name] for name in names),
            grad_lse=given.get("grad_lse"),
            mask_grad=mask_grad,
            sinks_grad=sinks_grad,
            **options,
        )

    found = _each(settings, arrays, task, foldable=not (mask_grad or sinks_grad))
    like = [arrays["q"], arrays["k"], arrays["v"]]
    like += [arrays[_SINKS]] * sinks_grad + [arrays[_MASK]] * mask_grad
    return tuple(x.astype(y.dtype, copy=False) for x, y in zip(found, like, strict=True))


# Mapped axes --------------------------------------------------------------------------------------

Task = Callable[[dict[str, Any], Arrays], tuple[Array, ...]]


def _each(settings: Settings, arrays: Arrays, task: Task, foldable: bool) -> tuple[Array, ...]:
    """The results of a task on arrays that may have mapped axes in front, 1 where not mapped.

    One call does for all of them where they can stand for more batch entries; a dropped weight
    depends on its entry's place in the batch, which is the one that it has in its example.
    """
    arrays = {name: None if x is None else np.asarray(x) for name, x in arrays.items()}
    mapped = arrays["q"].ndim - settings.rank
    if mapped == 0:
        return task(settings.options(arrays), arrays)
    present = [x for x in arrays.values() if x is not None]
    sizes = np.broadcast_shapes(*(x.shape[:mapped] for x in present))
    sinks = arrays.get(_SINKS)
    shared = sinks is None or sinks.size == sinks.shape[-1]
    if foldable and shared and not settings.dropout:
        return _folded(settings, arrays, task, sizes)
    parts = []
    for place in np.ndindex(*sizes):
        one = {n: None if x is None else x[_index(place, x)] for n, x in arrays.items()}
        parts.append(task(settings.options(one), one))
    return tuple(
        np.stack(results).reshape(*sizes, *results[0].shape) for results in zip(*parts, strict=True)
    )


def _index(place: tuple[int, ...], x: Array) -> tuple[int, ...]:
    return tuple(i if size > 1 else 0 for i, size in zip(place, x.shape, strict=False))


def _folded(
    settings: Settings, arrays: Arrays, task: Task, sizes: tuple[int, ...]
) -> tuple[Array, ...]:
    """One call whose batch is the mapped axes and the batch of an example, if it has one."""
    mapped, rank = len(sizes), settings.rank
    batch = arrays["q"].shape[mapped] if rank == 4 else 1
    single = (1,) * (4 - rank)  # axes that an example of fewer axes has not

    def many(x: Array, *inner: int) -> Array:
        """(mapped, B, ...) as (mapped * B, ...); ``inner`` is the shape after the mapped axes."""
        shape = (*x.shape[:mapped], *inner)
        whole = np.broadcast_to(x.reshape(shape), (*sizes, batch, *inner[1:]))
        return whole.reshape(-1, *inner[1:])

    folded: Arrays = {}
    for name, x in arrays.items():
        if x is None:
            continue
        own = x.shape[mapped:]
        if name == _SINKS:
            folded[name] = x.reshape(own)
        elif name == _MASK:
            folded[name] = many(x, *((1,) * (4 - len(own)) + own))
        elif name == _SEED:  # which nothing depends on without dropout
            folded[name] = x.ravel()[0]
        elif name in (_LENGTHS, _STARTS):
            folded[name] = many(x, *(own or (1,)))
        elif name in ("lse", "grad_lse"):
            folded[name] = many(x, *single, *own)
        elif rank == 2:
            heads_first = settings.layout == "BHTD"
            folded[name] = many(x, 1, *((1, *own) if heads_first else (own[0], 1, own[1])))
        else:
            folded[name] = many(x, *single, *own)
    wide = settings._replace(rank=4)
    options = wide.options(folded)
    if settings.slopes is not None:
        slopes = np.asarray(settings.slopes)
        shape = (*sizes, batch, slopes.shape[-1])
        options["alibi_slopes"] = np.broadcast_to(slopes, shape).reshape(-1, slopes.shape[-1])
    results = task(options, folded)
    return tuple(
        x.reshape(*sizes, *_one_example(x.shape, batch, rank, settings.layout)) for x in results
    )


def _one_example(shape: tuple[int, ...], batch: int, rank: int, layout: str) -> tuple[int, ...]:
    """The shape of a result without the mapped axes."""
    if rank == 4:
        return (batch, *shape[1:])
    if rank == 3:
        return shape[1:]
    return shape[2:] if layout == "BHTD" or len(shape) == 3 else (shape[1], shape[3])
