"""Play one episode: the environment's messages -> tokens -> answers -> the environment's reply -> ... -> a trajectory.

The prompt is rendered once; after that the conversation only grows, by sampled ids and by the tokens between turns.
An answer that was cut by an activation or an abort is continued from its tokens, on whichever server may be used then.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from asyncrl.data.filters import truncate
from asyncrl.data.rows import PromptRow
from asyncrl.data.template import TemplateRefused
from asyncrl.data.values import Json
from asyncrl.envs.base import Environment, Message, Reward, StepResult
from asyncrl.errors import AsyncrlError, DataError
from asyncrl.inference.errors import MalformedAnswer, RequestRefused, ServerBusy, ServerUnavailable
from asyncrl.inference.fleet import Generated, Session
from asyncrl.inference.protocol import Sampling
from asyncrl.rollout.builder import TrajectoryBuilder
from asyncrl.rollout.seeds import Stream, environment_seed, sampling_seed
from buffer import Trajectory, TrajectoryError

MAX_FRUITLESS = 64  # requests in a row that a full queue or a sleeping server sent back; more is a fault

log = logging.getLogger(__name__)
T = TypeVar("T")


class EpisodeFailed(Exception):
    """The episode cannot be finished; `reason` is what its group's failure is counted under."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(reason, message)
        self.reason, self.message = reason, message

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"


class Chat(Protocol):
    """The part of ChatTemplate that an episode uses."""

    @property
    def eos_ids(self) -> tuple[int, ...]: ...
    def render(
        self, messages: Sequence[Mapping[str, Json]], tools: Sequence[Mapping[str, Json]] = ...
    ) -> list[int]: ...
    def continuation(self, messages: Sequence[Mapping[str, Json]], last_id: int | None = ...) -> list[int]: ...
    def decode(self, ids: Sequence[int]) -> str: ...


class Generator(Protocol):
    """The part of Fleet that an episode uses."""

    async def generate(
        self,
        token_ids: Sequence[int],
        sampling: Sampling,
        *,
        session: Session,
        may_start_on: Callable[[int], bool],
    ) -> Generated: ...


@dataclass(frozen=True)
class EpisodeSettings:
    """How episodes are sampled and bounded.

    Attributes:
        max_attempts: requests of one turn in a row that may fail before the episode does.
        context_length: most tokens of an episode, prompt and answers together.
        max_prompt_tokens, truncation: a longer first prompt is cut on that side, or refused (`error`).
    """

    run_seed: int
    temperature: float
    top_p: float
    top_k: int
    max_new_tokens: int
    max_turns: int
    max_attempts: int
    context_length: int
    max_prompt_tokens: int
    truncation: str


@dataclass
class PromptMemo:
    """The last prompt that was rendered: the episodes of a group mostly begin with the same one."""

    messages: tuple[Message, ...] | None = None
    token_ids: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class EpisodeTask:
    """Which episode: its place in the run, and from which versions it may start.

    Attributes:
        stream: training and evaluation draw different numbers for the same ordinal.
        episode: index in the group.
        with_text: keep prompt and answers as text too, for people; only where the trainer shows them.
    """

    row: PromptRow
    stream: Stream
    ordinal: int
    episode: int
    may_start_on: Callable[[int], bool]
    with_text: bool = False


class EpisodePlayer:
    """Plays episodes of one environment on one fleet. `counts` has what went wrong on the way, by name."""

    def __init__(
        self,
        chat: Chat,
        fleet: Generator,
        make_environment: Callable[[], Environment],
        settings: EpisodeSettings,
    ) -> None:
        self._chat, self._fleet, self._make_environment, self._settings = chat, fleet, make_environment, settings
        self.counts: Counter[str] = Counter()

    async def play(self, task: EpisodeTask, builder: TrajectoryBuilder, memo: PromptMemo) -> Trajectory:
        """Play to the end.

        Args:
            task: which episode.
            builder: a fresh one; whoever holds it sees the oldest version while the episode runs.
            memo: shared by the episodes of a group.
        Raises:
            EpisodeFailed: servers, request, environment or template failed for good.
        """
        environment, session = self._make_environment(), Session()
        seed = environment_seed(self._settings.run_seed, task.stream, task.ordinal, task.episode)
        messages = await self._ask(environment.reset(task.row, seed=seed))
        builder.begin_row(self._render(messages, task.row, memo))
        texts: list[str] = []
        reward = Reward(None, f"no reward within rollout.max_turns = {self._settings.max_turns} turns")
        finish_reason = "env"
        for _ in range(self._settings.max_turns):
            start = len(builder.token_ids)
            answered = await self._answer(task, builder, session)
            texts.append(self._chat.decode(builder.token_ids[start:]))
            result = await self._ask(environment.step(texts[-1], answered))
            if result.done:
                assert result.reward is not None  # StepResult checks it
                reward, finish_reason = result.reward, answered
                break
            self._continue(builder, result, cut=answered != "stop")
        extra: dict[str, object] = {}
        if task.with_text:
            extra = {"prompt_text": _as_text(messages), "response_text": "\n".join(texts)}
        try:
            return builder.finish(reward, finish_reason=finish_reason, num_turns=len(texts), extra_info=extra)
        except TrajectoryError as error:
            raise EpisodeFailed("bad_trajectory", str(error)) from error

    async def _answer(self, task: EpisodeTask, builder: TrajectoryBuilder, session: Session) -> str:
        """Sample one turn into `builder`, over as many requests as it takes; `stop` or `length`."""
        settings, start = self._settings, len(builder.token_ids)
        num_failures = num_fruitless = 0
        while True:
            position = len(builder.token_ids)
            budget = min(settings.max_new_tokens - (position - start), settings.context_length - position)
            if budget <= 0:
                return "length"
            sampling = Sampling(
                max_new_tokens=budget,
                temperature=settings.temperature,
                top_p=settings.top_p,
                top_k=settings.top_k,
                stop_token_ids=self._chat.eos_ids,
                seed=sampling_seed(settings.run_seed, task.stream, task.ordinal, task.episode, position),
            )
            try:
                answer = await self._fleet.generate(
                    builder.token_ids, sampling, session=session, may_start_on=task.may_start_on
                )
            except ServerBusy as error:
                num_fruitless += 1
                if num_fruitless >= MAX_FRUITLESS:
                    raise EpisodeFailed("server_failed", f"{num_fruitless} requests in vain: {error}") from error
                continue
            except (ServerUnavailable, MalformedAnswer) as error:
                self.counts[f"answers_{error.reason}" if isinstance(error, MalformedAnswer) else "answers_lost"] += 1
                num_failures += 1
                if num_failures >= settings.max_attempts:
                    raise EpisodeFailed("server_failed", f"{num_failures} attempts; the last: {error}") from error
                log.info("episode %d.%d goes on elsewhere: %s", task.ordinal, task.episode, error)
                continue
            except RequestRefused as error:
                raise EpisodeFailed("request_refused", str(error)) from error
            builder.append_sampled(answer.token_ids, answer.logprobs, answer.spans)
            if answer.finish_reason != "abort":
                return answer.finish_reason
            self.counts["answers_cut"] += 1
            num_fruitless += 1
            if answer.token_ids:
                num_failures = num_fruitless = 0
            if num_fruitless >= MAX_FRUITLESS:
                raise EpisodeFailed("server_failed", f"{num_fruitless} requests in a row were aborted without a token")

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

    def _continue(self, builder: TrajectoryBuilder, result: StepResult, *, cut: bool) -> None:
        last_id = builder.token_ids[-1] if cut else None
        try:
            builder.append_context(self._chat.continuation(result.messages, last_id))
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
