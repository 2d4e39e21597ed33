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

    def place_for(self, rows: slice) -> Array | None:
        """Where a first result of these rows may be written at once."""
        return None if self._seen[rows].any() else self.contexts[:, :, rows]

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
            place *= np.exp(old - reference).astype(place.dtype)[..., None]
            contexts *= np.exp(lse - reference).astype(place.dtype)[..., None]
        place += contexts
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
