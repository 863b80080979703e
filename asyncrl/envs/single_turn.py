"""One prompt, one answer, one reward."""

from collections.abc import Mapping

from asyncrl.data.rows import PromptRow
from asyncrl.envs.base import EnvironmentDeps, Message, StepResult


class SingleTurn:
    """The row's messages; the answer is scored by the row's data source, cut or not."""

    def __init__(self, deps: EnvironmentDeps) -> None:
        self._rewards = deps.rewards

    async def reset(self, row: PromptRow, *, seed: int) -> tuple[Message, ...]:
        """The row's own messages; the seed draws nothing."""
        self._row = row
        return row.messages

    async def step(self, text: str, finish_reason: str) -> StepResult:
        """The end, with the answer's reward."""
        return StepResult(done=True, reward=await self._rewards.score(self._row, text))

    def snapshot(self) -> Mapping[str, object]:
        """Nothing: there is no turn after the first."""
        return {}

    async def restore(self, row: PromptRow, *, seed: int, state: Mapping[str, object]) -> tuple[Message, ...]:
        """As reset."""
        return await self.reset(row, seed=seed)
