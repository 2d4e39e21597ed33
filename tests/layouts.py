"""Memory layouts: each gives an array of the same shape, laid out in one certain way.

All but the broadcast ones keep the values. A broadcast layout repeats the first batch entry,
head or token over the whole axis, so that a stride of 0 tells the truth: take the values for
the reference from the array that comes out.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from helpers import Array


def contiguous(x: Array) -> Array:
    """Rows, heads and batch entries one after another."""
    return np.ascontiguousarray(x)


def token_major(x: Array) -> Array:
    """A view of (B, T, 3, H, D): tokens outside heads, as one projection of q, k, v gives it."""
    batch, heads, tokens, width = x.shape
    packed = np.full((batch, tokens, 3, heads, width), np.nan).astype(x.dtype)
    packed[:, :, 1] = x.transpose(0, 2, 1, 3)
    return packed[:, :, 1].transpose(0, 2, 1, 3)


def fortran(x: Array) -> Array:
    """Column-major: the first axis is contiguous, the last one has the largest stride."""
    return np.asfortranarray(x)


def step_two(x: Array) -> Array:
    """Every second element of rows twice as wide; the others are NaN."""
    wide = np.full((*x.shape[:-1], 2 * x.shape[-1]), np.nan).astype(x.dtype)
    wide[..., ::2] = x
    return wide[..., ::2]


def last_outermost(x: Array) -> Array:
    """The last axis moves slowest in memory, the others lie as in C order."""
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(x, -1, 0)), 0, -1)


def heads_innermost(x: Array) -> Array:
    """Heads are contiguous, head_dim is not."""
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)


def reversed_tokens(x: Array) -> Array:
    """A negative stride over the tokens."""
    return x[:, :, ::-1].copy()[:, :, ::-1]


def reversed_heads(x: Array) -> Array:
    """A negative stride over the heads."""
    return x[:, ::-1].copy()[:, ::-1]


def reversed_batch(x: Array) -> Array:
    """A negative stride over the batch."""
    return x[::-1].copy()[::-1]


def reversed_last(x: Array) -> Array:
    """A negative stride on the last axis."""
    return x[..., ::-1].copy()[..., ::-1]


def broadcast_batch(x: Array) -> Array:
    """One batch entry for all: stride 0."""
    return np.broadcast_to(x[:1].copy(), x.shape)


def broadcast_heads(x: Array) -> Array:
    """One head for all: stride 0."""
    return np.broadcast_to(x[:, :1].copy(), x.shape)


def broadcast_tokens(x: Array) -> Array:
    """One token for all: stride 0."""
    return np.broadcast_to(x[:, :, :1].copy(), x.shape)


def broadcast_last(x: Array) -> Array:
    """One number for the whole row: stride 0 on the last axis.

    It is made smaller, so that products of such rows are no larger than those of random ones.
    """
    return np.broadcast_to((x[..., :1] / x.shape[-1] ** 0.25).astype(x.dtype), x.shape)


def one_element_in(x: Array) -> Array:
    """Starts one element into a buffer: aligned to the item, not to 32 or 64 bytes."""
    buffer = np.zeros(x.size + 1, x.dtype)
    buffer[1:] = x.ravel()
    return buffer[1:].reshape(x.shape)


def odd_address(x: Array) -> Array:
    """The address is no multiple of the item size."""
    buffer = bytearray(1 + x.nbytes)
    view = np.frombuffer(buffer, dtype=x.dtype, offset=1, count=x.size).reshape(x.shape)
    view[...] = x
    return view


def odd_strides(x: Array) -> Array:
    """A field of a packed record: strides that are no multiple of the item size."""
    row = np.dtype([("pad", "u1"), ("row", x.dtype, (x.shape[-1],))])
    records = np.zeros(x.shape[:-1], row)
    records["row"] = x
    return records["row"]


def read_only(x: Array) -> Array:
    """Contiguous, but not writeable."""
    copied = x.copy()
    copied.flags.writeable = False
    return copied


def cache_slice(x: Array) -> Array:
    """The middle of a longer buffer whose other slots hold NaN."""
    batch, heads, tokens, width = x.shape
    buffer = np.full((batch + 1, heads + 2, tokens + 7, width), np.nan).astype(x.dtype)
    view = buffer[1:, 1:-1, 3 : 3 + tokens]
    view[...] = x
    return view


def wide_rows(x: Array) -> Array:
    """The front columns of rows three elements wider; the rest of a row is NaN."""
    wide = np.full((*x.shape[:-1], x.shape[-1] + 3), np.nan).astype(x.dtype)
    wide[..., : x.shape[-1]] = x
    return wide[..., : x.shape[-1]]


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    layout.__name__: layout
    for layout in (
        contiguous,
        token_major,
        fortran,
        step_two,
        last_outermost,
        heads_innermost,
        reversed_tokens,
        reversed_heads,
        reversed_batch,
        reversed_last,
        broadcast_batch,
        broadcast_heads,
        broadcast_tokens,
        broadcast_last,
        one_element_in,
        odd_address,
        odd_strides,
        read_only,
        cache_slice,
        wide_rows,
    )
}

#: Layouts that can be written to, element by element: fit for ``out=``.
WRITABLE = tuple(
    name for name in LAYOUTS if not name.startswith("broadcast") and name != "read_only"
)

#: Which of the inputs get the layout: one, two or all three.
CHOICES = ("q", "k", "v", "qk", "qv", "kv", "qkv")


def lay_out(
    arrays: tuple[Array, Array, Array], layout: str, chosen: str
) -> tuple[Array, Array, Array]:
    """Return q, k and v, those named in `chosen` in the layout, the others contiguous."""
    q, k, v = (
        LAYOUTS[layout](x) if name in chosen else np.ascontiguousarray(x)
        for name, x in zip("qkv", arrays, strict=True)
    )
    return q, k, v
