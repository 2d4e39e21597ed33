"""What a module costs, as numbers: weights, multiply-adds and bytes, and how each grows."""

from __future__ import annotations

from typing import Any, NamedTuple

from .weights import checked_size

SIZES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}
"""Bytes of a number."""

FIGURES = (
    "num_parameters",
    "weight_bytes",
    "multiply_adds",
    "dense_multiply_adds",
    "activation_bytes",
    "kv_cache_bytes",
    "score_bytes",
)
"""The attributes of a cost that grow with its sizes."""


class Part(NamedTuple):
    """One product of a module: the numbers in its weights, and its multiply-adds."""

    num_parameters: int
    multiply_adds: int
    dense_multiply_adds: int


class Cost(NamedTuple):
    """What one call of a module costs; made by :func:`cost` and the modules' ``cost``.

    ``print(cost)`` shows everything as a table.

    Attributes
    ----------
    stage : str
        "single", "stacked" or "efficient".
    batch, num_tokens, d_in, d_out, num_heads, num_kv_heads : int
        Sizes of the input and the module; d_out is the width of all heads together.
    d_kv : int
        Width of the keys of all heads together, and of the values.
    widest_head : int
        The head_dim; the largest one where stacked heads differ.
    num_biases : int
        Numbers in the biases of queries, keys and values.
    out_width : int
        Width of the output projection's result; 0 without one.
    out_bias : bool
        Whether the output projection has a bias.
    dtype : str
        Of weights, input and result.
    num_parameters : int
        Numbers in all weights and biases.
    weight_bytes : int
        Bytes of these numbers. The modules hold them twice, as they are shown and packed.
    multiply_adds : int
        Multiply-adds of all products; of scores and context only those of (query, key) pairs
        that the causal mask leaves: ``T * (T + 1) / 2`` per head and batch entry. Masked products
        are not counted.
    dense_multiply_adds : int
        The same with masked products counted: ``T * T`` pairs, the work of ``q @ k.T`` and
        ``weights @ v`` on whole matrices.
    activation_bytes : int
        The largest number of bytes that a call holds at once beside x: Q, K, V and Z, then Z and
        the result of the output projection. Stacked heads hold Q, K and V of one head at a time.
    score_bytes : int
        Bytes of one (batch, num_heads, T, T) array, which plain NumPy stores for the scores and
        again for the weights, and headway never does.
    kv_cache_bytes : int
        Bytes of the keys and values of all tokens, in the module's dtype.

    Notes
    -----
    A multiply-add is one multiplication and the addition of its result to a sum: two floating
    point operations. Scaling, softmax, biases and the sum over score rows are not counted. The
    fused kernel leaves out tiles of keys that are hidden as a whole and computes tiles on the
    diagonal in part, so its work lies between the two counts, close to the first.

    Examples
    --------
    >>> import headway
    >>> one = headway.cost(batch=1, num_tokens=4, d_in=6, d_out=3, num_heads=1, stage="single")
    >>> one.num_parameters, one.multiply_adds, one.dense_multiply_adds
    (54, 276, 312)
    >>> two = headway.cost(batch=1, num_tokens=4, d_in=6, d_out=6, num_heads=2, stage="stacked")
    >>> two.num_parameters, two.multiply_adds, two.dense_multiply_adds
    (108, 552, 624)
    """

    stage: str
    batch: int
    num_tokens: int
    d_in: int
    d_out: int
    num_heads: int
    num_kv_heads: int
    d_kv: int
    widest_head: int
    num_biases: int = 0
    out_width: int = 0
    out_bias: bool = False
    dtype: str = "float32"

    @property
    def parts(self) -> dict[str, Part]:
        """The products in order: "qkv", "scores", "context", and "output" where there is one."""
        rows = self.batch * self.num_tokens
        qkv = self.d_in * (self.d_out + 2 * self.d_kv)
        seen = self.batch * (self.num_tokens * (self.num_tokens + 1) // 2) * self.d_out
        every = rows * self.num_tokens * self.d_out
        found = {
            "qkv": Part(qkv + self.num_biases, rows * qkv, rows * qkv),
            "scores": Part(0, seen, every),
            "context": Part(0, seen, every),
        }
        if self.out_width:
            out = self.d_out * self.out_width
            found["output"] = Part(out + self.out_width * self.out_bias, rows * out, rows * out)
        return found

    @property
    def num_parameters(self) -> int:
        """Numbers in all weights and biases."""
        return sum(part.num_parameters for part in self.parts.values())

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights and biases."""
        return self.num_parameters * SIZES[self.dtype]

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds of all products, masked ones left out."""
        return sum(part.multiply_adds for part in self.parts.values())

    @property
    def dense_multiply_adds(self) -> int:
        """Multiply-adds of all products, masked ones counted."""
        return sum(part.dense_multiply_adds for part in self.parts.values())

    @property
    def activation_bytes(self) -> int:
        """Bytes that a call holds at once beside x."""
        one_head = self.stage == "stacked"
        qkv = 3 * self.widest_head if one_head else self.d_out + 2 * self.d_kv
        numbers = self.d_out + max(qkv, self.out_width)
        return self.batch * self.num_tokens * numbers * SIZES[self.dtype]

    @property
    def score_bytes(self) -> int:
        """Bytes of one (batch, num_heads, T, T) array."""
        return self.batch * self.num_heads * self.num_tokens**2 * SIZES[self.dtype]

    @property
    def kv_cache_bytes(self) -> int:
        """Bytes of the keys and values of all tokens."""
        return self.batch * self.num_tokens * 2 * self.d_kv * SIZES[self.dtype]

    def scaled(
        self, *, num_tokens: int = 1, width: int = 1, num_heads: int = 1, split: int = 1
    ) -> Cost:
        """The cost of a module that is a whole number of times as large.

        Parameters
        ----------
        num_tokens : int, default 1
            Factor of the tokens.
        width : int, default 1
            Factor of d_in and head_dim, and so of d_out.
        num_heads : int, default 1
            Factor of the heads of the same head_dim, key heads too, and so of d_out.
        split : int, default 1
            Factor of the heads, each so many times narrower: d_out stays. A divisor of head_dim.

        Returns
        -------
        Cost
            The output projection's width grows with d_out. More heads than one are "stacked" where
            this is "single".

        Raises
        ------
        TypeError, ValueError
            If a factor is no int of at least 1, or `split` no divisor of head_dim.

        Examples
        --------
        Twice the heads are twice the weights; narrower ones for the same d_out are not.

        >>> import headway
        >>> cost = headway.cost(batch=1, num_tokens=8, d_in=16, d_out=16, num_heads=2)
        >>> cost.num_parameters, cost.scaled(num_heads=2).num_parameters
        (768, 1536)
        >>> cost.scaled(split=2).num_parameters, cost.scaled(split=2).score_bytes
        (768, 1024)
        """
        factors = {"num_tokens": num_tokens, "width": width, "num_heads": num_heads, "split": split}
        tokens, wide, heads, parts = (checked_size(n, value) for n, value in factors.items())
        if not self._splits(parts):
            raise ValueError(
                f"split: expected a divisor of every head_dim ({self.widest_head}), got {parts}; "
                "a head_dim is a whole number"
            )
        many = heads * parts > 1
        return self._replace(
            stage="stacked" if many and self.stage == "single" else self.stage,
            num_tokens=self.num_tokens * tokens,
            d_in=self.d_in * wide,
            d_out=self.d_out * wide * heads,
            d_kv=self.d_kv * wide * heads,
            num_heads=self.num_heads * heads * parts,
            num_kv_heads=self.num_kv_heads * heads * parts,
            widest_head=self.widest_head * wide // parts,
            num_biases=self.num_biases * wide * heads,
            out_width=self.out_width * wide * heads,
        )

    def _splits(self, parts: int) -> bool:
        equal = self.widest_head * self.num_heads == self.d_out
        return parts == 1 or (equal and self.widest_head % parts == 0)

    def growth(self) -> dict[str, dict[str, float]]:
        """How many times as large each figure is when something doubles.

        Returns
        -------
        dict of str to dict of str to float
            By figure ("num_parameters", "weight_bytes", "multiply_adds", "dense_multiply_adds",
            "activation_bytes", "kv_cache_bytes", "score_bytes"), then by what doubles:
            "num_tokens", "width", "num_heads" and, where head_dim is even, "split", which are those
            of :meth:`scaled`.

        Examples
        --------
        >>> import headway
        >>> cost = headway.cost(batch=1, num_tokens=8, d_in=16, d_out=16, num_heads=2)
        >>> cost.growth()["score_bytes"]
        {'num_tokens': 4.0, 'width': 1.0, 'num_heads': 2.0, 'split': 2.0}
        """
        doubled = {name: self.scaled(**{name: 2}) for name in ("num_tokens", "width", "num_heads")}
        if self._splits(2):
            doubled["split"] = self.scaled(split=2)
        return {
            figure: {
                name: getattr(other, figure) / getattr(self, figure)
                for name, other in doubled.items()
            }
            for figure in FIGURES
        }

    def to_dict(self) -> dict[str, Any]:
        """Sizes, figures, parts and growth as plain numbers and text, for ``json.dumps``.

        Returns
        -------
        dict
            Every attribute by its name, ``parts`` and ``growth``.

        Examples
        --------
        >>> import headway
        >>> cost = headway.cost(batch=1, num_tokens=8, d_in=16, d_out=16, num_heads=2)
        >>> cost.to_dict()["parts"]["context"]
        {'num_parameters': 0, 'multiply_adds': 576, 'dense_multiply_adds': 1024}
        """
        parts = {name: part._asdict() for name, part in self.parts.items()}
        figures = {figure: getattr(self, figure) for figure in FIGURES}
        return {**self._asdict(), **figures, "parts": parts, "growth": self.growth()}

    def plot(self) -> Any:
        """Draw how the figures grow with tokens, width and heads, and what the products cost.

        Returns
        -------
        matplotlib.figure.Figure
            Made without pyplot: ``figure.savefig("cost.png")`` writes it.

        Raises
        ------
        ImportError
            If matplotlib is not installed: ``pip install 'headway[plot]'``.

        Examples
        --------
        >>> import headway
        >>> cost = headway.cost(batch=1, num_tokens=512, d_in=64, d_out=64, num_heads=4)
        >>> cost.plot().savefig("cost.png")  # doctest: +SKIP
        """
        from .cost_plot import draw

        return draw(self)

    def __str__(self) -> str:
        from .cost_table import text

        return text(self)
