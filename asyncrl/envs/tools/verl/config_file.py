"""Read a tool_config.yaml as verl has it, and the JSON file of MCP servers that it may name."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from asyncrl.envs.checked_files import checked, read_yaml, text_of
from asyncrl.envs.tools.mcp.spec import McpServerSpec
from asyncrl.envs.tools.verl.schemas import OpenAIFunctionToolSchema
from asyncrl.errors import ConfigError


@dataclass(frozen=True)
class ClassEntry:
    """A class of the user: `place` says where the entry stands, for messages."""

    place: str
    class_name: str
    config: Mapping[str, Any]  # Any: the class's own settings
    schema: OpenAIFunctionToolSchema | None


@dataclass(frozen=True)
class McpEntry:
    """MCP servers of a file. `unread` are keys of its config that have no effect here."""

    place: str
    servers: tuple[McpServerSpec, ...]
    unread: tuple[str, ...] = ()


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _McpPart(_Closed):
    mcp_servers_config_path: str
    tool_selected_list: list[str] | None = None


class _EntryConfig(BaseModel):
    model_config = ConfigDict(extra="allow")
    type: Literal["native", "mcp"]


class _Entry(_Closed):
    class_name: str = Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$")
    config: _EntryConfig
    tool_schema: OpenAIFunctionToolSchema | None = None
    mcp: _McpPart | None = None


class _File(_Closed):
    tools: list[_Entry] = Field(min_length=1)


class _Server(BaseModel):
    model_config = ConfigDict(extra="allow")  # what other clients write for themselves
    command: str | None = None
    args: list[str] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    url: str | None = Field(None, pattern=r"^https?://[^\s/]+")
    auth_token: str | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    transport: Literal["stdio", "http", "streamable-http", "streamable_http"] | None = None
    disabled: bool = False


class _Servers(BaseModel):
    mcpServers: dict[str, _Server] = Field(min_length=1)


def read_tool_config(path: Path) -> list[ClassEntry | McpEntry]:
    """The entries of the file, in its order.

    Raises:
        ConfigError: no such file, no YAML, or an entry is not as it must be: names file, line and field.
    """
    found = read_yaml(path, "rollout.tools.config_path", _File)
    return [_entry(path, index, entry) for index, entry in enumerate(found.tools)]


def read_servers(path: Path, *, tools: tuple[str, ...]) -> tuple[McpServerSpec, ...]:
    """The servers of a JSON file in the form of most MCP clients: {"mcpServers": {name: {command, args} or {url}}}.

    Raises:
        ConfigError: see read_tool_config.
    """
    text = text_of(path, "mcp.mcp_servers_config_path")
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None
    found = checked(_Servers, value, lambda key: f"{path}, {key}")
    servers = found.mcpServers.items()
    return tuple(_server(path, name, server, tools) for name, server in servers if not server.disabled)


def _entry(path: Path, index: int, entry: _Entry) -> ClassEntry | McpEntry:
    place = f"{path}, tools[{index}]"
    if entry.config.type == "native":
        if entry.mcp is not None:
            raise ConfigError(f"{place}.mcp goes with config.type = mcp, and it is native. Remove one of them.")
        return ClassEntry(place, entry.class_name, entry.config.model_dump(), entry.tool_schema)
    if entry.mcp is None:
        raise ConfigError(f"{place}.mcp is missing: with config.type = mcp it says mcp_servers_config_path.")
    if not entry.class_name.startswith("verl.tools.mcp_"):
        raise ConfigError(
            f"{place}.class_name = {entry.class_name}: MCP tools of a class of your own are not known here. Name "
            "verl.tools.mcp_base_tool.MCPBaseTool for the tools as the server has them."
        )
    servers = Path(entry.mcp.mcp_servers_config_path)
    beside = path.parent / servers
    found = beside if not servers.is_file() and beside.is_file() else servers
    chosen = tuple(entry.mcp.tool_selected_list or ())
    return McpEntry(place, read_servers(found, tools=chosen), tuple(entry.config.model_extra or ()))


def _server(path: Path, name: str, server: _Server, tools: tuple[str, ...]) -> McpServerSpec:
    if (server.command is None) == (server.url is None):
        raise ConfigError(f"{path}, mcpServers.{name} needs either command or url.")
    command = () if server.command is None else (server.command, *server.args)
    token = {"Authorization": f"Bearer {server.auth_token}"} if server.auth_token is not None else {}
    return McpServerSpec(
        name, command, env=server.env, url=server.url, headers={**server.headers, **token}, tools=tools
    )
