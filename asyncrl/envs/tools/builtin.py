"""The tools that come with asyncrl, by the names that `rollout.tools.builtin` has for them."""

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType

from asyncrl.config.tools import ToolsConfig
from asyncrl.envs.tools.base import Tool
from asyncrl.envs.tools.calculator import Calculator
from asyncrl.envs.tools.python.tool import load_python
from asyncrl.errors import ConfigError


async def _python(config: ToolsConfig) -> Tool:
    return await load_python(config.python)


async def _calc(config: ToolsConfig) -> Tool:
    return Calculator()


BUILTIN: Mapping[str, Callable[[ToolsConfig], Awaitable[Tool]]] = MappingProxyType({"calc": _calc, "python": _python})


async def load_builtin(name: str, config: ToolsConfig) -> Tool:
    """The tool of that name.

    Raises:
        ConfigError: there is none.
        PreflightError: it does not work on this machine.
    """
    if name not in BUILTIN:
        raise ConfigError(f"rollout.tools.builtin names {name!r}; there is {', '.join(BUILTIN)}.")
    return await BUILTIN[name](config)
