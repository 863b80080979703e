"""Ask short questions that come at about the same time in one request: what HTTP costs is then paid once for them.

For answers of a few dozen tokens HTTP costs worker and server more than the tokens do. A batch is answered when its
last member is, so only questions whose answers are short are batched: a straggler holds its mates for MAX_TOKENS steps
at most, and the slots of longer episodes are refilled one by one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field

from asyncrl.inference.errors import RequestRefused
from asyncrl.inference.protocol import Answer, Sampling

MAX_TOKENS = 64  # longest answer, in tokens, whose question may share a request
MAX_QUESTIONS = 64
LINGER_S = 0.001  # a question waits so long for others; less than one answer takes


@dataclass(frozen=True, slots=True)
class Question:
    """One generation: ids to continue (and as JSON, without brackets), how, under which request id and cache key,
    within which time."""

    rid: str
    token_ids: Sequence[int]
    json_ids: bytes
    sampling: Sampling
    extra_key: str | None
    deadline_s: float

    @property
    def is_short(self) -> bool:
        """Whether it may share a request."""
        return self.sampling.max_new_tokens <= MAX_TOKENS

    @property
    def key(self) -> Hashable:
        """What the questions of one request have in common."""
        return (self.extra_key, self.deadline_s)


Ask = Callable[[Sequence[Question]], Awaitable[list[Answer | Exception]]]


@dataclass(slots=True)
class _Batch:
    questions: list[Question] = field(default_factory=list)
    futures: list[asyncio.Future[Answer]] = field(default_factory=list)
    task: "asyncio.Task[None] | None" = None
    num_settled: int = 0

    def add(self, question: Question, future: asyncio.Future[Answer]) -> None:
        self.questions.append(question)
        self.futures.append(future)
        future.add_done_callback(self._settled)

    def _settled(self, future: asyncio.Future[Answer]) -> None:
        self.num_settled += 1
        if self.num_settled == len(self.futures) and self.task is not None:
            # Nobody waits any more: if the answer has not come, closing the connection aborts it at the server.
            self.task.cancel()


class Batcher:
    """Collects short questions and asks them together. Bound to the event loop that it is used in.

    `ask` sends one request for questions of one key and gives an answer, or what is wrong with it, for each.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._waiting: dict[Hashable, _Batch] = {}
        self._asking: set[asyncio.Task[None]] = set()

    async def answer(self, question: Question) -> Answer:
        """The answer to one question. Raises what `ask` raises or says about it."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        batch = self._waiting.setdefault(question.key, _Batch())
        batch.add(question, future)
        if len(batch.futures) >= MAX_QUESTIONS:
            self._send(question.key, batch)
        elif len(batch.futures) == 1:
            asyncio.get_running_loop().call_later(LINGER_S, self._send, question.key, batch)
        return await future

    def _send(self, key: Hashable, batch: _Batch) -> None:
        if self._waiting.get(key) is batch:  # else it was full, and went before its time
            del self._waiting[key]
            batch.task = asyncio.create_task(self._ask_together(batch))
            self._asking.add(batch.task)
            batch.task.add_done_callback(self._asking.discard)

    async def _ask_together(self, batch: _Batch) -> None:
        open_ones = [pair for pair in zip(batch.questions, batch.futures, strict=True) if not pair[1].done()]
        answers = await self._answers([question for question, _ in open_ones])
        for (_, future), answer in zip(open_ones, answers, strict=True):
            _settle(future, answer)

    async def _answers(self, questions: Sequence[Question]) -> list[Answer | Exception]:
        if not questions:
            return []
        try:
            return await self._ask(questions)
        except RequestRefused as error:
            if len(questions) == 1:
                return [error]
            # Refused for the sake of one of them: each is asked alone, so that only that one is refused.
            alone = await asyncio.gather(*(self._answers([question]) for question in questions))
            return [answer for (answer,) in alone]
        except Exception as error:  # not ours to judge: whoever asked gets it
            return [error] * len(questions)


def _settle(future: "asyncio.Future[Answer]", outcome: Answer | Exception) -> None:
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
