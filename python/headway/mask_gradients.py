"""The gradient by a float mask, in blocks of queries: no matrix larger than the mask is stored."""

import numpy as np

from . import _core
from .arrays import Array, empty_result
from .calls import Call
from .gradient_calls import Saved

__all__ = ["mask_gradient"]

_MOST_SCORES = 2**20  # numbers in a block: 4 MiB in float32
_TOGETHER = 16  # queries that are summed in one step, on a grid that no block shifts


@np.errstate(all="ignore")
def mask_gradient(call: Call, saved: Saved, shape: tuple[int, ...]) -> Array:
    """The gradient at the scores, summed where a mask of this shape was broadcast."""
    batch, num_heads, tq, _ = call.q.shape
    tk = call.k.shape[2]
    scores = batch, num_heads, tq, tk
    full = (1,) * (4 - len(shape)) + shape
    if 0 in scores:
        return np.zeros(shape, call.wide)
    if full == scores:
        result = empty_result(shape, call.wide)
        _fill(call, saved, slice(0, tq), result.reshape(full))
        return result

    total = empty_result(full, np.float64)
    total[...] = 0.0
    summed = tuple(n for n, length in enumerate(full) if length == 1)
    most = _MOST_SCORES // (batch * num_heads * tk) // _TOGETHER * _TOGETHER
    rows = min(tq, max(most, _TOGETHER))
    block = empty_result((batch, num_heads, rows, tk), call.wide)
    for start in range(0, tq, rows):
        stop = min(start + rows, tq)
        part = block[:, :, : stop - start]
        _fill(call, saved, slice(start, stop), part)
        for first in range(start, stop, _TOGETHER):
            last = min(first + _TOGETHER, stop)
            place = slice(0, 1) if full[2] == 1 else slice(first, last)
            # The copy has one layout for every block, so that NumPy adds in one order.
            few = part[:, :, first - start : last - start].astype(np.float64, order="C")
            total[:, :, place] += np.add.reduce(few, axis=summed, keepdims=True)
    return total.reshape(shape).astype(call.wide)


def _fill(call: Call, saved: Saved, rows: slice, gradients: Array) -> None:
    """Write the gradients at the scores of some queries to a (B, H, rows, Tk) array."""
    q4, k4, v4, kind, _, factor, hides, _, options = call
    if options is not None and options.mask is not None:
        options = options._replace(mask=options.mask[:, :, rows])
    part = saved.of_queries(rows)
    _core.attention_score_gradients(
        part.grad_out,
        q4[:, :, rows],
        k4,
        v4,
        part.out,
        part.lse,
        part.grad_lse,
        gradients,
        kind,
        part.kind,
        factor,
        hides,
        [offset + rows.start for offset in call.offsets],
        options,
    )
