"""Checkpoints of a running trainer: ledger, copy, and beside the next steps files, one rename, the buffer's commit.

    due -> wait for the one before -> ledger, copy of the state -+-> train on
                                                                 +-> write, rename, commit, delete old ones (a flight)

The commit follows the rename, never before it, and closes what the ledger names: it was taken with the copy. One
checkpoint at a time is on its way. At the end, at a stop and where memory is short the loop waits for one, without a
copy.
"""

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from asyncrl import waits
from asyncrl.errors import CheckpointError
from asyncrl.metrics.timing import Stopwatches
from asyncrl.trainer.agreement import Decision, decided_by_rank0
from asyncrl.trainer.buffer_gauges import gauges
from asyncrl.trainer.checkpoint_files import CheckpointName, size_of
from asyncrl.trainer.flight import Flight
from asyncrl.trainer.lineage import Lineage
from asyncrl.trainer.parallel import START_TIMEOUT_S
from asyncrl.trainer.parts import TrainerParts
from asyncrl.trainer.rank_files import Piece
from asyncrl.trainer.saved_state import state_of
from buffer.lineage import Ledger

log = logging.getLogger(__name__)

MAX_FAILURES = 3
"""Checkpoints in a row that may fail before the run stops: it must not lose ever more work, and the buffer fills."""

WRITE, COPY, LANDING = (
    "trainer writes a checkpoint",
    "trainer copies its state",
    "trainer waits for the checkpoint before",
)
LEAVE_S = 10.0
"""What a trainer that ends with an error gives to the checkpoint on its way."""


@dataclass(frozen=True)
class Taken:
    """What a checkpoint is of. `ledger`: of rank 0."""

    name: CheckpointName
    state: Mapping[str, object]
    ledger: Ledger | None
    trained: frozenset[int]
    masked: Counter[str]


class Saver:
    """Saves the run, and counts what a save failed. Every rank calls it together.

    Attributes:
        num_saved, num_failed: checkpoints since the start.
        last_write_s: seconds that writing the newest one took.
    """

    def __init__(self, parts: TrainerParts, lineage: Lineage) -> None:
        """A collective of all ranks: the threads that write talk on a channel of their own."""
        self._parts, self._lineage = parts, lineage
        self._config = parts.config.trainer.checkpoint
        self._channel = parts.collective.channel(START_TIMEOUT_S + self._config.write_deadline_s)
        self._trained: set[int] = set()
        self._masked: Counter[str] = Counter()
        self._gauges: dict[str, float] = {}
        self._watches = Stopwatches()
        self._flight: Flight[Path] | None = None
        self._taken_step = self._saved_step = lineage.step
        self._taken: Taken | None = None
        self._wanted = False
        self._failures = 0
        self.num_saved = self.num_failed = 0
        self.last_write_s = 0.0

    @property
    def has_news(self) -> bool:
        """Whether a checkpoint now would hold more than the newest one, the one on its way included."""
        return self._lineage.step > self._taken_step

    @property
    def frees_bytes(self) -> bool:
        """Whether a checkpoint now would free bytes of the buffer; while one is on its way, that one does."""
        if self._flight is None:
            return self.has_news
        return self._flight.is_over and (self.has_news or self._flight.failure is not None)

    @property
    def not_saved(self) -> frozenset[int]:
        """Ordinals that were trained and are in no checkpoint yet."""
        return frozenset(self._trained)

    def trained(self, ordinals: set[int]) -> None:
        """Note what the next checkpoint closes."""
        self._trained |= ordinals

    def kept_out(self, tokens: Mapping[str, int]) -> None:
        """Note sampled tokens of what was trained that did not enter the loss, by data source; on rank 0."""
        self._masked.update(tokens)

    def to_be_scored(self) -> None:
        """The version of this step is going to be evaluated: with keep_best a checkpoint of it is due, and stays."""
        if self._config.keep_best:
            self._wanted = True
            self._parts.checkpoints.scores.expect(self._name())

    def scored(self, name: CheckpointName, score: float | None) -> None:
        """The held-out score of a step, now or later than its checkpoint; None: it gets none. On rank 0."""
        self._parts.checkpoints.score(name, score)

    def drain(self) -> dict[str, float]:
        """Metrics since the last call: the buffer as the newest checkpoint found it, bytes and seconds of checkpoints;
        on rank 0."""
        drained, self._gauges = self._gauges, {}
        return drained | self._watches.drain()

    async def save_if_due(self) -> None:
        """A periodic checkpoint, and the news of the one on its way: a failure is reported and tried again.

        Raises:
            CheckpointError: the third failure in a row.
            WaitTimeout: the one before it takes longer than trainer.checkpoint.write_deadline_s.
        """
        if await self._has_landed():
            await self._settle()
        every = self._config.every_steps
        is_time = self._lineage.step % every == 0 or self._wanted or self._failures > 0
        if not (self.has_news and is_time):
            return
        await self._settle()
        if not self._config.asynchronous:
            try:
                await self.save()
            except CheckpointError as error:
                self._bear(error)
            return
        taken = await self._take()
        with self._watches.watch("checkpoint_blocked"):
            copied = await waits.blocking(
                COPY, self._parts.checkpoints.copy, self._parts.policy, self._parts.learner.critic
            )
        self._flight = Flight("checkpoint", partial(self._write, taken, copied))

    async def save(self) -> None:
        """A checkpoint now; returns when it is there and committed, nothing if the newest one holds this step already.

        Raises:
            CheckpointError: it could not be written; older checkpoints are as they were.
        """
        await self._settle()
        if not self.has_news:
            return
        taken = await self._take()
        try:
            with self._watches.watch("checkpoint_blocked"):
                path = await waits.blocking(WRITE, self._write, taken, None)
        except CheckpointError:
            self._fail()
            raise
        self._succeed(path)

    async def leave(self) -> None:
        """Give the checkpoint on its way a moment, when the loop ends with an error; that error is the news."""
        if self._flight is None:
            return
        if not await waits.blocking(LANDING, self._flight.wait, LEAVE_S):
            log.warning("checkpoint %s is left on its way", self._taken.name if self._taken else "")
        elif self._flight.failure is not None:
            log.warning("the checkpoint on its way failed, too: %s", self._flight.failure)

    async def _has_landed(self) -> bool:
        """Whether the one on its way is over; rank 0's answer, since the ranks see it at different moments."""
        flight = self._flight
        if flight is None:
            return False

        async def look() -> Decision:
            return {"over": flight.is_over}

        return bool((await decided_by_rank0(self._parts.collective, look))["over"])

    async def _settle(self) -> None:
        """Wait for the checkpoint on its way, if there is one, and note what became of it."""
        flight = self._flight
        if flight is None:
            return
        try:
            with self._watches.watch("checkpoint_blocked"):
                path = await waits.until(
                    LANDING,
                    flight.landed,
                    why=lambda: f"it is being written for {flight.seconds:.0f} s; is the disk of run.dir slow or full?",
                    wake=flight.wait,
                    deadline_s=max(self._config.write_deadline_s - flight.seconds, 0.0),
                )
        except CheckpointError as error:
            self._fail()
            self._bear(error)
        else:
            self._gauges["timing_s/checkpoint_beside"] = flight.seconds
            self._succeed(path)
        finally:
            if flight.is_over:
                self._flight = None

    async def _take(self) -> Taken:
        """The ledger and the state of this step."""
        parts, lineage = self._parts, self._lineage
        ledger: Ledger | None = None

        async def take() -> Decision:
            nonlocal ledger
            ledger = await waits.blocking(
                "trainer updates the ledger",
                lambda: parts.buffer.ledger(lineage.branch, lineage.number, self._trained, self._masked),
            )
            self._gauges |= gauges(await waits.in_thread(parts.buffer.usage))
            return {}

        await decided_by_rank0(parts.collective, take)
        state = {} if ledger is None else state_of(parts, lineage, ledger)
        self._taken = Taken(self._name(), state, ledger, frozenset(self._trained), self._masked.copy())
        self._taken_step, self._wanted = lineage.step, False
        return self._taken

    def _write(self, taken: Taken, copied: Sequence[Piece] | None) -> Path:
        parts, began_s = self._parts, time.monotonic()
        path = parts.checkpoints.save(
            taken.name,
            parts.policy,
            taken.state,
            self._channel,
            critic=parts.learner.critic,
            copied=copied,
            then=partial(self._commit, taken),
        )
        self.last_write_s = time.monotonic() - began_s
        return path

    def _commit(self, taken: Taken) -> None:
        assert taken.ledger is not None
        self._parts.buffer.commit(taken.name.branch, taken.ledger)

    def _succeed(self, path: Path) -> None:
        assert self._taken is not None
        if self._parts.collective.rank == 0:
            self._gauges["perf/checkpoint/num_bytes"] = float(size_of(path)[0])
        self._failures = 0
        self.num_saved += 1
        self._saved_step = self._taken.name.step
        # Not before the commit: until then the next ledger has to name them again.
        self._trained -= self._taken.trained
        self._masked -= self._taken.masked
        self._taken = None

    def _fail(self) -> None:
        self._failures += 1
        self.num_failed += 1
        self._gauges["perf/checkpoint/failures"] = float(self._failures)
        self._taken_step, self._taken = self._saved_step, None

    def _bear(self, error: CheckpointError) -> None:
        """Report a failure, which `_fail` has counted; raise it if it is one too many."""
        if self._failures >= MAX_FAILURES:
            raise error
        log.warning("%s Training goes on; failure %d of %d.", error, self._failures, MAX_FAILURES)

    def _name(self) -> CheckpointName:
        return CheckpointName(self._lineage.branch, self._lineage.number, self._lineage.step)
