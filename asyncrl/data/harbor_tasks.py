"""Harbor task directories as they lie on disk: task.toml, instruction.md, environment/, tests/, solution/.

Source of the format: the documentation of Harbor, "Task Structure", schema versions 1.0 to 1.3. What would change a
task's meaning and is not supported here is refused by name, never left out.
"""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from asyncrl.data.values import Json
from asyncrl.errors import DataError

TASK_KEY = "harbor_task"
"""Key of a row's extra_info: the task's directory."""
BASH_SCHEMA: Mapping[str, Json] = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command in the working directory. Files stay from one call to the next; processes and "
        "variables do not.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "One or more lines of bash."}},
            "required": ["command"],
        },
    },
}
"""The one tool that the agent has."""
TASK_FILE, INSTRUCTION, TEST_SCRIPT = "task.toml", "instruction.md", "tests/test.sh"
DOCKERFILE = "environment/Dockerfile"
NOT_SUPPORTED: Mapping[str, str] = {
    "steps": "a task of several steps",
    "environment.healthcheck": "a health check before the agent begins",
    "environment.mcp_servers": "MCP servers beside the agent",
    "environment.gpus": "GPUs",
    "verifier.environment": "a container of its own for the tests",
    "verifier.collect": "commands that collect files for the tests",
}
"""Keys of task.toml that change what a task means, and what they stand for. Zero and nothing are no setting."""
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)B?", re.IGNORECASE)
_MB = {"": 1 / (1 << 20), "K": 1 / (1 << 10), "M": 1.0, "G": float(1 << 10), "T": float(1 << 20)}


class _Table(BaseModel):
    """A table of task.toml; keys that nothing here needs are left alone, as authors may write their own."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class VerifierTable(_Table):
    """How the tests are run. env may hold ${VARIABLE} and ${VARIABLE:-default}."""

    timeout_sec: float = Field(600.0, gt=0)
    env: dict[str, str] = Field(default_factory=dict)
    user: str | int | None = None
    environment_mode: Literal["shared"] = "shared"


class AgentTable(_Table):
    """How long the agent may take, and as whom it works."""

    timeout_sec: float = Field(600.0, gt=0)
    user: str | int | None = None


class EnvironmentTable(_Table):
    """The container. memory and storage are the older keys, as in `2G`."""

    docker_image: str | None = None
    workdir: str | None = Field(None, pattern=r"^/")
    os: Literal["linux"] = "linux"
    build_timeout_sec: float = Field(600.0, gt=0)
    cpus: float | None = Field(None, gt=0)
    memory_mb: float | None = Field(None, gt=0)
    storage_mb: float | None = Field(None, gt=0)
    memory: float | None = None
    storage: float | None = None
    allow_internet: bool = True
    network_mode: Literal["public", "no-network"] | None = None
    env: dict[str, str] = Field(default_factory=dict)

    @field_validator("memory", "storage", mode="before")
    @classmethod
    def sizes_have_units(cls, value: object) -> object:
        """`2G` as MB."""
        if not isinstance(value, str):
            return value
        found = _SIZE.fullmatch(value.strip())
        if found is None:
            raise ValueError(f"{value!r} is no size such as 2G or 512M")
        return float(found[1]) * _MB[found[2].upper()]


class HarborTask(_Table):
    """One task: what the agent is asked, where it works, and what decides whether it is done."""

    directory: Path
    instruction: str
    verifier: VerifierTable = VerifierTable()
    agent: AgentTable = AgentTable()
    environment: EnvironmentTable = EnvironmentTable()

    @property
    def name(self) -> str:
        """That of the directory."""
        return self.directory.name

    @property
    def has_network(self) -> bool:
        """Whether commands may reach other machines."""
        mode = self.environment.network_mode
        return self.environment.allow_internet if mode is None else mode == "public"

    @property
    def memory_mb(self) -> float | None:
        """Memory that the container may take."""
        return self.environment.memory_mb or self.environment.memory

    @property
    def dockerfile(self) -> Path | None:
        """The file that its image is built from, if it has one."""
        path = self.directory / DOCKERFILE
        return path if path.is_file() else None


def read_task(directory: Path) -> HarborTask:
    """One task directory.

    Raises:
        DataError: a file is missing or is not what Harbor writes, or the task needs what is not supported; the message
            names file and key.
    """
    path = directory / TASK_FILE
    try:
        table: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        instruction = (directory / INSTRUCTION).read_text(encoding="utf-8").strip()
    except FileNotFoundError as error:
        raise DataError(f"{directory} is no Harbor task: {error.filename} does not exist.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise DataError(f"{directory}: {TASK_FILE} or {INSTRUCTION} cannot be read: {error}") from None
    if not instruction:
        raise DataError(f"{directory / INSTRUCTION} is empty: there is nothing to ask the agent.")
    if not (directory / TEST_SCRIPT).is_file():
        raise DataError(f"{directory} has no {TEST_SCRIPT}: nothing would decide whether the task is done.")
    _refuse_unsupported(path, table)
    try:
        return HarborTask(directory=directory, instruction=instruction, **_known(path, table))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise DataError(f"{path}: {key} = {first['input']!r}: {first['msg']}.") from None


def task_directories(root: Path) -> list[Path]:
    """The task directories below a directory, in the order of their paths; or itself, if it is one.

    Raises:
        DataError: there is none.
    """
    if not root.is_dir():
        raise DataError(f"{root} is no directory. Name one that holds Harbor tasks.")
    found = sorted(path.parent for path in root.rglob(TASK_FILE))
    if not found:
        raise DataError(f"{root} holds no Harbor task: no {TASK_FILE} in it or below.")
    return found


def _known(path: Path, table: Mapping[str, Any]) -> dict[str, Any]:
    known = {}
    for name in ("verifier", "agent", "environment"):
        value = table.get(name, {})
        if not isinstance(value, dict):
            raise DataError(f"{path}: {name} must be a table ([{name}]), not {value!r}.")
        known[name] = value
    return known


def _refuse_unsupported(path: Path, table: Mapping[str, Any]) -> None:
    for key, meaning in NOT_SUPPORTED.items():
        value: Any = table
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value:
            raise DataError(f"{path}: {key} asks for {meaning}, which is not supported. Leave this task out.")
    if (path.parent / "environment" / "docker-compose.yaml").exists():
        raise DataError(f"{path.parent}: environment/docker-compose.yaml asks for several containers; leave it out.")
