"""Scorers that call a function: cheap rules at once, all others in a few processes of their own, each call bounded.

consumes  a row and an answer, from an episode   waits for     a free process
produces  an Outcome, to that episode            unblocked by  the end, or the timeout, of another call

A function for many answers gets those that came in while all its processes were busy, so that nobody waits for others
to come. One for single answers, if it is quick, is sent such answers in one message too: a message costs more than the
score. A process serves one scorer alone: one that hangs or crashes takes no place from another.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from asyncrl.data.rows import PromptRow
from asyncrl.data.values import Json
from asyncrl.envs.rewards.compute_score import check_sources, compute_score
from asyncrl.envs.rewards.failure import described
from asyncrl.envs.rewards.process import ProcessDiedEarly, RewardProcess
from asyncrl.envs.rewards.result import Reward
from asyncrl.envs.rewards.scorer import SCORED, Outcome
from asyncrl.envs.rewards.table import REWARDS
from asyncrl.errors import RewardError
from asyncrl.waits import timed

WAIT_NAME = "episode waits for a reward process"
QUEUE_CALLS = 50
"""A wait for a process ends after so many calls that all time out."""
TOGETHER_S = 0.005
"""Work for a function for one answer that is sent in one message, by what its last calls took."""


@dataclass(eq=False)
class _Call:
    """An answer on its way. `taken` is done when a process has it, `outcome` when it is scored."""

    job: dict[str, Json]
    taken: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    outcome: "asyncio.Future[Outcome]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    batch: "_Batch | None" = None

    def take(self) -> None:
        """A process has it. Whoever waits for that may have given up in this very moment."""
        if not self.taken.done():
            self.taken.set_result(None)


@dataclass(eq=False)
class _Batch:
    """Answers that a process has together."""

    calls: list[_Call]
    task: "asyncio.Task[list[Outcome]] | None" = None


class FunctionScorer:
    """A user's function, or the rules of the table, in processes. Use within one event loop.

    Args:
        name: in tables and messages.
        workers: processes at most; they start when they are needed.
        timeout_s: seconds one call may take.
        user_file: Python file of the function; None: the rules by data source.
        user_function: its function, with verl's arguments; may be async, and for one answer or for many.
        batch_size: most answers that a function for many gets at once, or that are sent to another in one message.
        queue_s: seconds to wait for a free process; None: fifty calls that all time out.
    """

    def __init__(
        self,
        name: str,
        workers: int,
        timeout_s: float,
        user_file: Path | None = None,
        user_function: str = "compute_score",
        *,
        batch_size: int = 64,
        queue_s: float | None = None,
    ) -> None:
        self.name, self.timeout_s, self._batch_size = name, timeout_s, batch_size
        self._queue_s = QUEUE_CALLS * timeout_s if queue_s is None else queue_s
        self._from_table = user_file is None
        self._processes = [RewardProcess(user_file, user_function) for _ in range(workers)]
        # Last in, first out: a process that is warm stays warm, the others never start.
        self._idle = list(self._processes)
        self._waiting: list[_Call] = []
        self._tasks: set[asyncio.Task[list[Outcome]]] = set()
        self._for_many = self._is_closed = False
        self._call_s = TOGETHER_S  # of a call for one answer, lately; nothing is known before the first

    async def start(self) -> None:
        """Load the user's file in one process, so that a broken one is refused before anything is generated."""
        if not self._from_table:
            process = self._idle.pop()
            try:
                await process.start()
                self._for_many = process.is_for_many
            finally:
                self._give_back(process)

    async def score(self, row: PromptRow, text: str) -> Outcome:
        """Score an answer. Raises RewardError: no rule for the data source, or a file that cannot be loaded."""
        if self._from_table:
            check_sources([row.data_source])
            if REWARDS[row.data_source].inline:
                return _inline(row, text)
        call = _Call(job_of(row, text))
        self._waiting.append(call)
        self._assign()
        try:
            if not await self._taken(call):
                return Outcome.failed(
                    "queue_full", f"no reward process was free for {self._queue_s:g} s", says_kind=False
                )
            return await call.outcome
        except asyncio.CancelledError:
            self._drop(call)
            raise

    def kill(self) -> None:
        """End all processes at once. Calls in flight fail, later ones too."""
        self._is_closed = True
        self._fail_waiting()
        for process in self._processes:
            process.kill()

    async def close(self) -> None:
        """Wait for the calls that were killed."""
        self.kill()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _taken(self, call: _Call) -> bool:
        """Wait until a process has the call; False: none did in time."""
        if call.taken.done():
            return True
        try:
            with timed(WAIT_NAME, self._why):
                async with asyncio.timeout(self._queue_s):
                    await call.taken
        except TimeoutError:
            if call in self._waiting:  # else it was taken in the last moment
                self._waiting.remove(call)
                return False
        return True

    def _why(self) -> str:
        return f"{len(self._processes)} processes of {self.name}, all busy for up to {self.timeout_s} s each"

    def _assign(self) -> None:
        """Give waiting answers to idle processes."""
        if self._is_closed:
            self._fail_waiting()
        while self._waiting and self._idle:
            size = self._num_together()
            calls, self._waiting = self._waiting[:size], self._waiting[size:]
            batch = _Batch(calls)
            process = self._idle.pop()
            batch.task = asyncio.create_task(self._answered(process, [call.job for call in calls]))
            self._tasks.add(batch.task)
            # Not in the task: one that is cancelled before it begins runs none of its lines.
            batch.task.add_done_callback(partial(self._ended, process, calls))
            for call in calls:
                call.batch = batch
                call.take()

    def _num_together(self) -> int:
        if self._for_many:
            return self._batch_size
        return max(1, min(self._batch_size, int(TOGETHER_S / self._call_s)))

    async def _answered(self, process: RewardProcess, jobs: Sequence[dict[str, Json]]) -> list[Outcome]:
        if self._is_closed:  # else a process would be started again
            return [self._closed()] * len(jobs)
        try:
            answers, took_s = await process.score(jobs, self.timeout_s)
        except (TimeoutError, ValueError, ProcessDiedEarly) as error:
            if isinstance(error, RewardError):  # it would be the same for every answer
                raise
            if len(jobs) == 1 or self._for_many:
                return [self._failed(error)] * len(jobs)
            # For the sake of one of them: each is scored alone, so that only that one fails.
            self._call_s = TOGETHER_S
            return [outcome for job in jobs for outcome in await self._answered(process, [job])]
        self._for_many = process.is_for_many
        self._call_s = max(took_s / len(jobs), 1e-6)
        return [_outcome(answer) for answer in answers]

    def _failed(self, error: Exception) -> Outcome:
        if isinstance(error, TimeoutError):
            return Outcome.failed("timeout", f"no reward after {self.timeout_s:g} s")
        return Outcome.failed("died" if isinstance(error, ProcessDiedEarly) else "exception", str(error))

    def _closed(self) -> Outcome:
        return Outcome.failed("closed", f"{self.name} was closed")

    def _ended(self, process: RewardProcess, calls: Sequence[_Call], task: "asyncio.Task[list[Outcome]]") -> None:
        self._tasks.discard(task)
        self._give_back(process)  # first: whoever is told may ask again at once
        error = None if task.cancelled() else task.exception()
        for i, call in enumerate(calls):
            call.batch = None  # they name each other, and would stay until Python looks for cycles
            if call.outcome.done():
                continue
            if task.cancelled():
                call.outcome.cancel()
            elif error is not None:
                call.outcome.set_exception(error)
            else:
                call.outcome.set_result(task.result()[i])

    def _fail_waiting(self) -> None:
        for call in self._waiting:
            call.take()
            if not call.outcome.done():
                call.outcome.set_result(self._closed())
        self._waiting.clear()

    def _give_back(self, process: RewardProcess) -> None:
        self._idle.append(process)
        self._assign()

    def _drop(self, call: _Call) -> None:
        """Nobody waits for this answer any more; its process is killed if it works for nobody else."""
        if call in self._waiting:
            self._waiting.remove(call)
        call.outcome.cancel()
        batch = call.batch
        if batch is not None and batch.task is not None and all(other.outcome.done() for other in batch.calls):
            batch.task.cancel()


def job_of(row: PromptRow, text: str) -> dict[str, Json]:
    """verl's arguments."""
    return {
        "data_source": row.data_source,
        "solution_str": text,
        "ground_truth": row.ground_truth,
        "extra_info": dict(row.extra_info),
    }


def _inline(row: PromptRow, text: str) -> Outcome:
    try:
        return Outcome(SCORED, compute_score(row.data_source, text, row.ground_truth, row.extra_info))
    except Exception as error:  # a rule that stumbles over one answer masks that answer
        return Outcome.failed("exception", str(error) if isinstance(error, RewardError) else described(error))


def _outcome(answer: dict[str, Json]) -> Outcome:
    if "failure" in answer:
        return Outcome.failed("exception", str(answer["failure"]))
    value, parts, said = answer["value"], answer["parts"], answer["answer"]
    assert isinstance(value, int | float)
    assert isinstance(parts, dict)
    assert said is None or isinstance(said, str)
    numbers = {name: float(x) for name, x in parts.items() if isinstance(x, int | float)}
    return Outcome(SCORED, Reward(float(value), None, numbers, said))
