"""State dicts: the names under which the course's classes and torch keep these weights.

Three sets of names are read; every matrix has the shape (out, in), as a torch Linear stores it:

* a stack of heads: ``heads.0.W_query.weight``, ``heads.0.W_key.weight``, ... for each head;
* all heads side by side: ``W_query.weight``, ``W_key.weight``, ``W_value.weight``;
* torch.nn.MultiheadAttention: ``in_proj_weight``, or ``q_proj_weight``, ``k_proj_weight`` and
  ``v_proj_weight``.

Each goes with its biases (``W_query.bias``, ``in_proj_bias``) and an output projection
(``out_proj.weight``, ``out_proj.bias``). A ``mask`` buffer is skipped: the causal rule is built in.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from .arrays import Array, as_array, kind_of

_HEAD_NAMES = {
    "w_query": "W_query.weight",
    "w_key": "W_key.weight",
    "w_value": "W_value.weight",
    "b_query": "W_query.bias",
    "b_key": "W_key.bias",
    "b_value": "W_value.bias",
}
_OUTPUT_NAMES = {"w_out": "out_proj.weight", "b_out": "out_proj.bias"}
_NAMES = _HEAD_NAMES | _OUTPUT_NAMES
_SEPARATE_NAMES = {"w_query": "q_proj_weight", "w_key": "k_proj_weight", "w_value": "v_proj_weight"}
_JOINED_NAMES = {"w_joined": "in_proj_weight", "b_joined": "in_proj_bias"}
_TORCH_KEYS = {*_SEPARATE_NAMES.values(), *_JOINED_NAMES.values()}

_HEAD_KEY = re.compile(r"heads\.(0|[1-9][0-9]{0,8})\.")
_LISTED = 16  # names written out in an error text


class Parts(NamedTuple):
    """What a state dict holds, under the names of the modules' arguments."""

    heads: list[dict[str, Any]]  # one head after another, or empty:
    merged: dict[str, Array]  # all heads side by side
    output: dict[str, Array]  # w_out and b_out where there are any


def name_in_state(name: str) -> str:
    """A weight's name in the state dict, for "w_query", "heads.0.w_query" or such; else itself."""
    owner, dot, last = name.rpartition(".")
    return owner + dot + _NAMES.get(last, last)


def to_state(weights: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    """Weights by argument name as fresh arrays, in the course's names and torch's orientation."""
    return {prefix + name_in_state(n): np.array(array.T, order="C") for n, array in weights.items()}


def read_head(state: Mapping[str, Any], prefix: str) -> dict[str, Array]:
    """The weights of a single head, by argument name."""
    return _read(_Keys(state, prefix), _HEAD_NAMES)


def read_heads(state: Mapping[str, Any], prefix: str) -> Parts:
    """The weights of several heads, in any of the three sets of names."""
    keys = _Keys(state, prefix)
    if not _TORCH_KEYS.isdisjoint(keys.names):
        return _read_torch(keys)
    count = len({match[1] for key in keys.names if (match := _HEAD_KEY.match(key))})
    if count == 0:
        merged = _read(keys, _NAMES)
        return Parts([], merged, _pop_output(merged))
    names = {
        f"{name} {head}": f"heads.{head}.{key}"
        for head in range(count)
        for name, key in _HEAD_NAMES.items()
    }
    found = _read(keys, names | _OUTPUT_NAMES)
    output = _pop_output(found)
    heads: list[dict[str, Any]] = [{} for _ in range(count)]
    for name_and_head, array in found.items():
        name, head = name_and_head.split()
        heads[int(head)][name] = array
    return Parts(heads, {}, output)


def check_count(name: str, given: int | None, found: int) -> None:
    """A number of heads that is given beside a state that tells it is the same."""
    if given is not None and given != found:
        raise ValueError(
            f"{name}: expected {found}, the heads of this state, got {given}; leave it out"
        )


def _pop_output(found: dict[str, Array]) -> dict[str, Array]:
    return {name: found.pop(name) for name in _OUTPUT_NAMES if name in found}


def _read_torch(keys: "_Keys") -> Parts:
    refused = sorted(keys.names & {"bias_k", "bias_v"})
    if refused:
        raise ValueError(
            f"state: expected a MultiheadAttention without further keys and values, got "
            f"{', '.join(refused)}; build it with add_bias_kv=False"
        )
    joined = keys.names.isdisjoint(_SEPARATE_NAMES.values())
    bias = {"b_joined": "in_proj_bias"}
    names = (_JOINED_NAMES if joined else _SEPARATE_NAMES | bias) | _OUTPUT_NAMES
    found = _read(keys, names, always={"w_out"})
    output = _pop_output(found)

    width = found["w_joined" if joined else "w_query"].shape[0]
    for name, key in names.items():
        if name not in found:
            continue
        rows = 3 * width if name in ("w_joined", "b_joined") else width
        wanted = (rows, width) if name.startswith("w") else (rows,)
        got = found[name].T.shape
        if got != wanted:
            raise ValueError(
                f"{keys.prefix}{key}: expected shape {wanted}, got {got}; one x feeds queries, "
                "keys and values, so embed_dim, kdim and vdim have to be equal"
            )
    for kind in ("w", "b"):
        if f"{kind}_joined" in found:
            parts = np.split(found.pop(f"{kind}_joined"), 3, axis=-1)
            found |= zip((f"{kind}_query", f"{kind}_key", f"{kind}_value"), parts, strict=True)
    return Parts([], found, output)


# Keys and values ----------------------------------------------------------------------------------


class _Keys:
    """The keys of a state dict that start with a prefix, without it."""

    def __init__(self, state: Mapping[str, Any], prefix: str) -> None:
        if not isinstance(state, Mapping):
            raise TypeError(
                f"state: expected a mapping of names to arrays, got {type(state).__name__}; "
                "pass what state_dict() of the torch module returns"
            )
        if not isinstance(prefix, str):
            raise TypeError(
                f'prefix: expected a str, got {type(prefix).__name__}; pass e.g. "att."'
            )
        self.state = state
        self.prefix = prefix
        found = {str(key) for key in state if str(key).startswith(prefix)}
        self.names = {key[len(prefix) :] for key in found}
        if not self.names:
            raise ValueError(
                f"state: expected keys that start with {prefix!r}, got {_listed(map(str, state))}; "
                "pass the prefix that stands before W_query or in_proj_weight"
            )


def _read(keys: _Keys, names: Mapping[str, str], always: Iterable[str] = ()) -> dict[str, Array]:
    """Arrays by argument name; every key is known, and none is missing but biases and w_out."""
    optional = {key for name, key in names.items() if name.startswith(("b_", "w_out"))}
    optional -= {names[name] for name in always}
    if _OUTPUT_NAMES["b_out"] in keys.names:
        optional.discard(_OUTPUT_NAMES["w_out"])
    missing = [key for key in names.values() if key not in keys.names and key not in optional]
    known = set(names.values())
    unknown = sorted(key for key in keys.names - known if key.rpartition(".")[2] != "mask")
    if missing or unknown:
        parts = [f"without {_listed(missing)}"] if missing else []
        parts += [f"with unknown keys {_listed(unknown)}"] if unknown else []
        prefix = f" after the prefix {keys.prefix!r}" if keys.prefix else ""
        raise ValueError(
            f"state: expected {_listed(names.values())}{prefix} (biases and out_proj may be "
            f"absent), got a state {' and '.join(parts)}; {_hint(unknown)}"
        )
    return {name: _weight(keys, key) for name, key in names.items() if key in keys.names}


def _weight(keys: _Keys, key: str) -> Array:
    """One value as a NumPy array: a matrix transposed to (in, out), or a bias."""
    name = keys.prefix + key
    array = _as_array(name, keys.state[name])
    axes = 1 if key.endswith("bias") else 2
    if array.ndim != axes:
        wanted = "(out,)" if axes == 1 else "(out, in)"
        raise ValueError(
            f"{name}: expected shape {wanted}, got {array.shape}; pass it as torch stores it"
        )
    return array.T


def _as_array(name: str, value: Any) -> Array:
    """``value`` as a NumPy array; of a torch tensor the plain numbers, without its gradient."""
    if hasattr(value, "detach"):
        value = value.detach()
    if str(getattr(value, "dtype", "")) == "torch.bfloat16":  # NumPy reads it by way of float32
        from .storage import bfloat16

        return as_array(name, value.float()).astype(bfloat16())
    try:
        array = as_array(name, value)
        kind_of(name, array)
    except TypeError as error:  # its fix has the name where the code has the value
        text, end, fix = str(error).rpartition("; ")
        value_in_code = f'state["{name}"]'
        raise TypeError(text + end + fix.replace(name, value_in_code)) from error
    return array


def _hint(unknown: list[str]) -> str:
    if not unknown:
        return "add them"
    for key in unknown:
        for last in ("heads.0.W_query.weight", "W_query.weight", "in_proj_weight"):
            if key.endswith("." + last):
                return f"pass prefix={key.removesuffix(last)!r}"
    return "rename or remove what does not belong to the module"


def _listed(names: Iterable[str]) -> str:
    every = list(names)
    text = ", ".join(every[:_LISTED]) or "none"
    return text if len(every) <= _LISTED else f"{text} and {len(every) - _LISTED} more"
