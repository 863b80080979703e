"""Answer one request of a session: plan it, sample it over the fleet, keep its tokens, and take its text apart."""

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from asyncrl.data.thoughts import THOUGHT_OPEN
from asyncrl.envs.tools.parsers.base import ToolCallParser
from asyncrl.errors import WaitTimeout
from asyncrl.inference.session import Session as ServerSession
from asyncrl.rollout.builder import TrajectoryBuilder
from asyncrl.rollout.episode import Chat
from asyncrl.rollout.gateway.answer_reader import AnswerReader
from asyncrl.rollout.gateway.conversation import (
    FinishReason,
    ProtocolError,
    TurnAnswer,
    TurnDelta,
    TurnRequest,
    TurnStart,
)
from asyncrl.rollout.gateway.messages import key_of
from asyncrl.rollout.gateway.session import PlannedTurn, Session
from asyncrl.rollout.gateway.turn_text import TurnText
from asyncrl.rollout.gateway.watched_fleet import WatchedFleet
from asyncrl.rollout.progress import Progress
from asyncrl.rollout.turns import EpisodeFailed, EpisodeSettings, Generator, TurnSampler
from buffer import Row, Span, TrajectoryError
from buffer.versions import label

_MARKER_TOKENS = 8  # more than the opening of a thought has, with what comes around it
Show = Callable[[TurnDelta], None]
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TurnSettings:
    """How turns are sampled and shown.

    Attributes:
        model_name: of the policy, in answers.
        timeout_s: seconds that one turn may take.
        stream_tokens: a stream's answer comes in pieces of so many tokens; None: as a whole.
        pieces_are_requests: whether each piece is asked for by itself, as servers cannot show an answer before it is
            whole.
        splits_thoughts: whether thoughts are shown as reasoning, apart from what is said.
        refuses_other_sampling: whether a request that wants to be sampled otherwise than the run is refused.
    """

    model_name: str
    timeout_s: float
    stream_tokens: int | None
    splits_thoughts: bool
    refuses_other_sampling: bool
    pieces_are_requests: bool = False


class TurnTaker:
    """Samples turns. `counts` gets turns, sampled tokens, and what went wrong.

    Args:
        parser: of the form in which the model writes calls; None: its template shows none.
    """

    def __init__(
        self,
        chat: Chat,
        fleet: Generator,
        sampling: EpisodeSettings,
        settings: TurnSettings,
        parser: ToolCallParser | None,
        counts: Counter[str],
    ) -> None:
        self._chat, self._fleet, self._sampling, self._settings = chat, fleet, sampling, settings
        self._parser, self.counts = parser, counts

    def check(self, request: TurnRequest) -> None:
        """Refuse, or count, what a request wants of its sampling and does not get.

        Raises:
            ProtocolError: the gateway is told to refuse it.
        """
        asked, run = request.sampling, self._sampling
        wanted = {"temperature": (asked.temperature, run.temperature), "top_p": (asked.top_p, run.top_p)}
        others = {name: pair for name, pair in wanted.items() if pair[0] is not None and pair[0] != pair[1]}
        if not others:
            return
        self.counts["sampling_overridden"] += 1
        if self._settings.refuses_other_sampling:
            name, (found, expected) = next(iter(others.items()))
            raise ProtocolError(
                400,
                "invalid_request",
                f"{name} = {found}, but the run samples with {expected} (rollout.{name}): the trainer would compare "
                "the tokens with another distribution. Leave it out, or set gateway.other_sampling to ignore.",
            )

    async def take(self, session: Session, turn: PlannedTurn, request: TurnRequest, show: Show) -> TurnAnswer:
        """Sample a planned turn and keep it.

        Args:
            show: is given the pieces of the answer, all but the last.
        Raises:
            ProtocolError: there is no answer; the session is as it was before.
        """
        is_kept = False
        start = TurnStart(secrets.token_hex(12), self._settings.model_name, int(time.time()), turn.num_tokens)
        show(TurnDelta(start=start))
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                answer = await self._sampled(session, turn, request, start, show)
            is_kept = True
            return answer
        except WaitTimeout as error:
            self.counts["turns_without_server"] += 1
            raise ProtocolError(503, "server", str(error), retry_after_s=5.0) from error
        except TimeoutError as error:
            self.counts["turns_timed_out"] += 1
            raise ProtocolError(
                504, "server", f"No answer within gateway.turn_timeout_s = {self._settings.timeout_s:g} s."
            ) from error
        except EpisodeFailed as error:
            self.counts[f"turns_{error.reason}"] += 1
            raise _refusal(error) from error
        except TrajectoryError as error:
            self.counts["turns_bad_trajectory"] += 1
            raise ProtocolError(502, "server", f"The server's answer contradicts itself: {error}") from error
        except ProtocolError:
            raise
        except Exception as error:
            # A fault of ours: its harness is told, the other sessions go on.
            log.exception("a turn of session %s failed", session.id)
            self.counts["turns_faulty"] += 1
            message = f"{type(error).__name__}: the gateway's log says more."
            raise ProtocolError(500, "server", message) from error
        finally:
            if not is_kept:
                self.counts["turns_without_answer"] += 1
                session.drop(turn)

    async def _sampled(
        self, session: Session, turn: PlannedTurn, request: TurnRequest, start: TurnStart, show: Show
    ) -> TurnAnswer:
        progress = _begun(session, turn)
        reader = AnswerReader(
            self._parser if request.tools and request.parses_tool_calls else None,
            splits_thoughts=self._settings.splits_thoughts,
            in_thought=self._settings.splits_thoughts and self._ends_in_thought(progress.builder.token_ids),
            counts=self.counts,
        )
        text = TurnText(self._chat.decode, request.sampling.stop, reader, show)
        every = self._settings.stream_tokens if request.stream and not self._settings.pieces_are_requests else None
        fleet = WatchedFleet(self._fleet, text, every)
        sampler = TurnSampler(fleet, self._settings_of(request), self._chat.eos_ids, self.counts)
        finish = await sampler.sample(session.task, progress)
        session.server = progress.session.server
        text.finish()
        row = progress.builder.rows()[0]
        answer = self._answer(start, request, row, reader, text, finish)
        said = {"role": "assistant", "content": answer.text, "reasoning_content": answer.reasoning}
        session.finish(turn, row, key_of({**said, "tool_calls": [call.to_json() for call in answer.tool_calls]}))
        session.last_text, session.last_finish = answer.text, finish
        self.counts["turns"] += 1
        return answer

    def _settings_of(self, request: TurnRequest) -> EpisodeSettings:
        most, run = request.sampling.max_tokens, self._sampling
        most = run.max_new_tokens if most is None else min(most, run.max_new_tokens)
        chunk = self._settings.stream_tokens if request.stream and self._settings.pieces_are_requests else None
        if most == run.max_new_tokens and chunk is None:
            return run
        return replace(run, max_new_tokens=most, chunk_tokens=chunk or run.chunk_tokens)

    def _ends_in_thought(self, token_ids: list[int]) -> bool:
        """Whether the prompt opens a thought for the model, as some templates do."""
        end = token_ids[-_MARKER_TOKENS:]
        after = max((i + 1 for i, token in enumerate(end) if token in self._chat.eos_ids), default=0)
        return self._chat.decode(end[after:]).rstrip().endswith(THOUGHT_OPEN)

    def _answer(
        self,
        start: TurnStart,
        request: TurnRequest,
        row: Row,
        reader: AnswerReader,
        text: TurnText,
        finish: str,
    ) -> TurnAnswer:
        token_ids = row.token_ids[start.prompt_tokens :].tolist()
        reason: FinishReason = "length" if finish == "length" else "tool_calls" if reader.tool_calls else "stop"
        return TurnAnswer(
            id=start.id,
            model=start.model,
            weight_version=_newest(row.spans, len(token_ids)),
            created_s=start.created_s,
            text=reader.text,
            reasoning=reader.reasoning or None,
            tool_calls=tuple(reader.tool_calls),
            finish_reason=reason,
            token_ids=tuple(token_ids),
            logprobs=tuple(row.logprobs[start.prompt_tokens :].tolist()),
            prompt_tokens=start.prompt_tokens,
            token_texts=tuple(self._chat.decode([token]) for token in token_ids) if request.sampling.logprobs else (),
            stop_text=text.stop_text,
        )


def _begun(session: Session, turn: PlannedTurn) -> Progress:
    """The tokens that the model reads, as those of an episode whose next turn begins."""
    progress = Progress(TrajectoryBuilder(first_row=turn.number))
    progress.session = ServerSession(server=session.server, only=session.only)
    if turn.base is None:
        progress.builder.begin_row(turn.token_ids)
    else:
        progress.builder.restore((turn.base.row,))
        progress.builder.append_context(turn.token_ids)
    progress.next_turn(None)
    return progress


def _newest(spans: Sequence[Span], num_tokens: int) -> str:
    """Label of the newest version among those of the last tokens; empty without any."""
    versions = []
    for span in reversed(spans):
        if num_tokens <= 0:
            break
        versions.append(span.version)
        num_tokens -= span.num_tokens
    return label(max(versions)) if versions else ""


def _refusal(error: EpisodeFailed) -> ProtocolError:
    if error.reason == "request_refused":
        return ProtocolError(400, "invalid_request", f"The servers refuse the request: {error.message}")
    return ProtocolError(503, "server", f"No server answered: {error.message}", retry_after_s=1.0)
