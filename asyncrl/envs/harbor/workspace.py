"""Where a Harbor task is worked on: a place that runs commands, one for each episode, gone with it."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

WORKDIR, TESTS, VERIFIER_LOGS = "/app", "/tests", "/logs/verifier"
"""Where commands begin unless the task says otherwise; where its tests are put; where they leave the reward."""
MAX_OUTPUT_BYTES = 1 << 20
"""Of one command: what is more is left out in the middle."""
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


class WorkspaceError(Exception):
    """The workspace itself failed: it cannot be made, or is gone. No fault of the agent, so no reward of 0."""


@dataclass(frozen=True)
class Ran:
    """What became of a command.

    Attributes:
        output: what it wrote to both streams, its middle left out if it is too long.
        exit_code: None: it was still running at its deadline, and was killed with all that it started.
    """

    output: str
    exit_code: int | None


class Workspace(Protocol):
    """In envs/harbor/local and docker; held to tests/contract/test_workspaces.py."""

    async def start(self) -> None:
        """Make it, as the task's environment/ says. Raises WorkspaceError."""
        ...

    async def run(self, command: str, timeout_s: float, env: Mapping[str, str], user: str | int | None) -> Ran:
        """Run a line of bash in the working directory; files stay, processes do not. Raises WorkspaceError."""
        ...

    async def put(self, directory: Path | None, place: str) -> None:
        """Have `place`, an absolute path inside, hold a copy of the directory and nothing else; None: nothing at all.

        Raises:
            WorkspaceError: it cannot be copied.
        """
        ...

    async def read(self, place: str, max_bytes: int) -> bytes | None:
        """The beginning of a file; None: there is none, or it is no plain file. Raises WorkspaceError."""
        ...

    async def close(self) -> None:
        """End all of its processes and remove it. Once, also after a start that failed."""
        ...


def resolved(env: Mapping[str, str], where: str) -> dict[str, str]:
    """Values with ${VARIABLE} and ${VARIABLE:-default} filled in from this process's environment.

    Raises:
        WorkspaceError: a variable is not set and has no default. Values are never part of the message.
    """

    def value(match: re.Match[str]) -> str:
        found = os.environ.get(match[1], match[2])
        if found is None:
            raise WorkspaceError(f"{where} needs the variable {match[1]}, which is not set where the worker runs")
        return found

    return {name: _VARIABLE.sub(value, text) for name, text in env.items()}


def shown(output: bytes, left_out: int = 0) -> str:
    """Output as text; `left_out` bytes are missing in its middle."""
    if not left_out:
        return output.decode(errors="replace")
    half = len(output) // 2
    head, tail = output[:half].decode(errors="replace"), output[half:].decode(errors="replace")
    return f"{head}\n[{left_out} bytes left out]\n{tail}"
