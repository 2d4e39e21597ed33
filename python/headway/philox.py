"""Philox4x32-10 in plain NumPy, and the weights that dropout keeps: part of the oracle.

The generator has no state: 128 bits of counter and 64 bits of key give four words of 32 random
bits. Its key is the seed of a call; the counter says which weights the words are for. So a weight
is dropped or kept whatever else is computed, and in whatever order.

(Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011, section
3.3. Dropout: Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from
Overfitting", JMLR 15, 2014.)
"""

import numpy as np

from .arrays import Array

_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_STEPS = 0x9E3779B9, 0xBB67AE85
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


def philox(counter: tuple[Array, Array, Array, Array], key: tuple[int, int]) -> list[Array]:
    """Return the four words of each counter as uint32.

    Parameters
    ----------
    counter : four arrays of unsigned integers below 2**32
        Its words; their shapes broadcast.
    key : (int, int)
        Its words, each below 2**32.

    Returns
    -------
    list of four ndarrays
        uint32, in the shape that those of the counter broadcast to.

    Examples
    --------
    >>> import numpy as np
    >>> from headway.philox import philox
    >>> zero = np.zeros((), np.uint32)
    >>> [f"{int(word):08x}" for word in philox((zero, zero, zero, zero), (0, 0))]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    c0, c1, c2, c3 = (np.asarray(word, np.uint64) for word in counter)
    k0, k1 = key
    for _ in range(10):
        product0, product2 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2  # 64 bits each
        c0, c1 = (product2 >> _HALF) ^ c1 ^ np.uint64(k0), product2 & _LOW
        c2, c3 = (product0 >> _HALF) ^ c3 ^ np.uint64(k1), product0 & _LOW
        k0, k1 = (k0 + _STEPS[0]) % 2**32, (k1 + _STEPS[1]) % 2**32
    return [word.astype(np.uint32) for word in np.broadcast_arrays(c0, c1, c2, c3)]


def kept_weights(
    shape: tuple[int, int, int, int],
    offsets: list[int],
    dropout: float,
    seed: int,
    first_entry: int = 0,
    first_head: int = 0,
) -> Array:
    """(B, H, Tq, Tk) bool: which weights a dropout keeps, each one by a word of its own.

    Four neighbouring keys share a counter: (key // 4, position of the query, head, batch entry).
    Query i of batch entry b stands at the key position ``offsets[b] + i``, modulo 2**32; entries
    count from ``first_entry``, heads from ``first_head``. A weight is kept where its word is not
    below ``dropout * 2**32``, rounded.

    Examples
    --------
    >>> from headway.philox import kept_weights
    >>> kept_weights((1, 1, 2, 5), [0], 0.5, seed=1)[0, 0].astype(int)
    array([[1, 1, 1, 1, 1],
           [1, 0, 0, 0, 1]])
    """
    batch, num_heads, tq, tk = shape
    entry = np.arange(first_entry, first_entry + batch).reshape(-1, 1, 1, 1)
    head = np.arange(first_head, first_head + num_heads).reshape(-1, 1, 1)
    position = np.array(offsets, np.int64).reshape(-1, 1, 1, 1) + np.arange(tq).reshape(-1, 1)
    group = np.arange((tk + 3) // 4)
    words = philox((group, position % 2**32, head, entry), (seed % 2**32, seed // 2**32))
    threshold = min(round(dropout * 2**32), 2**32 - 1)
    kept: Array = np.stack(words, axis=-1) >= np.uint32(threshold)
    return kept.reshape(batch, num_heads, tq, 4 * group.size)[..., :tk]
