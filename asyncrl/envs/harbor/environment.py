"""Play Harbor tasks: the model works in a workspace with the tool `bash`, and the task's tests score what it leaves."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from asyncrl import waits
from asyncrl.config import HarborConfig, RolloutConfig
from asyncrl.data.harbor_tasks import BASH_SCHEMA, TASK_KEY, HarborTask, read_task
from asyncrl.data.rows import PromptRow
from asyncrl.data.values import Json
from asyncrl.envs.base import EnvironmentDeps, Message, Stage, StepResult
from asyncrl.envs.harbor.bash import Bash
from asyncrl.envs.harbor.docker import DockerWorkspace, check_program
from asyncrl.envs.harbor.local import LocalWorkspace, check_namespaces
from asyncrl.envs.harbor.verdict import verdict
from asyncrl.envs.harbor.workspace import Workspace
from asyncrl.envs.resources import Resources
from asyncrl.envs.tools.running import ToolRunner, ToolSession
from asyncrl.errors import DataError

WAIT_NAME = "episode waits for a workspace"
_TOOL_GRACE_S = 30.0  # for the workspace to end a command by itself, and say what it wrote


class HarborEnvironment:
    """A turn without a tool call ends the work; so does the last turn, and one that was cut. Then the tests are run.

    An episode cannot be continued by another worker: its workspace is gone with this one.
    """

    scores_itself = True
    answers_with_tools = True
    tools: tuple[Mapping[str, Json], ...] = (BASH_SCHEMA,)

    def __init__(self, deps: EnvironmentDeps) -> None:
        self._deps, self._config = deps, deps.config.harbor
        self._turn = 0
        self._place: Workspaces | None = None
        self._workspace: Workspace | None = None
        self._session: ToolSession | None = None
        self._enter: Callable[[Stage], None] = lambda stage: None

    @classmethod
    async def check(cls, config: RolloutConfig) -> str:
        """For `asyncrl doctor`. Raises WorkspaceError: the runner cannot work on this machine."""
        await CHECKS[config.harbor.runner](config.harbor)
        return f"workspaces of the runner {config.harbor.runner} can be made"

    def watch(self, enter: Callable[[Stage], None]) -> None:
        """See Staged."""
        self._enter = enter

    async def reset(self, row: PromptRow, *, seed: int) -> tuple[Message, ...]:
        """The row's own messages, once the workspace is there; the seed draws nothing.

        Raises:
            DataError: the row names no task, or one that cannot be used here.
            WorkspaceError: no workspace can be made.
        """
        await self.close()
        self._turn, self._task = 0, await waits.in_thread(read_task, directory_of(row))
        places = await self._deps.resources.get("harbor workspaces", lambda: Workspaces.open(self._config))
        await places.enter()
        self._place = places
        self._workspace = WORKSPACES[self._config.runner](self._task, self._config, self._deps.resources)
        await self._workspace.start()
        self._bash = Bash(self._task, self._workspace, self._config.command_timeout_s)
        limits = self._deps.config.tools.model_copy(
            update={"timeout_s": self._config.command_timeout_s + _TOOL_GRACE_S}
        )
        self._session = ToolRunner({Bash.name: self._bash}, limits, self._deps.counts).session({})
        return row.messages

    async def step(self, text: str, finish_reason: str) -> StepResult:
        """What the commands said, or the tests' reward. Raises WorkspaceError: nobody can tell what it was worth."""
        assert self._session is not None
        assert self._workspace is not None
        self._turn += 1
        is_last = finish_reason != "stop" or self._turn >= self._deps.config.max_turns
        calls = () if is_last else self._deps.read_turn(text).calls
        if calls:
            self._enter("processing_tools")
            messages = await self._session.messages(calls, self._turn)
            if self._bash.failure is not None:
                raise self._bash.failure
            return StepResult(messages=messages)
        exit_code_is_reward = self._config.exit_code_is_reward
        reward = await verdict(self._task, self._workspace, exit_code_is_reward=exit_code_is_reward)
        return StepResult(done=True, reward=reward)

    async def close(self) -> None:
        """Remove the workspace, and let another episode have its place."""
        session, self._session = self._session, None
        workspace, self._workspace = self._workspace, None
        place, self._place = self._place, None
        try:
            if session is not None:
                await session.close()
            if workspace is not None:
                await workspace.close()
        finally:
            if place is not None:
                place.leave()


class Workspaces:
    """How many workspaces a worker has at once."""

    def __init__(self, config: HarborConfig) -> None:
        self._config, self._free = config, asyncio.Semaphore(config.workspaces)

    @classmethod
    async def open(cls, config: HarborConfig) -> "Workspaces":
        """Once for a worker. Raises WorkspaceError if the runner cannot work here at all."""
        await CHECKS[config.runner](config)
        return cls(config)

    async def enter(self) -> None:
        """Wait for a place; who has one leaves. Raises TimeoutError after the life of a workspace."""
        most = self._config.workspaces
        with waits.timed(WAIT_NAME, lambda: f"all {most} of rollout.harbor.workspaces are taken"):
            async with asyncio.timeout(self._config.life_s):
                await self._free.acquire()

    def leave(self) -> None:
        """Give the place to the next one."""
        self._free.release()

    async def close(self) -> None:
        """Nothing to give back: workspaces are closed by their episodes."""


def directory_of(row: PromptRow) -> Path:
    """The task's directory. Raises DataError if the row names none."""
    place = row.extra_info.get(TASK_KEY)
    if not isinstance(place, str) or not place:
        raise DataError(
            f"row {row.index} has no extra_info.{TASK_KEY}, the directory of a Harbor task. `asyncrl data prepare "
            "harbor` writes such rows."
        )
    return Path(place)


def _local(task: HarborTask, config: HarborConfig, resources: Resources) -> Workspace:
    return LocalWorkspace(task, skip_run=config.skip_run)


def _docker(task: HarborTask, config: HarborConfig, resources: Resources) -> Workspace:
    return DockerWorkspace(task, config.program, config.life_s, resources)


WORKSPACES: Mapping[str, Callable[[HarborTask, HarborConfig, Resources], Workspace]] = {
    "local": _local,
    "docker": _docker,
}
"""By the name that rollout.harbor.runner has. A new one is a file beside this one and a line here."""
CHECKS: Mapping[str, Callable[[HarborConfig], Awaitable[None]]] = {
    "local": lambda config: check_namespaces(),
    "docker": lambda config: check_program(config.program),
}
"""Whether a runner can work on this machine. They raise WorkspaceError."""
