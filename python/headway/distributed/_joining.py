"""Results over more and more keys, joined in place by their log-sum-exps."""

from __future__ import annotations

import numpy as np

from ..arrays import Array


class Joined:
    """Contexts and log-sum-exps of a rank's rows over the keys so far.

    ``lse = log(exp(a) + exp(b))`` and ``out = exp(a - lse) * out_a + exp(b - lse) * out_b``: Dao et
    al., "FlashAttention" (2022), section 3.1. Contexts are kept in the accumulation dtype, the
    log-sum-exps in float64. A row without keys so far takes the first result bit for bit. All parts
    of a row have the same rows: a segment, or those of it in one packed sequence.
    """

    def __init__(self, contexts: Array, num_rows: int) -> None:
        self.contexts = contexts  # (B, H, n, Dv), filled by the first part of each row
        self.lse = np.full(contexts.shape[:3], -np.inf)
        self._seen = np.zeros(num_rows, bool)
        self._scratch = np.empty(0, contexts.dtype)

    def place_for(self, rows: slice) -> Array:
        """Where the contexts of a part of these rows are to be written: at once, if it is first."""
        place = self.contexts[:, :, rows]
        if not self._seen[rows].any():
            return place
        if self._scratch.size < place.size:
            self._scratch = np.empty(place.size, place.dtype)  # kept: new memory costs page faults
        return self._scratch[: place.size].reshape(place.shape)

    def add(self, rows: slice, contexts: Array, lse: Array) -> None:
        """Join a part; `contexts` is what `place_for` gave, or an array that is used up."""
        if not self._seen[rows].any():
            self._seen[rows] = True
            self.lse[:, :, rows] = lse
            return
        place = self.contexts[:, :, rows]
        old = self.lse[:, :, rows]
        with np.errstate(all="ignore"):
            new = np.logaddexp(old, lse)
            reference = np.where(new == -np.inf, 0.0, new)
            before = np.exp(old - reference).astype(place.dtype)[..., None]
            after = np.exp(lse - reference).astype(place.dtype)[..., None]
            for head in np.ndindex(place.shape[:2]):  # one head at a time stays in the cache
                place[head] *= before[head]
                contexts[head] *= after[head]
                place[head] += contexts[head]
        self.lse[:, :, rows] = new

    def add_sinks(self, sinks: Array) -> None:
        """One logit more for each head, (H,), without a value: once, after all parts."""
        self.contexts[:, :, ~self._seen] = 0
        with np.errstate(all="ignore"):
            new = np.logaddexp(self.lse, sinks[:, None])
            reference = np.where(new == -np.inf, 0.0, new)
            self.contexts *= np.exp(self.lse - reference).astype(self.contexts.dtype)[..., None]
        self.lse = new
        self._seen[:] = True

    def finish(self) -> None:
        """Rows that saw nothing at all have the context 0."""
        self.contexts[:, :, ~self._seen] = 0
