"""Find the environment that `rollout.environment` names: a row of the table, or your own, by file or by module."""

import inspect
from collections.abc import Callable
from typing import cast

from asyncrl.envs import ENVIRONMENTS, Environment, EnvironmentDeps
from asyncrl.envs.user_code import load_named
from asyncrl.errors import ConfigError

KEY = "rollout.environment"


def find_environment(name: str) -> Callable[[EnvironmentDeps], Environment]:
    """What makes an environment.

    Raises:
        ConfigError: the table has no such row, your file or module cannot be loaded, or what it has under that name
            makes no environment.
    """
    if ":" not in name:
        if name in ENVIRONMENTS:
            return ENVIRONMENTS[name]
        raise ConfigError(
            f"{KEY} = {name!r} is not an environment; choose one of {', '.join(ENVIRONMENTS)}, or name your own class "
            "as path/to/file.py:Class or package.module:Class."
        )
    found = load_named(KEY, name)
    _check(name, found)
    return cast("Callable[[EnvironmentDeps], Environment]", found)


def scores_itself(name: str) -> bool | None:
    """Whether the environment asks no reward of the table. None: it is your own, which only serve-rollout loads."""
    return None if ":" in name else bool(getattr(find_environment(name), "scores_itself", False))


def _check(name: str, found: object) -> None:
    """Refuse before anything is generated what would fail with every episode."""
    if not callable(found):
        raise ConfigError(
            f"{KEY} = {name!r} is a {type(found).__name__}, wanted a class (or a function) that is called."
        )
    try:
        inspect.signature(found).bind("deps")
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{KEY} = {name!r} cannot be called with one argument, the EnvironmentDeps: {error}."
        ) from None
    if not isinstance(found, type):
        return  # a function: what it returns is seen when it is called
    for method, wanted, arguments, keywords in (
        ("reset", "(self, row, *, seed)", ("self", "row"), {"seed": 0}),
        ("step", "(self, text, finish_reason)", ("self", "text", "stop"), {}),
    ):
        own = getattr(found, method, None)
        if not inspect.iscoroutinefunction(own):
            what = "has no" if own is None else "must write as async def its"
            raise ConfigError(f"{KEY} = {name!r} {what} method {method}{wanted}; see docs/environments.md.")
        try:
            inspect.signature(own).bind(*arguments, **keywords)
        except TypeError as error:
            raise ConfigError(f"{KEY} = {name!r}: {method} must take {wanted}: {error}.") from None
