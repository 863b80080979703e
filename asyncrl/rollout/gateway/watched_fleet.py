"""A fleet whose answers are shown as they come, and end where a stop text does."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from asyncrl.inference.generated import Generated
from asyncrl.inference.protocol import Sampling
from asyncrl.inference.session import Session
from asyncrl.rollout.gateway.turn_text import TurnText
from asyncrl.rollout.turns import Generator
from buffer import Span


class WatchedFleet:
    """The fleet for one turn."""

    def __init__(self, fleet: Generator, text: TurnText) -> None:
        self._fleet, self._text = fleet, text

    async def generate(
        self,
        token_ids: Sequence[int],
        sampling: Sampling,
        *,
        session: Session,
        may_start_on: Callable[[int], bool],
    ) -> Generated:
        """As the fleet's; an answer with a stop text in it ends with the token that completes it."""
        answer = await self._fleet.generate(token_ids, sampling, session=session, may_start_on=may_start_on)
        num_kept = self._text.push(answer.token_ids)
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
