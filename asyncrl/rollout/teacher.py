"""One teacher: tokens in, its logprobs of them out, asked of its servers a few requests at a time.

consumes  rows of finished episodes, from teachers   waits for     room among the requests in flight
                                                     unblocked by  the end of one of them
produces  scores, or why there are none

What waits meanwhile goes together in the next request, so that many short answers cost few of them.
"""

import asyncio
import itertools
import logging
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from asyncrl import waits
from asyncrl.config import TeacherConfig
from asyncrl.errors import ServerError, WaitTimeout
from asyncrl.inference.errors import MalformedAnswer, RequestRefused, ServerUnavailable
from asyncrl.inference.scoring import ScoreQuestion, Scores, ScoringClient

MAX_ROWS = 32
MAX_TOKENS = 16384  # of one request, unless it has one row
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 8.0  # before a request is sent again
GIVE_UP_AFTER = 20  # requests in a row that failed for good
READY = "worker waits for its teachers"
RETRY = "worker waits before it asks a teacher again"

log = logging.getLogger(__name__)


class NotScored(Exception):
    """A teacher has no scores for these tokens; `reason` is the name it is counted under."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(reason, message)
        self.reason, self.message = reason, message

    def __str__(self) -> str:
        return self.message


@dataclass(eq=False, slots=True)
class _Job:
    token_ids: Sequence[int]
    first: int
    scores: "asyncio.Future[Scores]"


class Teacher:
    """Bound to the event loop that it is used in.

    Args:
        settings: the teacher's entry in the configuration.
        clients: of its servers; requests take turns among them.
        vocab_size: of the policy.
        counts: gets what became of rows: teacher_<name>_scored, and those without scores as _refused or _failed.
    """

    def __init__(
        self, settings: TeacherConfig, clients: Sequence[ScoringClient], vocab_size: int, counts: Counter[str]
    ) -> None:
        self.name, self.data_sources, self.top_k = settings.name, settings.data_sources, settings.top_k
        self._settings, self._clients, self._vocab_size, self._counts = settings, clients, vocab_size, counts
        self._turns = itertools.cycle(clients)
        self._waiting: deque[_Job] = deque()
        self._asking: set[asyncio.Task[None]] = set()
        self._failed_in_a_row = 0

    async def ready(self, deadline_s: float) -> None:
        """Wait until every server answers.

        Raises:
            WaitTimeout: one did not within `deadline_s`.
        """
        for client in self._clients:
            try:
                async with asyncio.timeout(deadline_s):
                    await self._answers(client)
            except TimeoutError:
                why = f"teacher {self.name!r} does not answer at {client.url}; is it running?"
                raise WaitTimeout(READY, deadline_s, deadline_s, why) from None

    async def score(self, token_ids: Sequence[int], first: int) -> Scores:
        """Its logprobs of the tokens from position `first` on, each given all tokens before it.

        Raises:
            NotScored: it refused them, or failed every time it was asked.
            ServerError: it fails always; to go on would mask every answer.
        """
        if self._failed_in_a_row >= GIVE_UP_AFTER:
            raise ServerError(
                f"teacher {self.name!r} failed {self._failed_in_a_row} requests in a row, each tried "
                f"{self._settings.max_attempts} times: every answer would be masked. See its log or its urls; the "
                "worker's log has what it answered."
            )
        job = _Job(token_ids, first, asyncio.get_running_loop().create_future())
        self._waiting.append(job)
        self._send()
        return await job.scores

    async def close(self) -> None:
        """Ask for nothing more; whoever waits for scores is cancelled."""
        for job in self._waiting:
            job.scores.cancel()
        self._waiting.clear()
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)
        for client in self._clients:
            await client.close()

    async def _answers(self, client: ScoringClient) -> None:
        while True:
            try:
                await client.model_info()
                return
            except (ServerUnavailable, MalformedAnswer):
                await waits.pause(READY, FIRST_PAUSE_S)

    def _send(self) -> None:
        while self._waiting and len(self._asking) < self._settings.in_flight:
            jobs = self._next_jobs()
            if jobs:
                task = asyncio.create_task(self._ask(jobs))
                self._asking.add(task)
                task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._asking.discard(task)
        self._send()

    def _next_jobs(self) -> list[_Job]:
        jobs: list[_Job] = []
        room = MAX_TOKENS
        while self._waiting and len(jobs) < MAX_ROWS:
            size = len(self._waiting[0].token_ids)
            if jobs and size > room:
                break
            job = self._waiting.popleft()
            if not job.scores.done():  # else whoever asked has gone
                jobs.append(job)
                room -= size
        return jobs

    async def _ask(self, jobs: Sequence[_Job]) -> None:
        """Settle every job, whatever happens."""
        try:
            left = await self._in_attempts(jobs)
        except BaseException:
            for job in jobs:
                job.scores.cancel()
            raise
        if len(left) == len(jobs):
            self._failed_in_a_row += 1
        else:
            self._failed_in_a_row = 0

    async def _in_attempts(self, jobs: Sequence[_Job]) -> list[_Job]:
        """Ask until every job has scores, as often as is allowed; those that got none are told so and returned."""
        pauses_s, last = waits.doubling(FIRST_PAUSE_S, LONGEST_PAUSE_S), ""
        for attempt in range(self._settings.max_attempts):
            if attempt:
                await waits.pause(RETRY, next(pauses_s))
            try:
                failures = await self._once(jobs)
            except RequestRefused as error:
                if len(jobs) == 1:
                    self._refused(jobs[0], error)
                    return []
                # Refused for the sake of one of them: each is asked alone, so that only that one is refused.
                return [job for one in jobs for job in await self._in_attempts([one])]
            except (ServerUnavailable, MalformedAnswer) as error:
                failures = [(job, error) for job in jobs]
            if not failures:
                return []
            jobs, last = [job for job, _ in failures], str(failures[0][1])
            log.info("teacher %s: %d rows are not scored yet: %s", self.name, len(jobs), last)
        for job in jobs:
            self._not_scored(job, "failed", f"{self._settings.max_attempts} attempts; the last: {last}")
        return list(jobs)

    async def _once(self, jobs: Sequence[_Job]) -> list[tuple[_Job, ServerError]]:
        """One request; the jobs that are to be asked again."""
        client = next(self._turns)
        answers = await client.score(
            [ScoreQuestion(client.next_rid(), job.token_ids, job.first) for job in jobs],
            num_top=self.top_k,
            vocab_size=self._vocab_size,
            deadline_s=self._settings.timeout_s,
        )
        failures: list[tuple[_Job, ServerError]] = []
        for job, answer in zip(jobs, answers, strict=True):
            if isinstance(answer, RequestRefused):
                self._refused(job, answer)
            elif isinstance(answer, ServerError):
                failures.append((job, answer))
            elif not job.scores.done():
                self._counts[f"teacher_{self.name}_scored"] += 1
                job.scores.set_result(answer)
        return failures

    def _refused(self, job: _Job, error: RequestRefused) -> None:
        self._not_scored(job, "refused", str(error))

    def _not_scored(self, job: _Job, reason: str, message: str) -> None:
        self._counts[f"teacher_{self.name}_{reason}"] += 1
        if not job.scores.done():
            job.scores.set_exception(NotScored(reason, message))
