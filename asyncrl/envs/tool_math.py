"""A question and a calculator: the model may call tools, up to rollout.max_turns, and then answers."""

from collections.abc import Callable, Mapping

from asyncrl.data.rows import PromptRow
from asyncrl.envs.base import EnvironmentDeps, Message, Stage, StepResult, turn_of
from asyncrl.envs.tools.calculator import Calculator
from asyncrl.envs.tools.running import ToolRunner


class ToolMath:
    """A turn without a tool call is the answer and is scored; so is the last turn, and one that was cut.

    The row's own `tools` are what its prompt shows; only the calculator, `calc`, can be called.
    """

    answers_with_tools = True

    def __init__(self, deps: EnvironmentDeps) -> None:
        self._rewards, self._max_turns, self._read_turn = deps.rewards, deps.config.max_turns, deps.read_turn
        # The calculator has no instances to release, so nothing has to be closed.
        self._tools = ToolRunner({Calculator.name: Calculator()}, deps.config.tools, deps.counts).session({})
        self._enter: Callable[[Stage], None] = lambda stage: None

    def watch(self, enter: Callable[[Stage], None]) -> None:
        """See Staged."""
        self._enter = enter

    async def reset(self, row: PromptRow, *, seed: int) -> tuple[Message, ...]:
        """The row's own messages; the seed draws nothing."""
        self._row, self._turn = row, 0
        return row.messages

    async def step(self, text: str, finish_reason: str) -> StepResult:
        """The tools' answers, or the reward."""
        self._turn += 1
        calls = self._read_turn(text).calls if finish_reason == "stop" and self._turn < self._max_turns else ()
        if not calls:
            return StepResult(done=True, reward=await self._rewards.score(self._row, text))
        self._enter("processing_tools")
        return StepResult(messages=await self._tools.messages(calls, self._turn))

    def snapshot(self) -> Mapping[str, object]:
        """The turns that the model has had; the tools keep nothing."""
        return {"turn": self._turn}

    async def restore(self, row: PromptRow, *, seed: int, state: Mapping[str, object]) -> tuple[Message, ...]:
        """As reset, with these turns behind it."""
        messages = await self.reset(row, seed=seed)
        self._turn = turn_of(state)
        return messages
