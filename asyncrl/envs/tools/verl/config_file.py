"""Read a tool_config.yaml as verl has it, and the JSON file of MCP servers that it may name."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from asyncrl.envs.tools.mcp.spec import McpServerSpec
from asyncrl.envs.tools.verl.schemas import OpenAIFunctionToolSchema
from asyncrl.errors import ConfigError
from asyncrl.load_config.yaml_reader import read

M = TypeVar("M", bound=BaseModel)
MAX_SHOWN = 8


@dataclass(frozen=True)
class ClassEntry:
    """A class of the user: `place` says where the entry stands, for messages."""

    place: str
    class_name: str
    config: Mapping[str, Any]  # Any: the class's own settings
    schema: OpenAIFunctionToolSchema | None


@dataclass(frozen=True)
class McpEntry:
    """MCP servers of a file."""

    place: str
    servers: tuple[McpServerSpec, ...]


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
    model_config = ConfigDict(extra="allow")  # other clients' settings, such as `disabled`
    command: str | None = None
    args: list[str] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    url: str | None = Field(None, pattern=r"^https?://[^\s/]+")
    auth_token: str | None = None


class _Servers(BaseModel):
    mcpServers: dict[str, _Server] = Field(min_length=1)


def read_tool_config(path: Path) -> list[ClassEntry | McpEntry]:
    """The entries of the file, in its order.

    Raises:
        ConfigError: no such file, no YAML, or an entry is not as it must be: names file, line and field.
    """
    document = read(_text(path, "rollout.tools.config_path"), str(path))
    if document.problems:
        raise _refusal([f"{p.where}{f', {p.key}' if p.key else ''}: {p.text}" for p in document.problems])
    found = _checked(_File, document.value, lambda key: f"{path} line {_line(document.lines, key)}, {key}")
    return [_entry(path, index, entry) for index, entry in enumerate(found.tools)]


def read_servers(path: Path, *, tools: tuple[str, ...]) -> tuple[McpServerSpec, ...]:
    """The servers of a JSON file in the form of most MCP clients: {"mcpServers": {name: {command, args} or {url}}}.

    Raises:
        ConfigError: see read_tool_config.
    """
    text = _text(path, "mcp.mcp_servers_config_path")
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None
    found = _checked(_Servers, value, lambda key: f"{path}, {key}")
    return tuple(_server(path, name, server, tools) for name, server in found.mcpServers.items())


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
    return McpEntry(place, read_servers(found, tools=tuple(entry.mcp.tool_selected_list or ())))


def _server(path: Path, name: str, server: _Server, tools: tuple[str, ...]) -> McpServerSpec:
    if (server.command is None) == (server.url is None):
        raise ConfigError(f"{path}, mcpServers.{name} needs either command or url.")
    command = () if server.command is None else (server.command, *server.args)
    return McpServerSpec(name, command, env=server.env, url=server.url, token=server.auth_token, tools=tools)


def _text(path: Path, key: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{key} = {path} cannot be read: {error.strerror} (looked for from {Path.cwd()}).") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{key} = {path} is not text: {error}.") from None


def _checked(model: type[M], value: object, where: Callable[[str], str]) -> M:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        lines = []
        for found in error.errors(include_url=False, include_context=False):
            key = _dotted(found["loc"])
            text = "is not known here" if found["type"] == "extra_forbidden" else found["msg"]
            lines.append(f"{where(key) if key else where('the file')}: {text}")
        raise _refusal(lines) from None


def _refusal(lines: list[str]) -> ConfigError:
    more = [f"and {len(lines) - MAX_SHOWN} more"] if len(lines) > MAX_SHOWN else []
    return ConfigError("\n  ".join([*lines[:MAX_SHOWN], *more]))


def _dotted(location: tuple[int | str, ...]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _line(lines: Mapping[str, int], key: str) -> int:
    """The line of a key, or of the nearest one around it; list items have none of their own."""
    while key and key not in lines:
        key = key[: max(key.rfind("."), key.rfind("["), 0)]
    return lines.get(key, 1)
