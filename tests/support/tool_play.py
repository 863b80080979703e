"""Episodes of tool_agent with scripted tools: an answer that begins with 5 is a call of `calc` with its digits."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from asyncrl.config import RolloutConfig, ToolsConfig
from asyncrl.data.rows import PromptRow
from asyncrl.envs.base import EnvironmentDeps, Reward
from asyncrl.envs.rewards.pool import RewardPool
from asyncrl.envs.tool_agent import ToolAgent
from asyncrl.envs.tools.parsers import ParsedTurn, ToolCall
from asyncrl.rollout.episode import EpisodePlayer, EpisodeTask, PromptMemo
from asyncrl.rollout.progress import Progress
from buffer import Trajectory
from tests.support.char_chat import END, CharChat
from tests.support.episode_settings import episode_settings
from tests.support.scripted_play import ScriptedFleet
from tests.support.scripted_tools import ScriptedTool

ROW = PromptRow(0, "test", ({"role": "user", "content": "1234"},), None, {})
CALL, ANSWER = ([15, 16, END], "stop"), ([17, END], "stop")


def read_turn(text: str) -> ParsedTurn:
    """A turn like 56 calls calc with 56."""
    return ParsedTurn("", (ToolCall("calc", {"x": int(text)}),)) if text.startswith("5") else ParsedTurn(text, ())


class FixedRewards(RewardPool):
    """Gives every answer the same reward and keeps the rows."""

    def __init__(self, value: float | None = 1.0) -> None:
        super().__init__(1, 1.0)
        self.value = value
        self.rows: list[PromptRow] = []

    async def score(self, row: PromptRow, text: str) -> Reward:
        self.rows.append(row)
        return Reward(self.value, None if self.value is not None else "died: it")


class ToolPlay:
    """One worker's player of tool_agent, with its parts at hand."""

    def __init__(
        self,
        *script: Any,
        tool: ScriptedTool | None = None,
        rewards: FixedRewards | None = None,
        fleet: Any = None,
        max_turns: int = 3,
        context_length: int = 64,
        read_turn: Callable[[str], ParsedTurn] = read_turn,
        **tools: Any,
    ) -> None:
        self.tool = tool or ScriptedTool()
        self.fleet = fleet or ScriptedFleet(*script)
        self.rewards = rewards or FixedRewards()
        config = RolloutConfig(max_turns=max_turns, tools=ToolsConfig(**{"timeout_s": 5.0, **tools}))
        self.deps = EnvironmentDeps(self.rewards, config, read_turn=read_turn)
        self.player = EpisodePlayer(
            CharChat(),
            self.fleet,
            self.environment,
            episode_settings(max_turns=max_turns, context_length=context_length, max_prompt_tokens=16),
            self.deps.counts,
        )
        self.task = EpisodeTask(ROW, "train", ordinal=3, episode=1, may_start_on=lambda version: True)

    def environment(self) -> ToolAgent:
        """One episode's."""
        return ToolAgent(self.deps)

    async def run(self, progress: Progress | None = None) -> Trajectory:
        """Play to the end, from the beginning or from `progress`."""
        await self.load()
        return await self.player.play(self.task, progress or Progress(), PromptMemo())

    async def load(self) -> None:
        """Put the scripted tool in the place of what rollout.tools names."""
        await self.deps.resources.get("tools", self._catalogue)

    async def _catalogue(self) -> Any:
        async def close() -> None:
            self.tool.check_released()

        tools: Mapping[str, ScriptedTool] = {self.tool.name: self.tool}
        return SimpleNamespace(tools=tools, close=close)
