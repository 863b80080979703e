"""Play one episode: the environment's messages -> tokens -> answers -> the environment's reply -> ... -> a trajectory.

The prompt is rendered once; after that the conversation only grows, by sampled ids and by the tokens between turns.
An episode that another worker has begun and parked goes on from its tokens, with the environment put back to before
the turn that was being sampled; where that cannot be, it starts over.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Protocol

from asyncrl.data.filters import truncate
from asyncrl.data.rows import PromptRow
from asyncrl.data.template import TemplateRefused
from asyncrl.data.values import Json
from asyncrl.envs.base import Environment, Message, Reward, StepResult
from asyncrl.errors import DataError
from asyncrl.metrics.held_out import PRED
from asyncrl.report.speeds import Durations
from asyncrl.rollout.agent_states import AgentState, AgentStates, EpisodeState
from asyncrl.rollout.hosted_environment import HostedEnvironment
from asyncrl.rollout.progress import Progress
from asyncrl.rollout.seeds import environment_seed
from asyncrl.rollout.turns import EpisodeFailed, EpisodeSettings, EpisodeTask, Generator, TurnSampler
from buffer import Trajectory, TrajectoryError

__all__ = ["EpisodeFailed", "EpisodePlayer", "EpisodeSettings", "EpisodeTask", "PromptMemo"]

log = logging.getLogger(__name__)
Tools = Sequence[Mapping[str, Json]]


class Chat(Protocol):
    """The part of ChatTemplate that an episode uses."""

    @property
    def eos_ids(self) -> tuple[int, ...]: ...
    def render(self, messages: Sequence[Mapping[str, Json]], tools: Tools = ...) -> list[int]: ...
    def continuation(
        self, messages: Sequence[Mapping[str, Json]], last_id: int | None = ..., tools: Tools = ...
    ) -> list[int]: ...
    def decode(self, ids: Sequence[int]) -> str: ...


@dataclass
class PromptMemo:
    """The last prompt that was rendered: the episodes of a group mostly begin with the same one."""

    messages: tuple[Message, ...] | None = None
    tools: tuple[Mapping[str, Json], ...] = ()
    token_ids: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class _Begun:
    """An episode that is played: its environment, the messages of its first prompt, and the tools that it shows."""

    environment: HostedEnvironment
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Json], ...]


class EpisodePlayer:
    """Plays episodes of one environment on one fleet. `counts` has what went wrong on the way, by name, `states` how
    many episodes are in each state, and `environment_s` how long the environment took for its steps on training
    prompts."""

    def __init__(
        self,
        chat: Chat,
        fleet: Generator,
        make_environment: Callable[[], Environment],
        settings: EpisodeSettings,
        counts: Counter[str] | None = None,
    ) -> None:
        """counts: that others count into, too."""
        self._chat, self._fleet, self._make_environment, self._settings = chat, fleet, make_environment, settings
        self.counts: Counter[str] = Counter() if counts is None else counts
        self.states = AgentStates()
        self.environment_s = Durations()
        self._turns = TurnSampler(fleet, settings, chat.eos_ids, self.counts)

    async def play(self, task: EpisodeTask, progress: Progress, memo: PromptMemo) -> Trajectory:
        """Play to the end, from the beginning or from where `progress` is. Environments are closed by then.

        Args:
            task: which episode.
            progress: a fresh one, or one that took over what was parked. Whoever holds it may look at any time.
            memo: shared by the episodes of a group.
        Raises:
            EpisodeFailed: servers, request, environment or template failed for good.
            Halted: `progress` was told to halt.
        """
        if progress.trajectory is not None:
            return progress.trajectory
        with self.states.episode() as state:
            async with AsyncExitStack() as closing:
                begun = await self._begin(task, progress, memo, state, closing)
                return await self._play(task, progress, begun, state)

    async def _play(self, task: EpisodeTask, progress: Progress, begun: _Begun, state: EpisodeState) -> Trajectory:
        texts: list[str] = []
        reward = Reward(None, f"no reward within rollout.max_turns = {self._settings.max_turns} turns")
        finish_reason = "env"
        while progress.num_turns < self._settings.max_turns:
            if progress.answered is None:
                state.enter(AgentState.GENERATING)
                progress.answered = await self._turns.sample(task, progress)
            progress.go_on()
            state.enter(AgentState.INTERACTING)
            answered = progress.answered
            texts.append(self._chat.decode(progress.builder.token_ids[progress.turn_start :]))
            result = await self._step(begun.environment, texts[-1], answered, task)
            progress.num_turns += 1
            if result.done:
                assert result.reward is not None  # StepResult checks it
                reward, finish_reason = result.reward, answered
                break
            has_room = self._continue(progress, result, begun.tools, cut=answered != "stop")
            progress.next_turn(begun.environment.snapshot())
            if not has_room:
                progress.answered = "length"  # an empty turn, which the environment judges
        extra: dict[str, object] = {}
        if task.with_text:
            extra = {"prompt_text": _as_text(begun.messages), "response_text": "\n".join(texts)}
            if reward.answer is not None:
                extra[PRED] = reward.answer
        try:
            return progress.finish(reward, finish_reason=finish_reason, num_turns=progress.num_turns, extra_info=extra)
        except TrajectoryError as error:
            raise EpisodeFailed("bad_trajectory", str(error)) from error

    async def cut(self, progress: Progress) -> None:
        """Have the episode's request in flight answered as far as it is."""
        await self._fleet.cut(progress.session)

    async def _begin(
        self, task: EpisodeTask, progress: Progress, memo: PromptMemo, state: EpisodeState, closing: AsyncExitStack
    ) -> _Begun:
        """The environment as of the turn to be sampled; the prompt is in `progress`."""
        seed = environment_seed(self._settings.run_seed, task.stream, task.ordinal, task.episode)
        if progress.is_resumed:
            environment = self._open(state, closing)
            restored = await environment.restore(task.row, seed, progress.state, is_fresh=progress.num_turns == 0)
            if restored is not None:
                begun = _Begun(environment, restored, environment.tools(task.row))
                if self._render(begun, task.row, memo) == progress.builder.prompt_ids:
                    progress.is_resumed = False
                    self.counts["tokens_resumed"] += progress.num_sampled
                    return begun
            log.info(
                "episode %d.%d starts over, %d parked tokens are dropped: %s",
                task.ordinal,
                task.episode,
                progress.num_sampled,
                "its environment cannot be restored" if restored is None else "its prompt is another one now",
            )
            self.counts["partials_restarted"] += 1
            progress.start_over()
        environment = self._open(state, closing)
        messages = await environment.reset(task.row, seed)
        begun = _Begun(environment, messages, environment.tools(task.row))
        progress.builder.begin_row(self._render(begun, task.row, memo))
        progress.next_turn(environment.snapshot())
        return begun

    def _open(self, state: EpisodeState, closing: AsyncExitStack) -> HostedEnvironment:
        environment = HostedEnvironment(self._make_environment)
        closing.push_async_callback(environment.close)
        environment.watch(state)
        return environment

    async def _step(self, environment: HostedEnvironment, text: str, answered: str, task: EpisodeTask) -> StepResult:
        start_s = time.monotonic()
        result = await environment.step(text, answered)
        if task.stream == "train":
            self.environment_s.add(time.monotonic() - start_s)
        return result

    def _render(self, begun: _Begun, row: PromptRow, memo: PromptMemo) -> list[int]:
        if (memo.messages, memo.tools) != (begun.messages, begun.tools):
            try:
                token_ids = self._chat.render(begun.messages, begun.tools)
                limit, how = self._settings.max_prompt_tokens, self._settings.truncation
                memo.token_ids = truncate(token_ids, limit, how, row=row.index)
            except TemplateRefused as error:
                raise EpisodeFailed("prompt_refused", str(error)) from error
            except DataError as error:
                # Rows are left out by their own length: the data's reader does not know the environment.
                hint = (
                    " Its tools are the environment's, and add to the row's length." if begun.tools != row.tools else ""
                )
                raise EpisodeFailed("prompt_refused", f"{error}{hint}") from error
            memo.messages, memo.tools = begun.messages, begun.tools
        return memo.token_ids

    def _continue(self, progress: Progress, result: StepResult, tools: Tools, *, cut: bool) -> bool:
        """Append what the environment said. False, and nothing is appended: no room would be left for an answer."""
        last_id = progress.builder.token_ids[-1] if cut else None
        try:
            context = self._chat.continuation(result.messages, last_id, tools)
        except TemplateRefused as error:
            raise EpisodeFailed("prompt_refused", str(error)) from error
        has_room = len(progress.builder.token_ids) + len(context) < self._settings.context_length
        if has_room:
            progress.builder.append_context(context)
        return has_room


def _as_text(messages: Sequence[Message]) -> str:
    return "\n".join(f"{message.get('role', '')}: {message.get('content', '')}" for message in messages)
