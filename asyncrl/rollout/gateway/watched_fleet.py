"""A fleet whose answers are shown as they come, and end where a stop text does."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from asyncrl.errors import ServerError
from asyncrl.inference.generated import Generated
from asyncrl.inference.protocol import Sampling
from asyncrl.inference.session import Session
from asyncrl.inference.streaming import Watch
from asyncrl.rollout.gateway.turn_text import TurnText
from asyncrl.rollout.turns import EpisodeFailed, Generator
from buffer import Span


class WatchedFleet:
    """The fleet for one turn.

    Args:
        every: tokens at a time in which an answer is shown before it is whole; None: it is shown at once.
    """

    def __init__(self, fleet: Generator, text: TurnText, every: int | None) -> None:
        self._fleet, self._text, self._every = fleet, text, every
        self._cut: asyncio.Task[None] | None = None

    async def generate(
        self,
        token_ids: Sequence[int],
        sampling: Sampling,
        *,
        session: Session,
        may_start_on: Callable[[int], bool],
    ) -> Generated:
        """As the fleet's; an answer with a stop text in it ends with the token that completes it.

        Raises:
            EpisodeFailed: an answer is lost of which something was shown: another one would begin otherwise.
        """
        seen, num_kept = 0, 0

        def show(ids: Sequence[int]) -> None:
            nonlocal seen, num_kept
            if self._text.stop_text is not None:
                return
            seen += len(ids)
            num_kept += self._text.push(ids)
            if self._text.stop_text is not None:
                self._cut = asyncio.ensure_future(self._fleet.cut(session))  # the rest is not wanted

        session.watch = Watch(self._every, show) if self._every is not None else None
        try:
            answer = await self._fleet.generate(token_ids, sampling, session=session, may_start_on=may_start_on)
        except ServerError as error:
            if not seen:
                raise
            raise EpisodeFailed(
                "stream_lost", f"the answer was lost after {seen} tokens were shown: {error}"
            ) from error
        finally:
            session.watch = None
            if self._cut is not None:
                self._cut.cancel()
        if self._text.stop_text is None:
            num_kept += self._text.push(answer.token_ids[seen:])
        if self._text.stop_text is None:
            return answer
        return ended_at(answer, num_kept, num_before=len(token_ids))

    async def cut(self, session: Session) -> None:
        """As the fleet's."""
        await self._fleet.cut(session)


def ended_at(answer: Generated, num_tokens: int, *, num_before: int) -> Generated:
    """The first tokens of an answer, as if sampling had stopped there.

    Args:
        num_tokens: of the answer, at least one.
        num_before: tokens that the server was given.
    """
    spans, left = [], num_tokens
    for span in answer.spans:
        if left > 0:
            spans.append(Span(span.version, span.digest, min(span.num_tokens, left)))
            left -= span.num_tokens
    # The last token of an answer was not read by the server yet.
    experts = None if answer.experts is None else answer.experts[: num_before + num_tokens - 1]
    return replace(
        answer,
        token_ids=answer.token_ids[:num_tokens],
        logprobs=answer.logprobs[:num_tokens],
        spans=tuple(spans),
        finish_reason="stop",
        experts=experts,
    )
