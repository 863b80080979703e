"""Play an environment of verifiers: its data set, its multi-turn logic and its rubric, with our tokens."""

import json
import math
import uuid
from collections.abc import Awaitable, Mapping

from asyncrl.config import RolloutConfig
from asyncrl.data.converters.verifiers import ROW_KEY
from asyncrl.data.rows import PromptRow
from asyncrl.data.values import Json, kind
from asyncrl.envs.base import EnvironmentDeps, Message, StepResult
from asyncrl.envs.rewards.result import Reward
from asyncrl.envs.tools.calls import call_id
from asyncrl.envs.tools.parsers import ToolCall
from asyncrl.envs.verifiers.process import BridgeError, Reply, VerifiersProcess
from asyncrl.errors import DataError


class VerifiersEnvironment:
    """The environment's own rollout, in the other process, is asked for each next prompt and told the model's turn.

    The conversation may only grow: tokens that were sampled cannot be taken back, so a prompt that changes what was
    said before fails the episode. Another worker starts an episode over: nobody can look into a foreign state.
    """

    scores_itself = True

    def __init__(self, deps: EnvironmentDeps) -> None:
        self._deps = deps
        self._episode = ""
        self._process: VerifiersProcess | None = None
        self._said: list[Json] = []
        self._names: dict[str, str] = {}
        self._turn = 0
        self.tools: tuple[Mapping[str, Json], ...] = ()

    @classmethod
    async def check(cls, config: RolloutConfig) -> str:
        """For `asyncrl doctor`. Raises ConfigError: the environment cannot be loaded."""
        process = await VerifiersProcess.start(config.verifiers, config.max_turns)
        await process.close()
        return f"{config.verifiers.environment} is loaded by {config.verifiers.python or 'this Python'}"

    async def reset(self, row: PromptRow, *, seed: int) -> tuple[Message, ...]:
        """The prompt of its first turn.

        Raises:
            ConfigError: there is no such environment.
            DataError: the row is none of its data set.
            BridgeError: it failed before it asked for anything.
        """
        await self.close()
        self._turn, self._names, self._episode = 0, {}, uuid.uuid4().hex
        config, max_turns = self._deps.config.verifiers, self._deps.config.max_turns
        process = await self._deps.resources.get("verifiers", lambda: VerifiersProcess.start(config, max_turns))
        self._process = process
        reply = await self._asked(process.begin(self._episode, _row_of(row)))
        if reply["op"] != "prompt":
            raise BridgeError(f"the rollout ended before the model's first turn: {reply.get('error') or reply}")
        self._said, tools = list(_messages(reply)), reply.get("tools")
        self.tools = tuple(tool for tool in tools if isinstance(tool, dict)) if isinstance(tools, list) else ()
        return tuple(_messages(reply))

    async def step(self, text: str, finish_reason: str) -> StepResult:
        """What it says next, or the reward of its rubric."""
        assert self._process is not None
        self._turn += 1
        calls: list[Json] = []
        content = text
        if self.tools and finish_reason == "stop":
            turn = self._deps.read_turn(text)
            calls = self._calls([call for call in turn.calls if isinstance(call, ToolCall)])
            content = turn.text if len(calls) == len(turn.calls) else text
        answer = self._process.send(
            "answer", episode=self._episode, content=content, tool_calls=calls, finish_reason=finish_reason
        )
        reply = await self._asked(answer)
        if reply["op"] == "end":
            return StepResult(done=True, reward=_reward(reply))
        return StepResult(messages=tuple(self._added(_messages(reply))))

    async def close(self) -> None:
        """Have the rollout cancelled, if it still goes on."""
        process, self._process = self._process, None
        if process is not None:
            await process.cancel(self._episode)

    async def _asked(self, request: Awaitable[None]) -> Reply:
        """What it replies to a request. A process that is gone is left to be started anew for the next episode."""
        assert self._process is not None
        try:
            await request
            return await self._process.next(self._episode)
        except BridgeError:
            if self._process.ended is not None:
                await self._deps.resources.drop("verifiers", self._process)
            raise

    def _calls(self, calls: list[ToolCall]) -> list[Json]:
        found: list[Json] = []
        for number, call in enumerate(calls):
            named = call_id(self._turn, number)
            self._names[named] = call.name
            found.append({"id": named, "name": call.name, "arguments": json.dumps(call.arguments)})
        return found

    def _added(self, messages: list[dict[str, Json]]) -> list[Message]:
        """What follows the model's turn."""
        before = len(self._said)
        is_longer = len(messages) > before + 1 and messages[before].get("role") == "assistant"
        if not is_longer or messages[:before] != self._said:
            raise BridgeError(
                f"the environment changed the conversation of {before} messages instead of going on with it; such "
                "episodes have no single row of tokens"
            )
        self._said = list(messages)
        return [self._with_name(message) for message in messages[before + 1 :]]

    def _with_name(self, message: dict[str, Json]) -> Message:
        name = self._names.get(str(message.get("tool_call_id")))
        return message if name is None else {**message, "name": name}


def _row_of(row: PromptRow) -> Mapping[str, Json]:
    text = row.extra_info.get(ROW_KEY)
    try:
        value = json.loads(text) if isinstance(text, str) else None
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise DataError(
            f"row {row.index} has no extra_info.{ROW_KEY} with an object as JSON, but {kind(text)}. `asyncrl data "
            "prepare verifiers` writes such rows."
        )
    return value


def _messages(reply: Reply) -> list[dict[str, Json]]:
    messages = reply["messages"]
    assert isinstance(messages, list)  # the bridge is ours
    return [message for message in messages if isinstance(message, dict)]


def _reward(reply: Reply) -> Reward:
    value, metrics = reply.get("reward"), reply.get("metrics")
    if not isinstance(value, int | float) or not math.isfinite(value):
        return Reward(None, f"verifiers: {reply.get('error') or f'a reward of {value}'}")
    numbers = metrics if isinstance(metrics, dict) else {}
    return Reward(float(value), None, {name: float(x) for name, x in numbers.items() if isinstance(x, int | float)})
