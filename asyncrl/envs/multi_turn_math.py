"""A question with a checkable answer, and another try after a wrong one, up to rollout.max_turns."""

from asyncrl.data.rows import PromptRow
from asyncrl.envs.base import EnvironmentDeps, Message, StepResult

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
