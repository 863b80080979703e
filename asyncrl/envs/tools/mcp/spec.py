"""How an MCP server is reached, wherever that was written; its secrets are read and never shown."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from asyncrl.config.tools import McpServerConfig
from asyncrl.errors import ConfigError


@dataclass(frozen=True)
class McpServerSpec:
    """One server. Either command or url is set.

    Attributes:
        command: program and arguments.
        env: what the program's environment has besides PATH, HOME and the like.
        headers: of every request to url.
        tools: names that are offered; empty: all.
        The others are as in McpServerConfig.
    """

    name: str
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    tools: tuple[str, ...] = ()
    sessions: int = 4
    start_timeout_s: float = 30.0
    connect_attempts: int = 4

    @property
    def place(self) -> str:
        """Where it is, for messages: no arguments, which may hold secrets."""
        return self.url or self.command[0]


def spec_of(config: McpServerConfig) -> McpServerSpec:
    """Read what the configuration names.

    Raises:
        ConfigError: an environment variable that it names is not set.
    """
    wanted = [*config.pass_env, *([config.token_env] if config.token_env is not None else [])]
    if missing := [name for name in wanted if name not in os.environ]:
        raise ConfigError(
            f"rollout.tools.mcp_servers, {config.name!r}: the environment variable {', '.join(missing)} is not set. "
            "Set it where serve-rollout runs, or leave it out of pass_env or token_env."
        )
    return McpServerSpec(
        name=config.name,
        command=config.command,
        env={name: os.environ[name] for name in config.pass_env},
        url=config.url,
        headers={} if config.token_env is None else {"Authorization": f"Bearer {os.environ[config.token_env]}"},
        tools=config.tools,
        sessions=config.sessions,
        start_timeout_s=config.start_timeout_s,
        connect_attempts=config.connect_attempts,
    )
