"""Section rollout.tools: the tools that a model may call, and the limits of calling them."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from asyncrl.config.section import Section


class McpServerConfig(Section):
    """One MCP server: its tools are offered to the model under their own names."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")
    """Name in messages and logs."""

    command: tuple[str, ...] = ()
    """Program with its arguments that is started and spoken to over its standard streams. Empty: see url."""

    pass_env: tuple[str, ...] = ()
    """Environment variables that the started program gets besides PATH, HOME, USER and the like."""

    url: str | None = Field(None, pattern=r"^https?://[^\s/]+")
    """Address of a server that speaks streamable HTTP. None: see command."""

    token_env: str | None = None
    """Environment variable that holds the bearer token for url."""

    tools: tuple[str, ...] = ()
    """The server's tools that are offered. Empty: all."""

    sessions: int = Field(4, ge=1)
    """Sessions that one worker has with it at once, each with one call at a time; with `command`, each is a process.
    Further calls wait."""

    start_timeout_s: float = Field(30.0, gt=0)
    """Seconds the program or the server may take to its first answer."""

    connect_attempts: int = Field(4, ge=1)
    """Times in a row that one call tries to open a session, with pauses that double. After the last failure calls are
    answered with an error at once, until a pause of up to a minute is over."""

    @model_validator(mode="after")
    def one_way_to_reach_it(self) -> Self:
        """Refuse a server that is nowhere, or in two places, and settings of the other place."""
        if bool(self.command) == (self.url is not None):
            raise ValueError(
                f"MCP server {self.name!r} needs either command (a program to start) or url (a server that runs), and "
                "not both."
            )
        if self.command and self.token_env is not None:
            raise ValueError(
                f"MCP server {self.name!r}: token_env goes with url. A started program gets variables by pass_env."
            )
        if self.url is not None and self.pass_env:
            raise ValueError(
                f"MCP server {self.name!r}: pass_env goes with command. A server at a url gets a token by token_env."
            )
        return self


class PythonToolConfig(Section):
    """The built-in tool `python`: code of the model, in processes of their own with limits."""

    keep_state: bool = False
    """Keep variables, imports and files from one call of an episode to its next, like a notebook. An episode with such
    a session starts over when another worker takes it on."""

    isolation: Literal["best", "required"] = "best"
    """`best`: namespaces that hide the network, the files and the processes of the machine, where the kernel permits
    them; where it does not, only the limits below hold, and start-up says so. `required`: refuse to start then."""

    timeout_s: float = Field(20.0, gt=0)
    """Seconds one call may take, waiting for a free process not counted. Then all its processes are killed."""

    cpu_s: int = Field(20, ge=1)
    """Processor seconds of one process of the code: of a call, or of all calls of a kept session."""

    memory_bytes: int = Field(512 << 20, ge=64 << 20)
    """Address space of one process of the code, and the most that its files may take together."""

    file_bytes: int = Field(16 << 20, ge=0)
    """Largest file that the code may write."""

    processes: int = Field(8, ge=1)
    """Processes and threads that the code may have at once."""

    max_output_bytes: int = Field(64 << 10, ge=256)
    """Output of a call that is kept: its beginning and its end. What the model is shown of it: max_result_chars."""

    max_running: int = Field(4, ge=1)
    """Calls that one worker runs at the same time; further ones wait."""


class ToolsConfig(Section):
    """Which tools there are, how calls are read from a model's turns, and what they may cost."""

    builtin: tuple[str, ...] = ()
    """Tools that come with asyncrl: rows of asyncrl.envs.tools.builtin.BUILTIN, such as python."""

    functions: tuple[str, ...] = ()
    """Python functions with type hints and docstrings, as path/to/file.py:name or package.module:name."""

    function_threads: int = Field(8, ge=1)
    """Threads of one worker for functions that are not async. One that passes its deadline keeps its thread."""

    config_path: Path | None = None
    """A tool_config.yaml as verl reads it: classes with create, execute, calc_reward and release, and MCP servers."""

    mcp_servers: tuple[McpServerConfig, ...] = ()
    """MCP servers whose tools are offered. Needs the extra asyncrl[mcp]."""

    python: PythonToolConfig = PythonToolConfig()
    """Limits of the built-in tool `python`."""

    parser: Literal["auto", "hermes", "qwen", "qwen3_coder", "llama3_json", "mistral", "pythonic", "harmony"] = "auto"
    """The form in which the model writes calls. `auto`: what its chat template shows, refused where that is unclear."""

    max_calls_per_turn: int = Field(16, ge=1)
    """Calls of one turn that are run; the model is told that the others were not."""

    max_parallel: int = Field(8, ge=1)
    """Calls of one turn that run at the same time."""

    timeout_s: float = Field(30.0, gt=0)
    """Seconds one call may take. Later it is cancelled, and the model is told so."""

    max_result_chars: int = Field(4096, ge=64)
    """Longest result of a call that the model is shown, in characters."""

    truncate_result: Literal["left", "middle", "right"] = "middle"
    """What is cut out of a longer result: its beginning, its middle or its end. The model is told how much."""

    reward_weight: float = Field(0.0, ge=0)
    """In the environment tool_agent: how much of what the tools say that calls and episodes are worth is added to the
    score. 0: they are shown beside it (reward parts tool/<name>), and reward functions find them in extra_info."""
