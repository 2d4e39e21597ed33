"""PyTorch's own attention on headway: its kernels for the CPU, replaced while asked for."""

import warnings
from types import TracebackType
from typing import Any

import torch

from ._torch_kernels import ARGUMENTS, Tally, kernels, lock, originals, tallies

_library: Any = None


class Override(Tally):
    """What :func:`override` returns: a context manager that counts.

    Attributes
    ----------
    calls : int
        Attention that headway computed for PyTorch, forward passes, since this override began.
    missed : int
        Attention on the CPU that kept PyTorch's own path.
    active : bool
        Whether this override is in force.
    """

    @property
    def active(self) -> bool:
        """Whether this override is in force."""
        return self in tallies

    def restore(self) -> None:
        """End it. PyTorch's own kernels come back with the last override that ends."""
        with lock:
            if self in tallies:
                tallies.remove(self)
                if not tallies:
                    _uninstall()

    def _begin(self) -> None:
        with lock:
            if self not in tallies:
                if not tallies:
                    _install()
                tallies.append(self)

    def __enter__(self) -> "Override":
        self._begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.restore()

    def __repr__(self) -> str:
        state = "active" if self.active else "ended"
        return f"Override({state}, calls={self.calls}, missed={self.missed})"


def override() -> Override:
    """Let PyTorch's attention on the CPU run on headway, in the whole process.

    While it is in force, every call of ``torch.nn.functional.scaled_dot_product_attention`` that
    PyTorch sends to its fused kernel for the CPU is computed by headway, forward and backward, with
    PyTorch's own autograd; and so is the attention inside of ``torch.nn.MultiheadAttention`` and of
    the modules made of it.

    Returns
    -------
    Override
        In force at once: a plain call stays so until ``restore()``; as a context manager it ends
        with its block. It counts ``calls`` and ``missed``. Overrides may be nested; each counts
        what happens during its own life.

    Raises
    ------
    RuntimeError
        If this version of PyTorch has no such kernels, or others than are known here.

    Notes
    -----
    These keep PyTorch's own path, and `missed` counts them: a call with

    * `dropout_p` above 0;
    * values of another head_dim than the keys, or inputs of other than 4 axes;
    * key heads or batch entries that are broadcast (not those of ``enable_gqa=True``);
    * a last axis that is not contiguous;
    * a mask of 3 axes, or one that requires a gradient;
    * another backend chosen by ``torch.nn.attention.sdpa_kernel``.

    Not counted at all: a call without elements; and ``MultiheadAttention`` with
    ``need_weights=True`` (its default) where it makes the weights by products of its own.

    ``MultiheadAttention`` in evaluation without gradients takes PyTorch's fast path, with headway
    inside unless weights are asked for (missed). A row there whose every key is hidden has the
    context 0, as in training, where PyTorch gives NaN.

    Under ``torch.compile`` the graph calls the fused kernel, and thereby headway, when it runs;
    what the compiler has taken apart beforehand is not counted. Nested tensors and other devices
    are not touched.

    PyTorch's kernels are replaced through its dispatcher; ``torch.library`` is the documented way
    (https://docs.pytorch.org/docs/stable/library.html).

    Examples
    --------
    >>> import torch
    >>> from headway.interop.torch import override
    >>> x = torch.ones(1, 2, 3, 4)
    >>> with override() as on_headway:
    ...     out = torch.nn.functional.scaled_dot_product_attention(x, x, x)
    >>> on_headway
    Override(ended, calls=1, missed=0)
    """
    new = Override()
    new._begin()
    return new


# Installation -------------------------------------------------------------------------------------


def _check_version() -> None:
    """The kernels are where they are expected, and take what is expected."""
    for name, expected in ARGUMENTS.items():
        got = _found(name)
        if got != expected:
            raise RuntimeError(
                f"override: expected the operator aten::{name} with the arguments {expected}, got "
                f"{got} in PyTorch {torch.__version__}; call "
                "headway.interop.torch.scaled_dot_product_attention instead"
            )


def _found(name: str) -> str:
    """The names of an operator's arguments, or what is missing."""
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        return "none"
    if not hasattr(torch.library, "get_kernel"):
        return "no torch.library.get_kernel"
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    if not any(has_kernel(f"aten::{name}", key) for key in ("CPU", "CompositeImplicitAutograd")):
        return "no kernel for the CPU"
    return " ".join(argument.name for argument in packet.default._schema.arguments)


def _install() -> None:
    global _library
    _check_version()
    replacing = kernels()
    for name, key in replacing:
        originals[name, key] = torch.library.get_kernel(f"aten::{name}", key)
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns that a kernel is replaced
            for (name, key), kernel in replacing.items():
                library.impl(name, kernel, key, with_keyset=True)
    except BaseException:
        library._destroy()
        raise
    _library = library


def _uninstall() -> None:
    global _library
    _library._destroy()
    _library = None
