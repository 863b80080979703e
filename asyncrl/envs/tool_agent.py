"""An agent: the row's prompt, the tools of rollout.tools, and as many turns as rollout.max_turns to use them in."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from asyncrl.data.rows import PromptRow
from asyncrl.data.values import Json
from asyncrl.envs.base import EnvironmentDeps, Message, Reward, Stage, StepResult, turn_of
from asyncrl.envs.tools.catalogue import load_tools
from asyncrl.envs.tools.running import ToolRunner, ToolSession
from asyncrl.errors import ConfigError

_CATALOGUE, _RUNNER = "tools", "calls of tools"


class ToolAgent:
    """A turn without a tool call is the answer and is scored; so is the last turn, and one that was cut.

    The prompt shows the tools of the row's column `tools`, or all of rollout.tools if it has none. The score is that of
    the row's data source; a reward function finds in extra_info what verl's finds: num_turns, tool_rewards (of single
    calls, by tool) and rollout_reward_scores (calc_reward's, by tool). rollout.tools.reward_weight adds the latter two.
    """

    def __init__(self, deps: EnvironmentDeps) -> None:
        self._deps, self._max_turns = deps, deps.config.max_turns
        self._session: ToolSession | None = None
        self._enter: Callable[[Stage], None] = lambda stage: None

    def watch(self, enter: Callable[[Stage], None]) -> None:
        """See Staged."""
        self._enter = enter

    @property
    def tools(self) -> tuple[Mapping[str, Json], ...]:
        """The row's own schemas, or those of all tools."""
        return self._row.tools or self._tools.schemas

    async def reset(self, row: PromptRow, *, seed: int) -> tuple[Message, ...]:
        """The row's own messages; the seed draws nothing.

        Raises:
            ConfigError: rollout.tools names no tool, or one that cannot be loaded.
            ValueError: the row shows a tool that rollout.tools does not have, or its tools_kwargs are malformed.
        """
        await self.close()
        self._deps.read_turn("")  # refuses a form that cannot be told, before anything is sampled
        runner = await self._runner()
        if missing := sorted(set(_names(row.tools)) - set(runner.tools)):
            raise ValueError(f"row {row.index} shows the tools {', '.join(missing)}, which rollout.tools does not have")
        self._row, self._turn = row, 0
        self._session = runner.session(row.extra_info, _names(row.tools) or None)
        return row.messages

    async def step(self, text: str, finish_reason: str) -> StepResult:
        """The tools' answers, or the reward."""
        self._turn += 1
        is_last = finish_reason != "stop" or self._turn >= self._max_turns
        calls = () if is_last else self._deps.read_turn(text).calls
        if not calls:
            return StepResult(done=True, reward=await self._score(text))
        self._enter("processing_tools")
        return StepResult(messages=await self._tools.messages(calls, self._turn))

    def snapshot(self) -> Mapping[str, object] | None:
        """The turns that the model has had and what its calls were worth; None once a tool keeps state of its own."""
        tools = self._tools
        if tools.keeps_state:
            return None
        return {"turn": self._turn, "rewards": _copied(tools.rewards), "metrics": _copied(tools.metrics)}

    async def restore(self, row: PromptRow, *, seed: int, state: Mapping[str, object]) -> tuple[Message, ...]:
        """As reset, with these turns and calls behind it."""
        messages = await self.reset(row, seed=seed)
        self._turn = turn_of(state)
        self._tools.rewards.update(_numbers(state, "rewards"))
        self._tools.metrics.update(_numbers(state, "metrics"))
        return messages

    async def close(self) -> None:
        """Release the instances of its tools."""
        if self._session is not None:
            await self._session.close()

    @property
    def _tools(self) -> ToolSession:
        assert self._session is not None  # reset comes first
        return self._session

    async def _runner(self) -> ToolRunner:
        deps = self._deps
        catalogue = await deps.resources.get(_CATALOGUE, lambda: load_tools(deps.config.tools))
        if not catalogue.tools:
            raise ConfigError(
                "rollout.environment = tool_agent needs tools: name some in rollout.tools, or play single_turn."
            )

        async def make() -> ToolRunner:
            return ToolRunner(catalogue.tools, deps.config.tools, deps.counts)

        return await deps.resources.get(_RUNNER, make)

    async def _score(self, text: str) -> Reward:
        of_episode = await self._tools.calc_rewards()
        of_calls = {name: sum(values) for name, values in self._tools.rewards.items()}
        found: dict[str, Json] = {
            "num_turns": self._turn,
            "tool_rewards": {**_copied(self._tools.rewards)},
            "rollout_reward_scores": dict(of_episode),
        }
        row = replace(self._row, extra_info={**self._row.extra_info, **found})
        reward = await self._deps.rewards.score(row, text)
        failed = sorted(name for name, value in of_episode.items() if value is None)
        weight = self._deps.config.tools.reward_weight
        if weight and failed and reward.error is None:
            # Without its part the reward would be another one than that of its siblings.
            return Reward(None, f"tools gave no reward: {', '.join(failed)}")
        worth = {
            name: of_calls.get(name, 0.0) + (of_episode.get(name) or 0.0) for name in sorted({*of_calls, *of_episode})
        }
        parts = {
            **reward.parts,
            **{f"tool/{name}": value for name, value in worth.items() if name not in failed},
            **{f"tool/{name}": fmean(values) for name, values in self._tools.metrics.items()},
        }
        value = None if reward.value is None else reward.value + weight * sum(worth.values())
        return Reward(value, reward.error, parts)


def _names(tools: Sequence[Mapping[str, Json]]) -> list[str]:
    """Names of the tools that schemas are of; some data sets leave the outer {"type": "function"} out."""
    functions = [tool.get("function", tool) for tool in tools]
    return [str(function.get("name")) for function in functions if isinstance(function, Mapping)]


def _copied(numbers: Mapping[str, list[float]]) -> dict[str, list[float]]:
    return {name: list(values) for name, values in numbers.items()}


def _numbers(state: Mapping[str, object], key: str) -> dict[str, list[float]]:
    """Lists of numbers by name, of a snapshot. Raises ValueError: it holds something else."""
    found = state[key]
    if not isinstance(found, Mapping) or not all(isinstance(values, list) for values in found.values()):
        raise ValueError(f"the snapshot's {key} are {found!r}, expected lists of numbers by name")
    return {str(name): [float(value) for value in values] for name, values in found.items()}
