"""Free-form data at the edge: one plain JSON form of it, the same on every store, or an error naming the field."""

import math
import re
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from buffer.errors import TrajectoryError

MAX_DEPTH = 32

_EMPTY: Mapping[str, object] = MappingProxyType({})
_LONGEST = 80
_SURROGATE = re.compile("[\ud800-\udfff]")


def json_safe_map(name: str, value: Mapping[str, object]) -> Mapping[str, object]:
    """`value` as plain JSON data: the same form on every store, whatever was put in.

    numpy scalars and arrays become numbers and lists, tuples become lists, keys of integers become strings, lone
    surrogates become U+FFFD.
    Raises:
        TrajectoryError: naming the path of what has no such form (NaN, integers beyond 64 bits, bytes, objects, deep
        nesting).
    """
    if not isinstance(value, Mapping):
        raise TrajectoryError(f"{name} must be a mapping, not {type(value).__name__}.")
    if not value:
        return _EMPTY
    safe = _json_safe(name, value, MAX_DEPTH)
    assert isinstance(safe, dict)
    return MappingProxyType(safe)


def _json_safe(name: str, value: object, depth: int) -> object:
    if depth == 0:
        raise TrajectoryError(f"{name} is nested deeper than {MAX_DEPTH} levels.")
    if value is None or isinstance(value, bool | np.bool_):
        return None if value is None else bool(value)
    if isinstance(value, int | np.integer):
        whole = int(value)
        if not -(1 << 63) <= whole < 1 << 64:
            raise TrajectoryError(f"{name} = {shown(whole)} does not fit into 64 bits. Store it as a string.")
        return whole
    if isinstance(value, float | np.floating):
        return number(name, value)
    if isinstance(value, str):
        return text(name, value)
    if isinstance(value, np.ndarray):
        return _json_safe(name, value.tolist(), depth)
    if isinstance(value, Mapping):
        safe: dict[str, object] = {}
        for key, item in value.items():
            plain = _key(name, key)
            if plain in safe:
                raise TrajectoryError(f"{name} has two keys that are both written {shown(plain)}: one would be lost.")
            safe[plain] = _json_safe(f"{name}.{short(plain)}", item, depth - 1)
        return safe
    if isinstance(value, list | tuple):
        return [_json_safe(f"{name}[{i}]", item, depth - 1) for i, item in enumerate(value)]
    raise TrajectoryError(
        f"{name} is a {type(value).__name__}, which has no form in JSON. Store numbers, strings, lists or maps."
    )


def shown(value: object) -> str:
    """`value` for a message: what was found may be as large as whoever wrote it liked."""
    if isinstance(value, str | bytes):
        return repr(value) if len(value) <= _LONGEST else f"{value[:_LONGEST]!r}..."
    if isinstance(value, bool | np.bool_ | float | np.floating) or value is None:
        return repr(value)
    if isinstance(value, int | np.integer):
        whole = int(value)
        return str(whole) if whole.bit_length() <= 256 else f"an integer of {whole.bit_length()} bits"
    if isinstance(value, list | tuple) and len(value) <= 8 and all(isinstance(item, int | str) for item in value):
        return f"[{', '.join(map(shown, value))}]"
    return f"a {type(value).__name__}"


def short(name: str) -> str:
    """A name of somebody else's choice, for the path of a field in a message."""
    return name if len(name) <= _LONGEST else f"{name[:_LONGEST]}..."


def _key(name: str, key: object) -> str:
    if isinstance(key, int | np.integer) and not isinstance(key, bool):
        return str(int(key))
    return text(f"{name} key", key)


def number(name: str, value: object) -> float:
    """`value` as a finite float. Raises TrajectoryError otherwise."""
    if type(value) is float and math.isfinite(value):
        return value
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        raise TrajectoryError(f"{name} = {shown(value)} is a {type(value).__name__}, expected a number.")
    if isinstance(value, int) and value.bit_length() > 1000:
        raise TrajectoryError(f"{name} = {shown(value)} is too large for a number.")
    real = float(value)
    if not math.isfinite(real):
        raise TrajectoryError(f"{name} = {real} is not a finite number.")
    return real


def integer(name: str, value: object) -> int:
    """`value` as an int; numpy's integers are taken, booleans are not. Raises TrajectoryError otherwise."""
    if type(value) is int:
        return value
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise TrajectoryError(f"{name} = {shown(value)} is a {type(value).__name__}, expected an integer.")
    return int(value)


def text(name: str, value: object) -> str:
    """`value` as text that has a UTF-8 form. Raises TrajectoryError for anything but a string."""
    if not isinstance(value, str):
        raise TrajectoryError(f"{name} = {shown(value)} is a {type(value).__name__}, expected a string.")
    if value.isascii():
        return value
    # A lone surrogate (half a character cut off by a tokenizer) has no UTF-8 form and would fail at the far end only.
    return _SURROGATE.sub("\ufffd", value)
