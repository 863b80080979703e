"""Play one episode: the environment's messages -> tokens -> answers -> the environment's reply -> ... -> a trajectory.

The prompt is rendered once; after that the conversation only grows, by sampled ids and by the tokens between turns.
An episode that another worker has begun and parked goes on from its tokens, with the environment put back to before
the turn that was being sampled; where that cannot be, it starts over.
"""

import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from asyncrl.data.filters import truncate
from asyncrl.data.rows import PromptRow
from asyncrl.data.template import TemplateRefused
from asyncrl.data.values import Json
from asyncrl.envs.base import Environment, Message, Resumable, Reward, StepResult
from asyncrl.errors import AsyncrlError, DataError
from asyncrl.report.speeds import Durations
from asyncrl.rollout.progress import Progress
from asyncrl.rollout.seeds import environment_seed
from asyncrl.rollout.turns import EpisodeFailed, EpisodeSettings, EpisodeTask, Generator, TurnSampler
from buffer import Trajectory, TrajectoryError
from buffer.json_safe import json_safe_map

__all__ = ["EpisodeFailed", "EpisodePlayer", "EpisodeSettings", "EpisodeTask", "PromptMemo"]

log = logging.getLogger(__name__)
T = TypeVar("T")


class Chat(Protocol):
    """The part of ChatTemplate that an episode uses."""

    @property
    def eos_ids(self) -> tuple[int, ...]: ...
    def render(
        self, messages: Sequence[Mapping[str, Json]], tools: Sequence[Mapping[str, Json]] = ...
    ) -> list[int]: ...
    def continuation(self, messages: Sequence[Mapping[str, Json]], last_id: int | None = ...) -> list[int]: ...
    def decode(self, ids: Sequence[int]) -> str: ...


@dataclass
class PromptMemo:
    """The last prompt that was rendered: the episodes of a group mostly begin with the same one."""

    messages: tuple[Message, ...] | None = None
    token_ids: list[int] = field(default_factory=list)


class EpisodePlayer:
    """Plays episodes of one environment on one fleet. `counts` has what went wrong on the way, by name, and
    `environment_s` how long the environment took for its steps on training prompts."""

    def __init__(
        self,
        chat: Chat,
        fleet: Generator,
        make_environment: Callable[[], Environment],
        settings: EpisodeSettings,
    ) -> None:
        self._chat, self._fleet, self._make_environment, self._settings = chat, fleet, make_environment, settings
        self.counts: Counter[str] = Counter()
        self.environment_s = Durations()
        self._turns = TurnSampler(fleet, settings, chat.eos_ids, self.counts)

    async def play(self, task: EpisodeTask, progress: Progress, memo: PromptMemo) -> Trajectory:
        """Play to the end, from the beginning or from where `progress` is.

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
        environment, messages = await self._begin(task, progress, memo)
        texts: list[str] = []
        reward = Reward(None, f"no reward within rollout.max_turns = {self._settings.max_turns} turns")
        finish_reason = "env"
        while progress.num_turns < self._settings.max_turns:
            if progress.answered is None:
                progress.answered = await self._turns.sample(task, progress)
            progress.go_on()
            answered = progress.answered
            texts.append(self._chat.decode(progress.builder.token_ids[progress.turn_start :]))
            start_s = time.monotonic()
            result = await self._ask(environment.step(texts[-1], answered))
            if task.stream == "train":
                self.environment_s.add(time.monotonic() - start_s)
            progress.num_turns += 1
            if result.done:
                assert result.reward is not None  # StepResult checks it
                reward, finish_reason = result.reward, answered
                break
            self._continue(progress, result, cut=answered != "stop")
            progress.next_turn(self._snapshot(environment))
        extra: dict[str, object] = {}
        if task.with_text:
            extra = {"prompt_text": _as_text(messages), "response_text": "\n".join(texts)}
        try:
            return progress.finish(reward, finish_reason=finish_reason, num_turns=progress.num_turns, extra_info=extra)
        except TrajectoryError as error:
            raise EpisodeFailed("bad_trajectory", str(error)) from error

    async def cut(self, progress: Progress) -> None:
        """Have the episode's request in flight answered as far as it is."""
        await self._fleet.cut(progress.session)

    async def _begin(
        self, task: EpisodeTask, progress: Progress, memo: PromptMemo
    ) -> tuple[Environment, tuple[Message, ...]]:
        """The environment as of the turn to be sampled, and its first messages; the prompt is in `progress`."""
        if progress.is_resumed:
            environment = self._make_environment()
            restored = await self._restore(environment, task, progress)
            if restored is not None and self._render(restored, task.row, memo) == progress.builder.prompt_ids:
                progress.is_resumed = False
                self.counts["tokens_resumed"] += progress.num_sampled
                return environment, restored
            log.info(
                "episode %d.%d starts over, %d parked tokens are dropped: %s",
                task.ordinal,
                task.episode,
                progress.num_sampled,
                "its environment cannot be restored" if restored is None else "its prompt is another one now",
            )
            self.counts["partials_restarted"] += 1
            progress.start_over()
        environment = self._make_environment()
        messages = await self._ask(environment.reset(task.row, seed=self._seed(task)))
        progress.builder.begin_row(self._render(messages, task.row, memo))
        progress.next_turn(self._snapshot(environment))
        return environment, messages

    async def _restore(
        self, environment: Environment, task: EpisodeTask, progress: Progress
    ) -> tuple[Message, ...] | None:
        """The first messages of an environment that is now as it was when `progress` was parked; None: it cannot be."""
        seed = self._seed(task)
        if progress.state is None:
            # No turn was answered: after a reset with the same seed it is where it was.
            return await self._ask(environment.reset(task.row, seed=seed)) if progress.num_turns == 0 else None
        if not isinstance(environment, Resumable):
            return None
        try:
            return await environment.restore(task.row, seed=seed, state=progress.state)
        except AsyncrlError:
            raise
        except Exception:
            # What the snapshot stands for may have died with the worker that took it.
            log.warning("the environment of episode %d.%d was not restored", task.ordinal, task.episode, exc_info=True)
            return None

    def _snapshot(self, environment: Environment) -> Mapping[str, object] | None:
        if not isinstance(environment, Resumable):
            return None
        try:
            state = environment.snapshot()
            return None if state is None else json_safe_map("Environment.snapshot()", state)
        except Exception as error:
            log.warning("the environment failed", exc_info=True)
            raise EpisodeFailed("environment_failed", f"{type(error).__name__}: {error}") from error

    def _seed(self, task: EpisodeTask) -> int:
        return environment_seed(self._settings.run_seed, task.stream, task.ordinal, task.episode)

    def _render(self, messages: tuple[Message, ...], row: PromptRow, memo: PromptMemo) -> list[int]:
        if memo.messages != messages:
            try:
                token_ids = self._chat.render(messages, row.tools)
                limit, how = self._settings.max_prompt_tokens, self._settings.truncation
                memo.token_ids = truncate(token_ids, limit, how, row=row.index)
            except (TemplateRefused, DataError) as error:
                raise EpisodeFailed("prompt_refused", str(error)) from error
            memo.messages = messages
        return memo.token_ids

    def _continue(self, progress: Progress, result: StepResult, *, cut: bool) -> None:
        last_id = progress.builder.token_ids[-1] if cut else None
        try:
            progress.builder.append_context(self._chat.continuation(result.messages, last_id))
        except TemplateRefused as error:
            raise EpisodeFailed("prompt_refused", str(error)) from error

    async def _ask(self, call: Awaitable[T]) -> T:
        """Ask the environment, which may be anybody's code: what it raises fails the group, not the worker."""
        try:
            return await call
        except AsyncrlError:
            raise
        except Exception as error:
            log.warning("the environment failed", exc_info=True)
            raise EpisodeFailed("environment_failed", f"{type(error).__name__}: {error}") from error


def _as_text(messages: Sequence[Message]) -> str:
    return "\n".join(f"{message.get('role', '')}: {message.get('content', '')}" for message in messages)
