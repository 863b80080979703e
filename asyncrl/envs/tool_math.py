"""A question and a calculator: the model may call tools, up to rollout.max_turns, and then answers."""

from collections.abc import Mapping

from asyncrl.data.rows import PromptRow
from asyncrl.envs.base import EnvironmentDeps, Message, StepResult, turn_of
from asyncrl.envs.tools.calculator import TOOLS
from asyncrl.envs.tools.calls import run_calls


class ToolMath:
    """A turn without a tool call is the answer and is scored; so is the last turn, and one that was cut.

    The row's own `tools` are what its prompt shows; only those of them that envs/tools has can be called.
    """

    def __init__(self, deps: EnvironmentDeps) -> None:
        self._rewards, self._max_turns = deps.rewards, deps.config.max_turns

    async def reset(self, row: PromptRow, *, seed: int) -> tuple[Message, ...]:
        """The row's own messages; the seed draws nothing."""
        self._row, self._turn = row, 0
        return row.messages

    async def step(self, text: str, finish_reason: str) -> StepResult:
        """The tools' answers, or the reward."""
        self._turn += 1
        calls = run_calls(text, TOOLS) if finish_reason == "stop" and self._turn < self._max_turns else ()
        if not calls:
            return StepResult(done=True, reward=await self._rewards.score(self._row, text))
        return StepResult(messages=tuple(call.message() for call in calls))

    def snapshot(self) -> Mapping[str, object]:
        """The turns that the model has had; the tools keep nothing."""
        return {"turn": self._turn}

    async def restore(self, row: PromptRow, *, seed: int, state: Mapping[str, object]) -> tuple[Message, ...]:
        """As reset, with these turns behind it."""
        messages = await self.reset(row, seed=seed)
        self._turn = turn_of(state)
        return messages
