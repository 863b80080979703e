"""A question with a checkable answer, and another try after a wrong one, up to rollout.max_turns."""

from collections.abc import Mapping

from asyncrl.data.rows import PromptRow
from asyncrl.envs.base import EnvironmentDeps, Message, StepResult, turn_of

TRY_AGAIN = "That is not correct. Check your work and answer again."


class MultiTurnMath:
    """Scores each turn; the last turn's reward is the episode's. A right answer, or an answer that was cut, ends it."""

    def __init__(self, deps: EnvironmentDeps) -> None:
        self._rewards, self._max_turns = deps.rewards, deps.config.max_turns

    async def reset(self, row: PromptRow, *, seed: int) -> tuple[Message, ...]:
        """The row's own messages; the seed draws nothing."""
        self._row, self._turn = row, 0
        return row.messages

    async def step(self, text: str, finish_reason: str) -> StepResult:
        """The reward, or the wish for another answer."""
        self._turn += 1
        reward = await self._rewards.score(self._row, text)
        if reward.value is None or reward.value > 0 or finish_reason != "stop" or self._turn >= self._max_turns:
            return StepResult(done=True, reward=reward)
        return StepResult(messages=({"role": "user", "content": TRY_AGAIN},))

    def snapshot(self) -> Mapping[str, object]:
        """The turns that the model has had."""
        return {"turn": self._turn}

    async def restore(self, row: PromptRow, *, seed: int, state: Mapping[str, object]) -> tuple[Message, ...]:
        """As reset, with these turns behind it."""
        messages = await self.reset(row, seed=seed)
        self._turn = turn_of(state)
        return messages
