"""The tool `bash` of one episode: a command in its workspace."""

from collections.abc import Mapping

from asyncrl.data.harbor_tasks import BASH_SCHEMA, HarborTask
from asyncrl.data.values import Json, kind
from asyncrl.envs.harbor.workspace import Workspace, WorkspaceError, resolved
from asyncrl.envs.tools.base import ToolAnswer, ToolError

MAX_COMMAND_BYTES = 100_000  # the kernel takes 131,071 bytes as one argument of a program


class Bash:
    """It belongs to one episode, whose environment makes and closes the workspace; there are no further instances.

    Attributes:
        failure: how the workspace failed, once it has: the episode is no more the agent's.
    """

    name = "bash"
    keeps_state = True
    schema: Mapping[str, Json] = BASH_SCHEMA

    def __init__(self, task: HarborTask, workspace: Workspace, timeout_s: float) -> None:
        """timeout_s: seconds that one command may take."""
        self._task, self._workspace, self._timeout_s = task, workspace, timeout_s
        self.failure: WorkspaceError | None = None

    async def create(self, instance_id: str, **kwargs: Json) -> None:
        """The workspace is there already."""

    async def execute(self, instance_id: str, arguments: Mapping[str, Json]) -> ToolAnswer:
        """The command's output, and its exit code unless that is 0."""
        command = arguments.get("command")
        if not isinstance(command, str):
            raise ToolError(f"command is {kind(command)}, wanted a string")
        if "\0" in command or len(command.encode(errors="replace")) > MAX_COMMAND_BYTES:
            raise ToolError(
                f"a command has no NUL character and at most {MAX_COMMAND_BYTES} bytes; write a file instead"
            )
        try:
            env = resolved(self._task.environment.env, f"{self._task.directory}: environment.env")
            ran = await self._workspace.run(command, self._timeout_s, env, self._task.agent.user)
        except WorkspaceError as error:
            self.failure = error
            raise
        if ran.exit_code is None:
            return ToolAnswer(f"{ran.output}\n[killed: it was not over after {self._timeout_s:g} s]", is_error=True)
        return ToolAnswer(ran.output if ran.exit_code == 0 else f"{ran.output}\n[exit code {ran.exit_code}]")

    async def calc_reward(self, instance_id: str) -> float | None:
        """The task's tests say what the work is worth."""
        return None

    async def release(self, instance_id: str) -> None:
        """The environment closes the workspace."""
