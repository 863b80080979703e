"""Find the environment that `rollout.environment` names: a row of the table, or your own class as module:Class."""

import importlib
from collections.abc import Callable

from asyncrl.envs import ENVIRONMENTS, Environment, EnvironmentDeps
from asyncrl.errors import ConfigError


def find_environment(name: str) -> Callable[[EnvironmentDeps], Environment]:
    """What makes an environment.

    Raises:
        ConfigError: the table has no such row, or the module or its class cannot be imported.
    """
    module, separator, attribute = name.partition(":")
    if not separator:
        if name in ENVIRONMENTS:
            return ENVIRONMENTS[name]
        raise ConfigError(
            f"rollout.environment = {name!r} is not an environment; choose one of {', '.join(ENVIRONMENTS)}, or name "
            "your own class as package.module:Class."
        )
    try:
        found: Callable[[EnvironmentDeps], Environment] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"rollout.environment = {name!r} cannot be imported: {error}. The module must be on the path of "
            "serve-rollout (PYTHONPATH), and the class must take EnvironmentDeps."
        ) from error
    return found
