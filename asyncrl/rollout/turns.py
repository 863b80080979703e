"""Sample one turn of an episode, over as many requests as it takes.

An answer that was cut, by an activation, an abort or its server's death, is continued from its tokens on whichever
server may be used then; under the seed of its row it draws what the uncut one would have drawn.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from asyncrl.data.rows import PromptRow
from asyncrl.inference.errors import MalformedAnswer, RequestRefused, ServerBusy, ServerUnavailable
from asyncrl.inference.generated import Generated
from asyncrl.inference.protocol import Sampling
from asyncrl.inference.session import Session
from asyncrl.rollout.progress import Progress
from asyncrl.rollout.seeds import Stream, sampling_seed

MAX_FRUITLESS = 64  # requests in a row that a full queue or a sleeping server sent back; more is a fault

log = logging.getLogger(__name__)


class EpisodeFailed(Exception):
    """The episode cannot be finished; `reason` is what its group's failure is counted under."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(reason, message)
        self.reason, self.message = reason, message

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"


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
    async def cut(self, session: Session) -> None: ...


@dataclass(frozen=True)
class Drawing:
    """How tokens are drawn; a temperature of 0 takes the likeliest one each time."""

    temperature: float
    top_p: float = 1.0
    top_k: int = -1


GREEDY = Drawing(temperature=0.0)


@dataclass(frozen=True)
class EpisodeSettings:
    """How episodes are sampled and bounded.

    Attributes:
        held_out: how those of evaluations are sampled; None: as the others.
        max_attempts: requests of one turn in a row that may fail before the episode does.
        context_length: most tokens of an episode, prompt and answers together.
        max_prompt_tokens, truncation: a longer first prompt is cut on that side, or refused (`error`).
        chunk_tokens: most tokens asked for in one request; None: the whole turn.
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
    chunk_tokens: int | None = None
    held_out: Drawing | None = None

    def drawing(self, task: "EpisodeTask") -> Drawing:
        """How the tokens of an episode are drawn."""
        if task.stream == "eval" and self.held_out is not None:
            drawing = self.held_out
        else:
            drawing = Drawing(self.temperature, self.top_p, self.top_k)
        return GREEDY if task.is_greedy or drawing.temperature == 0 else drawing


@dataclass(frozen=True)
class EpisodeTask:
    """Which episode: its place in the run, and from which versions it may start.

    Attributes:
        stream: training and evaluation draw different numbers for the same ordinal.
        episode: index in the group.
        with_text: keep prompt and answers as text too, for people; only where the trainer shows them.
        is_greedy: take the likeliest token each time, whatever the settings for sampling are.
    """

    row: PromptRow
    stream: Stream
    ordinal: int
    episode: int
    may_start_on: Callable[[int], bool]
    with_text: bool = False
    is_greedy: bool = False


class TurnSampler:
    """Asks a fleet until a turn is whole. `counts` gets what went wrong on the way, by name."""

    def __init__(
        self, fleet: Generator, settings: EpisodeSettings, eos_ids: tuple[int, ...], counts: Counter[str]
    ) -> None:
        self._fleet, self._settings, self._eos_ids, self._counts = fleet, settings, eos_ids, counts

    async def sample(self, task: EpisodeTask, progress: Progress) -> str:
        """Sample the rest of the turn that begins at `progress.turn_start`; how it ended: `stop` or `length`.

        Raises:
            EpisodeFailed: servers or request failed for good.
            Halted: the episode was told to stop; what came back is in `progress`.
        """
        builder, num_failures, num_fruitless = progress.builder, 0, 0
        while True:
            left = self._left(progress)
            if left <= 0:
                return "length"
            asked = min(left, self._settings.chunk_tokens or left)
            progress.go_on()
            try:
                answer = await self._fleet.generate(
                    builder.token_ids,
                    self._sampling(task, progress, asked),
                    session=progress.session,
                    may_start_on=task.may_start_on,
                )
            except ServerBusy as error:
                num_fruitless += 1
                if num_fruitless >= MAX_FRUITLESS:
                    raise EpisodeFailed("server_failed", f"{num_fruitless} requests in vain: {error}") from error
                continue
            except (ServerUnavailable, MalformedAnswer) as error:
                num_failures += 1
                self._failed(task, error, num_failures)
                continue
            except RequestRefused as error:
                raise EpisodeFailed("request_refused", str(error)) from error
            builder.append_sampled(answer.token_ids, answer.logprobs, answer.spans, answer.experts)
            self._counts["sampled_tokens"] += len(answer.token_ids)
            if answer.token_ids:
                num_failures = num_fruitless = 0
            if answer.finish_reason == "length" and len(answer.token_ids) == asked < left:
                continue  # a chunk of it
            if answer.finish_reason != "abort":
                return answer.finish_reason
            self._counts["answers_cut"] += 1
            num_fruitless += not answer.token_ids
            if num_fruitless >= MAX_FRUITLESS:
                raise EpisodeFailed("server_failed", f"{num_fruitless} requests in a row were aborted without a token")

    def _left(self, progress: Progress) -> int:
        """Tokens that the turn may still have."""
        position = len(progress.builder.token_ids)
        of_turn = self._settings.max_new_tokens - (position - progress.turn_start)
        return min(of_turn, self._settings.context_length - position)

    def _sampling(self, task: EpisodeTask, progress: Progress, max_new_tokens: int) -> Sampling:
        settings, row = self._settings, progress.builder.row_index
        drawing = settings.drawing(task)
        return Sampling(
            max_new_tokens=max_new_tokens,
            temperature=drawing.temperature,
            top_p=drawing.top_p,
            top_k=drawing.top_k,
            stop_token_ids=self._eos_ids,
            seed=sampling_seed(settings.run_seed, task.stream, task.ordinal, task.episode, row),
        )

    def _failed(self, task: EpisodeTask, error: ServerUnavailable | MalformedAnswer, num_failures: int) -> None:
        self._counts[f"answers_{error.reason}" if isinstance(error, MalformedAnswer) else "answers_lost"] += 1
        if num_failures >= self._settings.max_attempts:
            raise EpisodeFailed("server_failed", f"{num_failures} attempts; the last: {error}") from error
        log.info("episode %d.%d goes on elsewhere: %s", task.ordinal, task.episode, error)
