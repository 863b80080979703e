"""Free-form data at the edge: one plain JSON form of it, the same on every store, or an error naming the field."""

import math
import re
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from buffer.errors import TrajectoryError

MAX_DEPTH = 32

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
            raise TrajectoryError(f"{name} = {whole} does not fit into 64 bits. Store it as a string.")
        return whole
    if isinstance(value, float | np.floating):
        return number(name, value)
    if isinstance(value, str):
        return text(name, value)
    if isinstance(value, np.ndarray):
        return _json_safe(name, value.tolist(), depth)
    if isinstance(value, Mapping):
        return {_key(name, key): _json_safe(f"{name}.{key}", item, depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_safe(f"{name}[{i}]", item, depth - 1) for i, item in enumerate(value)]
    raise TrajectoryError(
        f"{name} is a {type(value).__name__}, which has no form in JSON. Store numbers, strings, lists or maps."
    )


def _key(name: str, key: object) -> str:
    if isinstance(key, int | np.integer) and not isinstance(key, bool):
        return str(int(key))
    return text(f"{name} key", key)


def number(name: str, value: object) -> float:
    """`value` as a finite float. Raises TrajectoryError otherwise."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        raise TrajectoryError(f"{name} = {value!r} is a {type(value).__name__}, expected a number.")
    real = float(value)
    if not math.isfinite(real):
        raise TrajectoryError(f"{name} = {real} is not a finite number.")
    return real


def integer(name: str, value: object) -> int:
    """`value` as an int; numpy's integers are taken, booleans are not. Raises TrajectoryError otherwise."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise TrajectoryError(f"{name} = {value!r} is a {type(value).__name__}, expected an integer.")
    return int(value)


def text(name: str, value: object) -> str:
    """`value` as text that has a UTF-8 form. Raises TrajectoryError for anything but a string."""
    if not isinstance(value, str):
        raise TrajectoryError(f"{name} = {value!r} is a {type(value).__name__}, expected a string.")
    # A lone surrogate (half a character cut off by a tokenizer) has no UTF-8 form and would fail at the far end only.
    return _SURROGATE.sub("\ufffd", value)
