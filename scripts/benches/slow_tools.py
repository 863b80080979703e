"""An environment for benchmarks: one turn, then a tool whose seconds have a heavy tail, as real ones do."""

import os
import random

from asyncrl import waits
from asyncrl.data.rows import PromptRow
from asyncrl.envs import EnvironmentDeps, StepResult
from asyncrl.envs.base import Message

MEDIAN_S = float(os.environ.get("SLOW_TOOLS_MEDIAN_S", "0.15"))
SIGMA = float(os.environ.get("SLOW_TOOLS_SIGMA", "1.2"))
MOST_S = 30.0


class SlowTools:
    """The row's messages; the answer is scored after lognormal seconds. Held-out rows are scored at once."""

    def __init__(self, deps: EnvironmentDeps) -> None:
        self._rewards = deps.rewards

    async def reset(self, row: PromptRow, *, seed: int) -> tuple[Message, ...]:
        """The row's own messages; the seed draws the tool's seconds."""
        self._row = row
        self._tool_s = min(MOST_S, MEDIAN_S * random.Random(seed).lognormvariate(0.0, SIGMA))
        return row.messages

    async def step(self, text: str, finish_reason: str) -> StepResult:
        """Wait for the tool, then the end with the answer's reward."""
        if self._row.extra_info.get("split") == "train":
            await waits.pause("episode waits for a tool", self._tool_s)
        return StepResult(done=True, reward=await self._rewards.score(self._row, text))
