"""How a configuration's keys replace parts of a row: the key's value or the row's own, names that exist, settings."""

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import partial
from typing import TypeVar

from asyncrl.errors import ConfigError

_Value = TypeVar("_Value")
_Result = TypeVar("_Result")


def first(asked: _Value | None, own: _Value) -> _Value:
    """What the configuration says, or the row's own where it says nothing."""
    return own if asked is None else asked


def known(key: str, value: str, allowed: Iterable[str]) -> None:
    """Refuse a name that is none of `allowed`.

    Raises:
        ConfigError: with the allowed names and the nearest of them.
    """
    names = sorted(allowed)
    if value in names:
        return
    near = get_close_matches(value, names, n=1, cutoff=0.5)
    raise ConfigError(
        f"{key} = {value!r} is not known. Allowed: {', '.join(names)}."
        + (f" Did you mean {near[0]!r}?" if near else "")
    )


def function_of(part: Callable[..., object]) -> Callable[..., object]:
    """The function behind a part of a row, without its settings."""
    return part.func if isinstance(part, partial) else part


def settings_of(part: Callable[..., object]) -> Mapping[str, object]:
    """The settings that a part of a row carries."""
    return part.keywords if isinstance(part, partial) else {}


def with_settings(part: Callable[..., _Result], settings: Mapping[str, object]) -> "partial[_Result]":
    """A part of a row with these settings in place of its own."""
    return partial(part, **settings)
