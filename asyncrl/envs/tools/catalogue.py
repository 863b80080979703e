"""All tools of a configuration, by name: loaded together, checked, and closed together."""

import importlib.util
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

from asyncrl.config.tools import ToolsConfig
from asyncrl.envs.resources import Resources
from asyncrl.envs.tools.base import Tool
from asyncrl.envs.tools.builtin import load_builtin
from asyncrl.envs.tools.functions import load_function
from asyncrl.envs.tools.mcp.spec import McpServerSpec, spec_of
from asyncrl.envs.tools.threads import CallThreads
from asyncrl.envs.tools.verl.agent_data import AgentDataTable
from asyncrl.envs.tools.verl.config_file import ClassEntry, read_tool_config
from asyncrl.envs.tools.verl.tool import load_class
from asyncrl.errors import ConfigError

log = logging.getLogger(__name__)

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")  # what OpenAI's form allows, and parsers of calls expect


@dataclass(frozen=True)
class Listed:
    """A tool, which kind it is, and where it comes from, in words."""

    tool: Tool
    kind: str
    source: str


Load = Callable[[ToolsConfig, AsyncExitStack], Awaitable[Sequence[Listed]]]
"""Loads the tools of one kind, and leaves with the stack what is to be closed."""


class Catalogue:
    """The tools of a worker. Close it once all episodes have released their instances."""

    def __init__(self, listed: Sequence[Listed], stack: AsyncExitStack) -> None:
        self.listed = tuple(listed)
        self.tools: Mapping[str, Tool] = MappingProxyType({entry.tool.name: entry.tool for entry in listed})
        self._stack = stack

    async def close(self) -> None:
        """End all processes and sessions of the tools. Later calls do nothing."""
        await self._stack.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def load_tools(config: ToolsConfig) -> Catalogue:
    """Load what the section names, in the order of KINDS.

    Raises:
        ConfigError: a tool cannot be loaded, two have one name, or a name or schema is none that a model can be shown.
        PreflightError: an MCP server cannot be reached, or this machine cannot run a tool.
    """
    async with AsyncExitStack() as stack:
        listed: list[Listed] = []
        for load in KINDS.values():
            listed += await load(config, stack)
        _check(listed)
        if listed:
            log.info("tools: %s", ", ".join(f"{entry.tool.name} ({entry.kind})" for entry in listed))
        return Catalogue(listed, stack.pop_all())


async def shared_tools(resources: Resources, config: ToolsConfig) -> Catalogue:
    """The tools of this worker, loaded by the first who asks and closed with the worker. Raises: see load_tools."""
    return await resources.get("tools", lambda: load_tools(config))


async def _builtin(config: ToolsConfig, stack: AsyncExitStack) -> list[Listed]:
    listed = []
    for name in config.builtin:
        tool = await load_builtin(name, config)
        if (close := getattr(tool, "close", None)) is not None:
            stack.push_async_callback(close)
        listed.append(Listed(tool, "builtin", "asyncrl"))
    return listed


async def _functions(config: ToolsConfig, stack: AsyncExitStack) -> list[Listed]:
    threads = CallThreads(config.function_threads)
    return [Listed(load_function(reference, threads), "function", reference) for reference in config.functions]


async def _verl(config: ToolsConfig, stack: AsyncExitStack) -> list[Listed]:
    if config.config_path is None:
        return []
    listed: list[Listed] = []
    table = AgentDataTable()
    for entry in read_tool_config(config.config_path):
        if isinstance(entry, ClassEntry):
            tool = load_class(entry, table, config.config_path.resolve().parent)
            listed.append(Listed(tool, "verl", f"{entry.class_name} ({entry.place})"))
        else:
            if entry.unread:
                log.warning("%s: config.%s has no effect here; see docs/tools.md", entry.place, ", ".join(entry.unread))
            for server in entry.servers:
                listed += await _of_server(server, stack)
    return listed


async def _mcp(config: ToolsConfig, stack: AsyncExitStack) -> list[Listed]:
    return [entry for server in config.mcp_servers for entry in await _of_server(spec_of(server), stack)]


async def _of_server(spec: McpServerSpec, stack: AsyncExitStack) -> list[Listed]:
    if importlib.util.find_spec("mcp") is None:
        raise ConfigError(f"MCP server {spec.name!r} needs the SDK of MCP: pip install 'asyncrl[mcp]'")
    from asyncrl.envs.tools.mcp.tool import load_server

    pool, tools = await load_server(spec)
    stack.push_async_callback(pool.close)
    return [Listed(tool, "mcp", f"{spec.name} ({spec.place})") for tool in tools]


KINDS: Mapping[str, Load] = MappingProxyType({"builtin": _builtin, "function": _functions, "verl": _verl, "mcp": _mcp})
"""Kind -> what loads its tools. A new kind is a file or folder beside this one, and a row."""


def _check(listed: Sequence[Listed]) -> None:
    first: dict[str, Listed] = {}
    for entry in listed:
        name, function = entry.tool.name, entry.tool.schema.get("function")
        if not NAME.match(name):
            raise ConfigError(
                f"the tool {name!r} of {entry.source} has a name that no model could be sure to call: wanted 1 to 64 "
                "letters, digits, _ and -."
            )
        if not isinstance(function, dict) or function.get("name") != name:
            raise ConfigError(f"the tool {name!r} of {entry.source} has a schema of another name, or of another form.")
        if name in first:
            raise ConfigError(
                f"two tools are named {name}: that of {first[name].source} and that of {entry.source}. Rename one, or "
                "leave one out."
            )
        first[name] = entry
