"""Sections rollout.harbor and rollout.verifiers: environments that come from elsewhere."""

import json
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from asyncrl.config.section import Section


class HarborConfig(Section):
    """Where the tasks of `rollout.environment: harbor` are worked on. Rows: `asyncrl data prepare harbor`."""

    runner: Literal["docker", "local"] = "docker"
    """`docker`: a container of the task's image for each episode. `local`: namespaces of this machine with its own
    programs, for development and for tasks that need no others; without a network."""

    program: str = "docker"
    """Command line of the containers: docker, or what is called like it (podman)."""

    skip_run: bool = False
    """Have the runner `local` leave out the RUN lines of a Dockerfile, which install what this machine may have. False
    refuses such a task."""

    command_timeout_s: float = Field(60.0, gt=0)
    """Seconds one command of the agent may take; then it is killed, and the agent is told."""

    workspaces: int = Field(16, ge=1)
    """Workspaces of one worker at once; further episodes wait for one."""

    life_s: float = Field(7200.0, gt=0)
    """Seconds after which a container ends by itself, whatever has become of its worker."""

    exit_code_is_reward: bool = False
    """Score tests that write no reward file by their exit code: 1 for 0, else 0. False: such an episode has no reward,
    and is masked and counted."""


class VerifiersConfig(Section):
    """The environment of the library verifiers that `rollout.environment: verifiers` plays. Rows:
    `asyncrl data prepare verifiers`."""

    environment: str | None = None
    """Its id, as for load_environment: a package that is installed beside verifiers."""

    args: str = "{}"
    """Arguments of its load_environment, as a JSON object."""

    python: Path | None = None
    """Python that has verifiers (0.1.11 to 0.3) and the environment: their dependencies need not fit ours. None: this
    one."""

    start_timeout_s: float = Field(300.0, gt=0)
    """Seconds to import and load the environment, its data set included."""

    turn_timeout_s: float = Field(300.0, gt=0)
    """Seconds it may take to answer a turn, or to score an episode."""

    @field_validator("args")
    @classmethod
    def args_are_an_object(cls, args: str) -> str:
        """Refuse what is no JSON object."""
        try:
            is_object = isinstance(json.loads(args), dict)
        except ValueError as error:
            raise ValueError(f"rollout.verifiers.args = {args!r} is not JSON: {error}") from None
        if not is_object:
            raise ValueError(f'rollout.verifiers.args = {args!r} must be a JSON object, such as {{"split": "train"}}')
        return args
