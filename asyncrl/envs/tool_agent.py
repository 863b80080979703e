"""An agent: the row's prompt, the tools of rollout.tools, a user that may answer, and rollout.max_turns turns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from asyncrl.data.rows import PromptRow
from asyncrl.data.values import Json
from asyncrl.envs.base import EnvironmentDeps, Message, Reward, Stage, StepResult, turn_of
from asyncrl.envs.interactions import Talk, load_interactions
from asyncrl.envs.tools.catalogue import shared_tools
from asyncrl.envs.tools.running import ToolRunner, ToolSession
from asyncrl.errors import ConfigError

_RUNNER, _USERS = "calls of tools", "users"


class ToolAgent:
    """A turn without a tool call is an answer: the row's user (rollout.interaction) replies to it, and where there is
    none, or the user ends the conversation, it is scored. So is the last turn, and one that was cut.

    The prompt shows the tools of the row's column `tools`, or all of rollout.tools if it has none. The score is that of
    the row's data source; a reward function finds in extra_info what verl's finds: num_turns, tool_rewards (of single
    calls, by tool), rollout_reward_scores (calc_reward's, by tool) and turn_scores (of the user, in order).
    rollout.tools.reward_weight adds what the tools say.
    """

    answers_with_tools = takes_tools = True

    def __init__(self, deps: EnvironmentDeps) -> None:
        self._deps, self._max_turns = deps, deps.config.max_turns
        self._session: ToolSession | None = None
        self._talk: Talk | None = None
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
            ConfigError: a tool or a user cannot be loaded, or there are none of either.
            ValueError: the row shows a tool or talks with a user that there is not, or its tools_kwargs are malformed.
        """
        await self.close()
        deps = self._deps
        users = await deps.resources.get(_USERS, lambda: load_interactions(deps.config.interaction, deps.counts))
        runner = await self._runner()
        if missing := sorted(set(_names(row.tools)) - set(runner.tools)):
            raise ValueError(f"row {row.index} shows the tools {', '.join(missing)}, which rollout.tools does not have")
        self._row, self._turn = row, 0
        self._talk, self._said, self._turn_scores = users.talk(row), list(row.messages), list[float]()
        if not runner.tools and self._talk is None:
            raise ConfigError(
                "rollout.environment = tool_agent needs tools or users: name some in rollout.tools or "
                "rollout.interaction, or play single_turn."
            )
        self._session = runner.session(row.extra_info, _names(row.tools) or None)
        return row.messages

    async def step(self, text: str, finish_reason: str) -> StepResult:
        """The tools' answers, the user's, or the reward."""
        self._turn += 1
        is_last = finish_reason != "stop" or self._turn >= self._max_turns
        calls = self._deps.read_turn(text).calls if self._tools.schemas and not is_last else ()
        self._said.append({"role": "assistant", "content": text})
        if calls:
            self._enter("processing_tools")
            replies = await self._tools.messages(calls, self._turn)
        else:
            replies = () if is_last else await self._user_replies()
        self._said += replies
        return StepResult(messages=replies) if replies else StepResult(done=True, reward=await self._score(text))

    async def _user_replies(self) -> tuple[Message, ...]:
        """What the user says; nothing if there is none, or the conversation ends here."""
        if self._talk is None:
            return ()
        self._enter("interacting")
        reply = await self._talk.reply(self._said)
        if reply.score is not None:
            self._turn_scores.append(reply.score)
        return () if reply.ends else ({"role": "user", "content": reply.text},)

    def snapshot(self) -> Mapping[str, object] | None:
        """The turns that the model has had and what its calls were worth; None once a tool or a user keeps state."""
        tools = self._tools
        if tools.keeps_state or (self._talk is not None and self._turn > 0):
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
        """Release the instances of its tools, and end the conversation with the user."""
        if self._session is not None:
            try:
                await self._session.close()
            finally:
                if self._talk is not None:
                    await self._talk.close()

    @property
    def _tools(self) -> ToolSession:
        assert self._session is not None  # reset comes first
        return self._session

    async def _runner(self) -> ToolRunner:
        deps = self._deps
        catalogue = await shared_tools(deps.resources, deps.config.tools)

        async def make() -> ToolRunner:
            return ToolRunner(catalogue.tools, deps.config.tools, deps.counts)

        return await deps.resources.get(_RUNNER, make)

    async def _score(self, text: str) -> Reward:
        of_episode = await self._tools.calc_rewards()
        of_calls = {name: sum(values) for name, values in self._tools.rewards.items()}
        found: dict[str, Json] = {
            "num_turns": self._turn,
            "tool_rewards": {name: list[Json](values) for name, values in self._tools.rewards.items()},
            "rollout_reward_scores": dict(of_episode),
            "turn_scores": list[Json](self._turn_scores),
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
        return replace(reward, value=value, parts=parts)


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
