"""Run the tool calls of a turn: at the same time up to a limit, each within its deadline, answered in their order.

A tool is anybody's code: whatever it raises is told to the model and counted, and ends neither episode nor worker.

consumes  a turn's calls, from an environment   waits for     tools; calls over `max_parallel` for others of their turn
produces  an outcome for each, to the model     unblocked by  the tool, or its deadline
"""

import asyncio
import logging
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from asyncrl import waits
from asyncrl.config import ToolsConfig
from asyncrl.data.values import Json, kind, replace_surrogates
from asyncrl.envs.tools.base import Tool, ToolAnswer, ToolError
from asyncrl.envs.tools.calls import CallOutcome, call_id, not_run, refused, truncated
from asyncrl.envs.tools.instances import GRACE_S, Instances, Overdue, Releases, within
from asyncrl.envs.tools.parsers import BadCall, ToolCall, typed

WAIT_NAME = "episode waits for tools"

log = logging.getLogger(__name__)


class ToolRunner:
    """The tools of a worker and the limits of calling them. `counts` has calls by outcome, all episodes together:
    tool_calls, tool_calls_ok, tool_calls_timeout and so on; and tool_releases_failed, tool_rewards_failed."""

    def __init__(self, tools: Mapping[str, Tool], config: ToolsConfig, counts: Counter[str]) -> None:
        self.tools, self.config, self.counts = tools, config, counts
        self._releases = Releases(counts)

    def session(self, extra_info: Mapping[str, Json], names: Sequence[str] | None = None) -> "ToolSession":
        """The tools of one episode, without an instance yet.

        Args:
            extra_info: the row's; tools_kwargs.<name>.create_kwargs in it are for the tool's create.
            names: of the tools that the episode may call. None: all.
        Raises:
            ValueError: tools_kwargs has another shape; the text says which.
        """
        tools = {name: tool for name, tool in self.tools.items() if names is None or name in names}
        return ToolSession(
            tools,
            self.config,
            self.counts,
            Instances(tools, _kwargs(extra_info), self._releases, self.config.timeout_s),
        )

    async def close(self) -> None:
        """Wait for what is still being released."""
        await self._releases.drain(self.config.timeout_s + 4 * GRACE_S)


class ToolSession:
    """The tools of one episode. Close it once the episode is over, however it ended.

    Attributes:
        rewards: of single calls, by tool, in order.
        metrics: of single calls, by tool and name, in order.
        num_calls: calls that were run.
    """

    def __init__(
        self, tools: Mapping[str, Tool], config: ToolsConfig, counts: Counter[str], instances: Instances
    ) -> None:
        self._tools, self._config, self._counts, self._instances = tools, config, counts, instances
        self.rewards: dict[str, list[float]] = defaultdict(list)
        self.metrics: dict[str, list[float]] = defaultdict(list)
        self.num_calls = 0

    @property
    def schemas(self) -> tuple[Mapping[str, Json], ...]:
        """For the prompt."""
        return tuple(tool.schema for tool in self._tools.values())

    @property
    def keeps_state(self) -> bool:
        """Whether a tool was called whose instance another worker could not have."""
        return any(self._tools[name].keeps_state for name in self._instances.started)

    async def answer(self, calls: Sequence[ToolCall | BadCall]) -> tuple[CallOutcome, ...]:
        """Run the well-formed calls, once each; the others run nothing and are told why. In the order of the calls."""
        limit = self._config.max_calls_per_turn
        slots = asyncio.Semaphore(self._config.max_parallel)
        with waits.timed(WAIT_NAME, lambda: f"{', '.join(sorted({call.name for call in calls[:limit]}))}"):
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(self._outcome(call, slots)) for call in calls[:limit]]
        outcomes = [task.result() for task in running]
        self._counts["tool_calls"] += len(calls)
        if (num_over := len(calls) - limit) > 0:
            outcomes.append(not_run(num_over, limit))
            self._counts[outcomes[-1].count_name] += num_over - 1
        for outcome in outcomes:
            self._counts[outcome.count_name] += 1
            if outcome.reward is not None:
                self.rewards[outcome.name].append(outcome.reward)
            for name, value in outcome.metrics.items():
                self.metrics[f"{outcome.name}/{name}"].append(value)
        return tuple(outcomes)

    async def messages(self, calls: Sequence[ToolCall | BadCall], turn: int) -> tuple[Mapping[str, Json], ...]:
        """See answer; as the turns of the conversation that follow the model's, which was number `turn`."""
        return tuple(outcome.message(call_id(turn, i)) for i, outcome in enumerate(await self.answer(calls)))

    async def calc_rewards(self) -> dict[str, float | None]:
        """What each instance says about the whole episode, by tool; None: it failed. Those that say nothing are left
        out. An episode without a call of a tool has none of it."""
        found: dict[str, float | None] = {}
        for name, instance_id in self._instances.ids().items():
            try:
                value = await within(self._config.timeout_s, self._tools[name].calc_reward(instance_id))
                if value is not None:
                    found[name] = _finite(value)
            except Exception:
                self._counts["tool_rewards_failed"] += 1
                log.warning("tool %s gives no reward", name, exc_info=True)
                found[name] = None
        return found

    async def close(self) -> None:
        """Release every instance that was made, once; see Instances.close."""
        await self._instances.close()

    async def _outcome(self, call: ToolCall | BadCall, slots: asyncio.Semaphore) -> CallOutcome:
        told = refused(call, tuple(self._tools))
        if told is not None or isinstance(call, BadCall):
            assert told is not None  # every BadCall is refused
            return told
        async with slots:
            self.num_calls += 1
            try:
                with waits.timed(f"tool {call.name} answers"):
                    answer = await within(self._config.timeout_s, self._execute(call))
            except Overdue:
                return self._failed(call, "timeout", f"timed out after {self._config.timeout_s:g} s")
            except ToolError as error:
                return self._failed(call, "tool error", str(error))
            except Exception as error:
                log.warning("tool %s failed", call.name, exc_info=True)
                cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
                return self._failed(call, "tool failed", f"{type(cause).__name__}: {cause}")
        if answer.is_error:
            return self._failed(call, "tool error", answer.text)
        outcome = "ok (string form)" if call.as_string else "ok"
        return CallOutcome(outcome, call.name, self._shown(answer.text), answer.reward, answer.metrics)

    async def _execute(self, call: ToolCall) -> ToolAnswer:
        tool = self._tools[call.name]
        arguments = typed(call, tool.schema).arguments
        answer = await tool.execute(await self._instances.of(call.name), arguments)
        if not isinstance(answer, ToolAnswer):
            raise TypeError(f"it answered with {kind(answer)}, wanted a ToolAnswer")
        for number in (*answer.metrics.values(), *(() if answer.reward is None else (answer.reward,))):
            _finite(number)
        return answer

    def _failed(self, call: ToolCall, outcome: str, text: str) -> CallOutcome:
        return CallOutcome(outcome, call.name, self._shown(f"error: {text}"))

    def _shown(self, text: str) -> str:
        shown = truncated(text, self._config.max_result_chars, self._config.truncate_result)
        return str(replace_surrogates(shown)[0])


def _finite(value: object) -> float:
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return float(value)
    raise TypeError(f"it gives the number {value!r}, wanted a finite one")


def _kwargs(extra_info: Mapping[str, Json]) -> dict[str, Mapping[str, Json]]:
    """create's keyword arguments by tool, from a row (verl's place for them)."""
    by_tool = extra_info.get("tools_kwargs", {})
    if not isinstance(by_tool, Mapping):
        raise ValueError(f"extra_info.tools_kwargs is {kind(by_tool)}, wanted an object with tools by name")
    found: dict[str, Mapping[str, Json]] = {}
    for name, of in by_tool.items():
        kwargs = of.get("create_kwargs", {}) if isinstance(of, Mapping) else None
        if not isinstance(kwargs, Mapping):
            raise ValueError(f"extra_info.tools_kwargs.{name} has no object create_kwargs")
        found[name] = kwargs
    return found
